"""What does a no-op over HTTP cost, against a raw ASGI application on the same server?

Two servers in their own processes: a node with the null backend, and an ASGI application that
returns the body, both on uvicorn with uvloop and httptools. First one connection asks them in
turns, call after call, everything on one core: on a virtual machine a wake-up across cores costs
more than the request, and affects the two at random. Then independent users ask at growing rates,
on all cores.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

from dandelion.documents import RegistrationDocument

from ..experiment import Bench, experiment
from ..http_client import BlockingConnection, request_head
from ..load import HttpRequest, LoadResult, open_loop
from ..processes import ServerProcess
from ..records import Axis, Findings, Metric, Panel, Plot, Row, Unit, at_most
from ..samples import ACHIEVED, LATENCIES, P50, P99, P999, row
from ..systems.asgi import asgi_server
from ..systems.echoes import NULL, echo
from ..systems.names import RAW_ASGI
from ..systems.nodes import node_server
from ..timing import in_turns, pinned, ratio

BODY = b"x" * 64
JSON_BODY = b'{"sets":{"x":"%s"}}' % BODY
RAW, JSON = "dandelion null", "dandelion null, JSON"
LATENCY_BOUND_US = 50_000.0
RATIO = Metric("ratio", "over raw ASGI", Unit.RATIO)
SHARED_CORES = "Generator and server share the cores of this machine."


@contextmanager
def _servers() -> Iterator[tuple[ServerProcess, ServerProcess]]:
    document = RegistrationDocument(functions=(echo(NULL, "F"),))
    with asgi_server() as raw, node_server({"backends": ["null"]}, [document]) as node:
        yield raw, node


@experiment(
    "http_noop", group="dispatcher", question="What does a no-op over HTTP cost, call after call?"
)
def http_noop(bench: Bench) -> Findings:
    """Ask both servers in turns over one connection, on one core."""
    path, count = "/v1/invoke/F", bench.pick(1000, 8000, 8000)
    json_head = request_head(path, len(JSON_BODY), "application/json")
    with (
        pinned({max(os.sched_getaffinity(0))}),
        _servers() as (raw, node),
        BlockingConnection(raw.port) as to_raw,
        BlockingConnection(node.port) as to_node,
    ):
        bench.say("one connection")
        plans: dict[str, Callable[[], object]] = {
            RAW_ASGI: partial(to_raw.ask, request_head("/", len(BODY)) + BODY),
            RAW: partial(to_node.ask, request_head(path, len(BODY)) + BODY),
            JSON: partial(to_node.ask, json_head + JSON_BODY),
        }
        timed = in_turns(plans, count=count, warm_up=200, block=100)
    rows = {name: row(name, "no-op", timed[name]) for name in plans}
    for name, made in rows.items():
        found = ratio(timed[name], timed[RAW_ASGI])
        made.values.update(ratio=found.median, ratio_low=found.low, ratio_high=found.high)
    panel = Panel(
        "one_connection", "One caller, one connection, one core",
        Axis("request"), (*LATENCIES, RATIO), tuple(rows.values()), Plot.BARS, RAW_ASGI,
    )  # fmt: skip
    extra = rows[RAW].values["p50"] - rows[RAW_ASGI].values["p50"]
    why = f"the node adds {extra:.0f} us to a request, on one core"
    share = rows[RAW].values["ratio"]
    budget = at_most("no-op over HTTP, p50", share, 1.6, "x", why, of=" raw ASGI")
    return Findings((panel,), budgets=(budget,))


@experiment(
    "http_rates", group="dispatcher", question="How many no-ops over HTTP does a node answer?"
)
def http_rates(bench: Bench) -> Findings:
    """Raise the rate of independent users until each server is overloaded."""
    rates = bench.pick([250, 1000], [250, 500, 1000, 2000, 3000, 4000, 6000],
                       [500, 1000, 2000, 4000, 6000, 8000, 12_000, 16_000])  # fmt: skip
    seconds, warm_up_s = (0.6, 0.2) if bench.quick else (2.0, 0.4)
    with _servers() as (raw, node):
        active = {
            RAW_ASGI: (raw.port, HttpRequest("/", BODY, expect=BODY)),
            RAW: (node.port, HttpRequest("/v1/invoke/F", BODY, expect=BODY)),
        }
        rows: dict[str, list[Row]] = {name: [] for name in active}
        for rate in rates:
            for name, (port, request) in list(active.items()):
                bench.say(f"{name}, {rate} rps")
                load = open_loop(port, request, rate_per_s=rate, seconds=seconds,
                                 warm_up_s=warm_up_s, seed=bench.seed)  # fmt: skip
                rows[name].append(load_row(name, rate, load))
                if load.overloaded(LATENCY_BOUND_US):
                    del active[name]
    panel = Panel(
        "rates", "Independent users: latency from the intended time, by offered load",
        Axis("offered load", Unit.PER_SECOND, logarithmic=True), (P50, P99, P999, ACHIEVED),
        tuple(r for found in rows.values() for r in found), Plot.LINES, RAW_ASGI,
    )  # fmt: skip
    return Findings((panel,), notes=(SHARED_CORES,))


def load_row(system: str, x: float, load: LoadResult) -> Row:
    """Make a row of a load."""
    return Row(system, float(x), load.values(), load.count, load.failed, load.note)
