"""What does the protocol of KServe cost over the node's own, and against Triton?

The same bytes, over one kept connection each, call by call in turns: a node's route for raw bytes,
KServe with binary tensors on the same node, and Triton with the same request. All functions give
back what they get. That of the null backend is free, so it shows the protocols alone. A Python
function of a node runs in a new sandbox each time; a Python model of Triton is a process that
stays, so the two are not the same service. Then eight callers ask each as fast as they are
answered.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial

from dandelion.documents import RegistrationDocument

from ..experiment import Bench, experiment
from ..http_client import BlockingConnection, request_head
from ..load import HttpRequest, closed_loop
from ..records import Axis, Findings, Metric, Panel, Plot, Row, Skip, Unit, at_most
from ..samples import LATENCIES, P50, P99, row
from ..systems import names
from ..systems.echoes import MIB, NULL, PYTHON, echo
from ..systems.nodes import node_server
from ..systems.triton import (
    FAILURES,
    TritonServer,
    identity_model,
    inference_outputs,
    inference_request,
)
from ..timing import in_turns, ratio

SIZES = {"64 B": 64, "1 MiB": MIB}
RAW, KSERVE = f"{names.NULL}, raw", f"{names.NULL}, KServe"
PROCESS = f"{names.PROCESS}, KServe"
CALLERS = 8
BAR = 1.15
OVER_RAW = Metric("ratio", "over the raw route", Unit.RATIO)
RATE = Metric("rate", "right answers", Unit.PER_SECOND, better="higher")


@experiment(
    "kserve",
    group="data",
    question="What does the protocol of KServe cost over the node's own, and against Triton?",
)
def kserve(bench: Bench) -> Findings:
    """Ask all of them in turns, for a small and a large tensor."""
    skips: list[Skip] = []
    with ExitStack() as stack:
        ports = stack.enter_context(_servers(skips))
        one = [made for size in SIZES for made in _one_caller(bench, ports, size)]
        several = [made for size in SIZES for made in _several_callers(bench, ports, size)]
    panels = (
        Panel(
            "kserve_one", "One caller", Axis("tensor"), (*LATENCIES, OVER_RAW), tuple(one),
            Plot.BARS, RAW,
        ),
        Panel(
            "kserve_several", f"{CALLERS} callers, each as fast as it is answered",
            Axis("tensor"), (P50, P99, RATE), tuple(several), Plot.BARS, RAW,
        ),
    )  # fmt: skip
    large = next(r for r in one if (r.system, r.x) == (KSERVE, "1 MiB"))
    budget = at_most("KServe, 1 MiB, p50", large.values["ratio"], BAR, "x", of=" the raw route")
    return Findings(panels, budgets=(budget,), skips=tuple(skips))


@contextmanager
def _servers(skips: list[Skip]) -> Iterator[dict[str, int]]:
    """Start the servers, and give their ports by the name of the system."""
    document = RegistrationDocument(functions=(echo(NULL, "free"), echo(PYTHON, "sandboxed")))
    settings = {"backends": [NULL, PYTHON], "protocols": ["kserve"]}
    with ExitStack() as stack:
        node = stack.enter_context(node_server(settings, [document]))
        ports = dict.fromkeys((RAW, KSERVE, PROCESS), node.port)
        models = [identity_model(_model(size), SIZES[size]) for size in SIZES]
        try:
            ports[names.TRITON] = stack.enter_context(TritonServer(models)).port
        except FAILURES as error:
            skips.append(Skip(names.TRITON, str(error)))
        yield ports


def _model(size: str) -> str:
    return f"identity_{SIZES[size]}"


def _request(system: str, size: str) -> HttpRequest:
    data = bytes(range(256)) * (SIZES[size] // 256) or bytes(range(SIZES[size]))
    if system == RAW:
        return HttpRequest("/v1/invoke/free", data)
    made = inference_request(identity_model(_model(size), SIZES[size]), data)
    if system == names.TRITON:
        return made
    function = "free" if system == KSERVE else "sandboxed"
    return HttpRequest(f"/v2/models/{function}/infer", made.body, headers=made.headers)


def _ask(connection: BlockingConnection, head: bytes, body: bytes) -> bytearray:
    return connection.ask(head, body)


def _one_caller(bench: Bench, ports: dict[str, int], size: str) -> list[Row]:
    bench.say(f"one caller, {size}")
    with ExitStack() as stack:
        plans: dict[str, Callable[[], object]] = {}
        for system, port in ports.items():
            request = _request(system, size)
            head = request_head(request.path, len(request.body))
            lines = "".join(f"{name}: {value}\r\n" for name, value in request.headers)
            head = head[:-2] + lines.encode() + b"\r\n"
            connection = stack.enter_context(BlockingConnection(port))
            plans[system] = partial(_ask, connection, head, request.body)
            _check(system, request, bytes(connection.ask(head, request.body)))
        count = bench.pick(60, 1500, 1500) if SIZES[size] < MIB else bench.pick(20, 300, 300)
        others = {name: plan for name, plan in plans.items() if name != PROCESS}
        timed = in_turns(others, count=count, warm_up=20)
        # on its own: new sandboxes are forked after each call, which slows what comes next
        timed |= in_turns({PROCESS: plans[PROCESS]}, count=count // 3, warm_up=5)
    rows = []
    for system in plans:
        made = row(system, size, timed[system])
        found = ratio(timed[system], timed[RAW])
        made.values.update(ratio=found.median, ratio_low=found.low, ratio_high=found.high)
        rows.append(made)
    return rows


def _check(system: str, request: HttpRequest, reply: bytes) -> None:
    """Refuse a wrong answer: what came back must be what was sent."""
    if system == RAW:
        found, sent = reply, request.body
    else:
        (found,) = inference_outputs(reply).values()
        _, start = json.JSONDecoder().raw_decode(request.body.decode("latin-1"))
        sent = request.body[start:]
    if found != sent:
        raise ValueError(f"{system} gave back {len(found)} other bytes than the {len(sent)} sent")


def _several_callers(bench: Bench, ports: dict[str, int], size: str) -> list[Row]:
    rows = []
    seconds = 0.25 if bench.quick else 4.0
    for system, port in ports.items():
        bench.say(f"{CALLERS} callers, {size}, {system}")
        load = closed_loop(port, _request(system, size), callers=CALLERS, seconds=seconds)
        values = load.latency.values() | {"rate": load.achieved_per_s}
        rows.append(Row(system, size, values, load.count, load.failed, load.note))
    return rows
