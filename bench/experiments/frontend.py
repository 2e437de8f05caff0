"""What does a no-op over HTTP cost, against a raw ASGI application on the same server?

Two servers in processes of their own: a node with the null backend, and an ASGI application that
reads the body and answers it, both on uvicorn with uvloop and httptools. First one connection asks
them in turns, call after call, everything on one core: on a virtual machine a wake-up across cores
costs more than the request, and hits the two at random. Then independent users ask at growing
rates, on all cores.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import partial

from dandelion.documents import RegistrationDocument

from ..columns import ACHIEVED, LATENCIES, P50, P99, P999, row
from ..connection import Connection, head
from ..experiment import Bench, experiment
from ..histogram import Histogram
from ..load import HttpRequest, Load, open_loop
from ..records import Axis, Budget, Found, Look, Metric, Panel, Row, Unit
from ..systems.echoes import NULL, echo
from ..systems.names import RAW_ASGI
from ..systems.servers import ServerProcess, asgi_server, node_server
from ..timing import in_turns, pinned, ratio

BODY = b"x" * 64
JSON_BODY = b'{"sets":{"x":"%s"}}' % BODY
RAW, JSON = "dandelion null", "dandelion null, JSON"
BUDGET = 1.6
LATENCY_BOUND_US = 50_000.0
KEPT_UP = 0.95
RATIO = Metric("ratio", "over raw ASGI", Unit.RATIO)


def _servers() -> tuple[ServerProcess, ServerProcess]:
    raw = asgi_server()
    try:
        document = RegistrationDocument(functions=(echo(NULL, "F"),))
        return raw, node_server({"backends": ["null"]}, [document])
    except BaseException:
        raw.close()
        raise


@experiment(
    "http_noop", group="dispatcher", question="What does a no-op over HTTP cost, call after call?"
)
def http_noop(bench: Bench) -> Found:
    """Ask both servers in turns over one connection, on one core."""
    count = bench.pick(1000, 8000, 8000)
    with pinned({max(os.sched_getaffinity(0))}):
        raw, node = _servers()
        with raw, node, Connection(raw.port) as to_raw, Connection(node.port) as to_node:
            bench.say("one connection")
            plans: dict[str, Callable[[], object]] = {
                RAW_ASGI: partial(to_raw.ask, head("/", len(BODY)) + BODY),
                RAW: partial(to_node.ask, head("/v1/invoke/F", len(BODY)) + BODY),
                JSON: partial(
                    to_node.ask,
                    head("/v1/invoke/F", len(JSON_BODY), "application/json") + JSON_BODY,
                ),
            }
            timed = in_turns(plans, count=count, warm_up=200, block=100)
    rows = tuple(_against(name, timed[name], timed[RAW_ASGI]) for name in plans)
    panel = Panel(
        "one_connection", "One caller, one connection, one core",
        Axis("request"), (*LATENCIES, RATIO), rows, Look.BARS, RAW_ASGI,
    )  # fmt: skip
    return Found((panel,), budgets=(_budget(rows),))


def _against(name: str, timed: Histogram, baseline: Histogram) -> Row:
    made = row(name, "no-op", timed)
    found = ratio(timed, baseline)
    made.values.update(ratio=found.median, ratio_low=found.low, ratio_high=found.high)
    return made


def _budget(rows: Sequence[Row]) -> Budget:
    measured = next(r for r in rows if r.system == RAW).values
    passes = measured["ratio"] <= BUDGET
    extra = measured["p50"] - next(r for r in rows if r.system == RAW_ASGI).values["p50"]
    return Budget(
        "no-op over HTTP, p50", f"<= {BUDGET}x raw ASGI", f"{measured['ratio']:.2f}x", passes,
        "" if passes else f"the node adds {extra:.0f} us to a request, on one core",
    )  # fmt: skip


@experiment(
    "http_rates", group="dispatcher", question="How many no-ops over HTTP does a node answer?"
)
def http_rates(bench: Bench) -> Found:
    """Raise the rate of independent users until each server can no more."""
    rates = bench.pick([250, 1000], [250, 500, 1000, 2000, 3000, 4000, 6000],
                       [500, 1000, 2000, 4000, 6000, 8000, 12_000, 16_000])  # fmt: skip
    seconds, warm_up_s = (0.6, 0.2) if bench.quick else (2.0, 0.4)
    raw, node = _servers()
    with raw, node:
        systems = {
            RAW_ASGI: (raw.port, HttpRequest("/", BODY, expect=BODY)),
            RAW: (node.port, HttpRequest("/v1/invoke/F", BODY, expect=BODY)),
        }

        rows: dict[str, list[Row]] = {name: [] for name in systems}
        alive = dict(systems)
        for rate in rates:
            for name, (port, request) in list(alive.items()):
                bench.say(f"{name}, {rate} rps")
                load = open_loop(port, request, rate_per_s=rate, seconds=seconds,
                                 warm_up_s=warm_up_s, seed=bench.seed)  # fmt: skip
                rows[name].append(load_row(name, rate, load))
                if not keeps_up(load):
                    del alive[name]
    panel = Panel(
        "rates", "Independent users: latency from the intended time, by offered load",
        Axis("offered load", Unit.PER_SECOND, logarithmic=True), (P50, P99, P999, ACHIEVED),
        tuple(r for name in systems for r in rows[name]),
        Look.LINES, RAW_ASGI,
    )  # fmt: skip
    return Found((panel,), notes=("Generator and server share the cores of this machine.",))


def keeps_up(load: Load) -> bool:
    """Whether it makes sense to ask for more."""
    if not load.count or load.achieved_per_s < KEPT_UP * load.offered_per_s:
        return False
    p99: float = load.values()["p99"]
    return p99 <= LATENCY_BOUND_US


def load_row(system: str, rate: float, load: Load) -> Row:
    """Make a row of a load."""
    return Row(system, float(rate), load.values(), load.count, load.failed, load.note)
