"""The tables of PyPlover: what a chain of kernels costs cold, warm, hot and without a platform.

===== =========================== =================================================================
      PyPlover                    here
===== =========================== =================================================================
cold  a new container             a new node and a new engine process; then register and call
warm  a container that was paused the engine is ready, the function is new to it: register and call
hot   a container that runs       the function was called before
local the kernels, by a program   the bare loop: memory, code and constants are there
===== =========================== =================================================================

So our warm start loads code and constants, which PyPlover's paused container still has.
"""

from __future__ import annotations

import contextlib
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from dandelion.errors import DandelionError, InternalError
from dandelion.function import FunctionSpec
from dandelion.node import Node

from ..experiment import Bench, experiment
from ..load import HttpRequest, closed_loop
from ..records import Axis, Claim, Findings, Metric, Panel, Plot, Row, Skip, Unit
from ..samples import Samples
from ..systems import names
from ..systems.bare import bare_device
from ..systems.contenders import Lineup, network_contenders
from ..systems.functions import KernelChain, network, vector_addition
from ..systems.nodes import MIB, gpu_settings, node_server, one_item, open_node, staged_call
from ..timing import in_turns
from .http_calls import load_row
from .kaas_alone import Stages, stage_medians

STAGES = {
    "start": "start node and engine",
    "register": "register",
    "dispatch": "dispatch",
    "load": "load code",
    "plan": "plan, load constants",
    "copy_in": "copy in",
    "kernels": "kernels",
    "copy_out": "copy out and wait",
    "local": "bare loop",
}
METRICS = (
    *(Metric(key, name, Unit.US) for key, name in STAGES.items()),
    Metric("total", "total", Unit.US, drawn=False),
)
HOT = (
    Metric("p50", "median", Unit.US),
    Metric("p99", "99th percentile", Unit.US, drawn=False),
    Metric("lowest", "fastest", Unit.US, drawn=False),
)
SERVING = (
    Metric("p50", "median latency", Unit.US, logarithmic=True),
    Metric("p99", "99th percentile", Unit.US, logarithmic=True, drawn=False),
    Metric("achieved_per_s", "requests", Unit.PER_SECOND, drawn=False, better="higher"),
)
NAME = names.SEQUENTIAL
OVER_HTTP = f"{NAME}, over HTTP"
_POOL_MIB = 256
_NOTES = (
    "Stages are measured with a wait after each, unlike hot calls, which makes a call longer.",
    "Our warm start loads code and constants; PyPlover's paused container still has them.",
)
_PEERS = (
    "Peers run the network in PyTorch, one launch after the other; the dedicated server and the "
    "node run our kernels. All have the same weights on the device, and results are compared."
)
_ISOLATION = (
    "Only the node isolates: it zeroes what a request used, and a fault ends one engine. LitServe "
    "takes and gives JSON, Triton a little JSON before the bytes, all others bytes."
)


@dataclass(slots=True)
class Starts:
    """Stages of every start of each kind, and the latency of hot calls by system."""

    stages: dict[str, list[Stages]] = field(default_factory=dict)
    hot: dict[str, Samples] = field(default_factory=dict)
    skips: list[Skip] = field(default_factory=list)

    def total_ms(self, kind: str) -> float:
        """Median total of a kind of start."""
        return statistics.median(s["total"] for s in self.stages[kind]) / 1e3


@experiment(
    "plover_vecadd", group="plover", needs_device=True, source="PyPlover, Figure 9",
    question="what does a vector addition cost cold, warm, hot and without a platform?",
)  # fmt: skip
def vecadd(bench: Bench) -> Findings:
    """Add vectors of a million numbers, one of which is a constant."""
    return _starts(bench, vector_addition(), vecadd_claims)


@experiment(
    "plover_cnn", group="plover", needs_device=True, source="PyPlover, Figure 10",
    question="what does a small network cost cold, warm, hot and without a platform?",
)  # fmt: skip
def cnn(bench: Bench) -> Findings:
    """Classify an image with six launches."""
    return _starts(bench, network(), cnn_claims)


def _starts(bench: Bench, chain: KernelChain, claims: Callable[[Starts], list[Claim]]) -> Findings:
    found = Starts()
    bench.say(f"{chain.name}: compiling")  # so that it is in the cache of compiled code
    with _node(bench) as node:
        node.register(chain.document)
        _called(node, chain)
    bench.say(f"{chain.name}: cold")
    found.stages["cold"] = [cold_start(bench, chain) for _ in range(bench.pick(1, 5, 5))]
    with _node(bench, exact=True) as node:
        found.stages["warm"] = [warm_start(node, chain) for _ in range(bench.pick(2, 20, 40))]
        found.stages["hot"] = hot_calls(node, chain, bench.pick(20, 100, 300))
    bench.say(f"{chain.name}: hot")
    with bare_device(bench.backend) as device, device.stream(chain.work) as stream:
        if not chain.expected(stream.run(chain.body)):
            raise InternalError(f"the bare loop of {chain.name} gave a wrong result")
        local = in_turns({"": stream.go}, count=bench.pick(20, 100, 300), warm_up=0)[""]
        found.stages["local"] = [{"local": ns / 1e3, "total": ns / 1e3} for ns in local.ns]
        with _node(bench) as node:
            node.register(chain.document)
            sets = one_item(chain.work.entry, chain.body)
            actions: dict[str, Callable[[], object]] = {
                names.BARE: stream.go,
                NAME: lambda: node.invoke_sets(chain.function, sets),
            }
            count, seconds = bench.pick(50, 500, 2000), bench.pick(0.3, 3.0, 4.0)
            found.hot = in_turns(actions, count=count, seconds=seconds)
    _over_http(bench, chain, found)
    rows = tuple(
        Row(names.BARE if kind == "local" else NAME, kind, stage_medians(stages), len(stages))
        for kind, stages in found.stages.items()
    )
    hot = tuple(Row(n, "hot", s.values(), s.count) for n, s in found.hot.items())
    title = f"{chain.name}: one call, by stage"
    panels = (
        Panel(f"{chain.function}_starts", title, Axis("start"), METRICS, rows, Plot.STACKED),
        Panel(f"{chain.function}_hot", f"{chain.name}: hot calls", Axis("start"), HOT, hot,
              Plot.BARS, names.BARE),
    )  # fmt: skip
    return Findings(panels, tuple(claims(found)), skips=tuple(found.skips), notes=_NOTES)


def _settings(bench: Bench, *, exact: bool) -> dict[str, object]:
    options = {"weights": f"{_POOL_MIB}M"} if bench.gpu else {}
    options |= {"exact_stages": "true"} if exact else {}
    pool, arena_bytes = f"{_POOL_MIB}M", _POOL_MIB * MIB
    return gpu_settings(bench.backend, 0, pool, arena_bytes, **options) | {"cache_bytes": 0}


@contextlib.contextmanager
def _node(bench: Bench, *, exact: bool = False) -> Iterator[Node]:
    with open_node(_settings(bench, exact=exact), 1) as node:
        yield node


def _called(node: Node, chain: KernelChain) -> Stages:
    result, stages = staged_call(node, chain.function, one_item(chain.work.entry, chain.body))
    reply = result.sets[chain.work.result]
    if reply is None or not chain.expected(reply.bytes()):
        raise InternalError(f"{chain.name} gave a wrong result")
    return stages


def cold_start(bench: Bench, chain: KernelChain) -> Stages:
    """Start a node, register the function and call it."""
    began = time.perf_counter_ns()
    with _node(bench, exact=True) as node:
        start = (time.perf_counter_ns() - began) / 1e3
        stages = _registered(node, chain)
    return stages | {"start": start, "total": stages["total"] + start}


def _registered(node: Node, chain: KernelChain) -> Stages:
    began = time.perf_counter_ns()
    node.register(chain.document)
    register = (time.perf_counter_ns() - began) / 1e3
    stages = _called(node, chain)
    return stages | {"register": register, "total": stages["total"] + register}


def warm_start(node: Node, chain: KernelChain) -> Stages:
    """Register the function, call it, and remove it again."""
    stages = _registered(node, chain)
    node.remove(FunctionSpec, chain.function)
    return stages


def hot_calls(node: Node, chain: KernelChain, count: int) -> list[Stages]:
    """Call a function that was called before."""
    node.register(chain.document)
    return [_called(node, chain) for _ in range(10 + count)][10:]


def _over_http(bench: Bench, chain: KernelChain, found: Starts) -> None:
    bench.say(f"{chain.name}: hot, over HTTP")
    try:
        with node_server(_settings(bench, exact=False), (chain.document,), engines=1) as server:
            request = HttpRequest(f"/v1/invoke/{chain.function}", chain.body)
            seconds, warm_up = bench.pick((0.3, 0.2), (2.0, 0.5), (3.0, 0.5))
            load = closed_loop(server.port, request, callers=1, seconds=seconds, warm_up_s=warm_up)
    except DandelionError as error:
        found.skips.append(Skip("dandelion over HTTP", str(error)))
        return
    if load.failed or not load.count:
        found.skips.append(Skip("dandelion over HTTP", load.note or "no answers"))
        return
    found.hot[OVER_HTTP] = load.latency


def vecadd_claims(found: Starts) -> list[Claim]:
    """Compare with PyPlover's Figure 9."""
    cold, local = found.total_ms("cold"), found.total_ms("local")
    hot = stage_medians(found.stages["hot"])
    run_ms = sum(hot[key] for key in ("copy_in", "kernels", "copy_out")) / 1e3
    return [
        Claim(
            "PyPlover, Figure 9",
            "a cold start takes 2915 ms, of which 2831 ms are the platform's: 37 times as long as "
            "the program without it (79 ms, with all it has to set up)",
            f"{cold:.0f} ms, of which {stage_medians(found.stages['cold'])['start'] / 1e3:.0f} ms "
            f"start node and engine; the bare loop takes {local:.2f} ms without any set-up",
            cold < 2915,
        ),
        Claim("PyPlover, Figure 9", "running the kernel takes 20.8 ms with its copies",
              f"{run_ms:.2f} ms"),
    ]  # fmt: skip


def cnn_claims(found: Starts) -> list[Claim]:
    """Compare with PyPlover's Figure 10."""
    cold, warm = found.total_ms("cold"), found.total_ms("warm")
    hot, bare = found.hot[NAME].median, found.hot[names.BARE].median
    source = "PyPlover, Figure 10"
    claims = [
        Claim(
            source,
            "a cold start takes 2156 ms, a warm one 94 ms, a hot call 1.04 ms",
            f"{cold:.0f} ms, {warm:.2f} ms and {hot / 1e3:.3f} ms, in the process of the node",
            cold < 2156 and warm < 94 and hot < 1040,
        ),
        Claim(
            source,
            "the platform adds 0.2 ms to a hot call of 0.2 ms of work",
            f"{(hot - bare) / 1e3:.3f} ms over the bare loop's {bare / 1e3:.3f} ms",
            hot - bare < 200,
        ),
    ]
    if (http := found.hot.get(OVER_HTTP)) is not None:
        measured = f"{http.median / 1e3:.3f} ms with HTTP and bytes"
        says = "a hot call takes 1.04 ms, with HTTP and JSON"
        claims.append(Claim(source, says, measured, http.median < 1040))
    return claims


@experiment(
    "plover_peers", group="plover", needs_device=True,
    question="what does it cost to serve the same small network in other ways?",
)  # fmt: skip
def peers(bench: Bench) -> Findings:
    """Ask every server that is installed, in turns, with one caller and with several."""
    chain = network()
    rows: list[Row] = []
    seconds = bench.pick(0.3, 1.0, 2.0)
    warm_up_s = bench.pick(0.3, 3.0, 3.0)  # until the node knows whether threads pay, on a CPU
    with Lineup(bench, network_contenders(bench, chain)) as lineup:
        lineup.check(chain.work.name, chain.body, chain.expected)
        for callers in bench.pick((1,), (1, 8), (1, 8, 32)):
            for running in lineup.running:
                bench.say(f"{callers} callers, {running.name}")
                request = running.unchecked(chain.work.name, chain.body)
                load = closed_loop(
                    running.server.port, request, callers=callers, seconds=seconds,
                    warm_up_s=warm_up_s,
                )  # fmt: skip
                rows.append(load_row(running.name, callers, load))
    title = f"{chain.name} over HTTP, callers that wait for their answers"
    axis = Axis("callers", logarithmic=True)
    panel = Panel("serving", title, axis, SERVING, tuple(rows), baseline=names.DEDICATED)
    return Findings((panel,), skips=tuple(lineup.skips), notes=(_PEERS, _ISOLATION))
