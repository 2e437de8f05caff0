"""The tables of PyPlover: what a chain of kernels costs cold, warm, hot and without a platform.

==== =========================== ==================================================================
      PyPlover                    here
==== =========================== ==================================================================
cold  a new container             a new node and a new engine process; then register and call
warm  a container that was paused the engine is up, the function is new to it: register and call
hot   a container that runs       the function was called before
local the kernels, by a program   the bare loop: memory, code and constants are there
==== =========================== ==================================================================

So our warm start loads code and constants, which PyPlover's paused container still has.
"""

from __future__ import annotations

import contextlib
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from dandelion.data import Item, ItemSet
from dandelion.errors import DandelionError, InternalError
from dandelion.function import FunctionSpec
from dandelion.node import Node, Settings

from ..experiment import Bench, experiment
from ..histogram import Histogram
from ..load import HttpRequest, closed_loop
from ..records import Axis, Claim, Found, Look, Metric, Panel, Row, Skip, Unit
from ..systems import names
from ..systems.bare import Lane, bare_device
from ..systems.plover_chains import Chain, network, vector_addition
from ..systems.servers import ServerFailed, node_server
from ..systems.tenants import split, wait_ready
from ..timing import in_turns

STAGES = {
    "start": "start node and engine",
    "register": "register",
    "dispatch": "dispatch",
    "plan": "plan, load code and constants",
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
NO_DEVICE = "no backend for GPU functions works here: pip install dandelion-engine[opencl]"
NAME = names.SEQUENTIAL
MIB = 1024 * 1024
_MOST_MIB = 256
_EXACT = (
    "Stages are measured with a wait after each, which makes a call a little longer; hot calls are "
    "measured without."
)
_PAUSED = "Our warm start loads code and constants; PyPlover's paused container still has them."

Stages = dict[str, float]


@experiment(
    "plover_vecadd",
    group="plover",
    question="what does a vector addition cost cold, warm, hot and without a platform?",
    source="PyPlover, Figure 9",
)
def vecadd(bench: Bench) -> Found:
    """Add vectors of a million numbers, one of which is a constant."""
    return _starts(bench, vector_addition(), _vecadd_claims)


@experiment(
    "plover_cnn",
    group="plover",
    question="what does a small network cost cold, warm, hot and without a platform?",
    source="PyPlover, Figure 10",
)
def cnn(bench: Bench) -> Found:
    """Classify an image with six launches."""
    return _starts(bench, network(), _cnn_claims)


@dataclass(slots=True)
class Starts:
    """Stages of every start of each kind, and the latency of hot calls by system."""

    stages: dict[str, list[Stages]] = field(default_factory=dict)
    hot: dict[str, Histogram] = field(default_factory=dict)
    skips: list[Skip] = field(default_factory=list)

    def total_ms(self, kind: str) -> float:
        """Median total of a kind of start."""
        return statistics.median(s["total"] for s in self.stages[kind]) / 1e3


def _starts(bench: Bench, chain: Chain, claims: Callable[[Starts], list[Claim]]) -> Found:
    if not bench.backend:
        return Found((), skips=(Skip(chain.name, NO_DEVICE),))
    found = Starts()
    _first(bench, chain)
    repetitions = bench.pick(1, 5, 5)
    found.stages["cold"] = [_cold(bench, chain) for _ in range(repetitions)]
    with _node(bench, exact=True) as node:
        found.stages["warm"] = [_warm(node, chain) for _ in range(bench.pick(2, 20, 40))]
        found.stages["hot"] = _hot(node, chain, bench.pick(20, 100, 300))
    with bare_device(bench.backend) as device, device.lane(chain.work) as lane:
        local = _local(lane, chain, bench.pick(20, 100, 300))
        found.stages["local"] = [{"local": us, "total": us} for us in local]
        with _node(bench) as node:
            node.register(chain.document)
            found.hot = _in_turns(bench, node, lane, chain)
    _over_http(bench, chain, found)
    rows = tuple(
        Row(names.BARE if kind == "local" else NAME, kind, _medians(stages), len(stages))
        for kind, stages in found.stages.items()
    )
    hot = tuple(Row(n, "hot", h.values(), h.count) for n, h in found.hot.items())
    title = f"{chain.name}: one call, by stage"
    return Found(
        (
            Panel(f"{chain.function}_starts", title, Axis("start"), METRICS, rows, Look.STACKED),
            Panel(f"{chain.function}_hot", f"{chain.name}: hot calls", Axis("start"), HOT, hot,
                  Look.BARS, names.BARE),
        ),
        tuple(claims(found)),
        skips=tuple(found.skips),
        notes=(_EXACT, _PAUSED),
    )  # fmt: skip


def _settings(bench: Bench, *, exact: bool) -> dict[str, object]:
    options = {"workers": "0", "pool_bytes": f"{_MOST_MIB}M"}
    if bench.gpu:
        options["weights"] = f"{_MOST_MIB}M"
    if exact:
        options["exact_stages"] = "true"
    return {
        "backends": (bench.backend,),
        "options": {bench.backend: options},
        "arena_bytes": _MOST_MIB * MIB,
        "cache_bytes": 0,
    }


@contextlib.contextmanager
def _node(bench: Bench, *, exact: bool = False) -> Iterator[Node]:
    """Give a node with one engine that is up."""
    node = Node(Settings(**_settings(bench, exact=exact)))  # type: ignore[arg-type]  # by name
    try:
        node.start()
        wait_ready(node, 0)
        yield node
    finally:
        node.close()


def _called(node: Node, chain: Chain) -> Stages:
    sets = {chain.entry: ItemSet(chain.entry, (Item("x", 0, chain.body),))}
    began = time.perf_counter_ns()
    outcome = node.invoke_sets(chain.function, sets)
    total = (time.perf_counter_ns() - began) / 1e3
    reply = outcome.sets[chain.result]
    if reply is None or not chain.expected(reply.bytes()):
        raise InternalError(f"{chain.name} gave a wrong result")
    stages: Stages = split(outcome.trace, total)
    return stages


def _first(bench: Bench, chain: Chain) -> None:
    """Have the source compiled, so that it is in the cache of compiled code."""
    bench.say(f"{chain.name}: compiling")
    with _node(bench) as node:
        node.register(chain.document)
        _called(node, chain)


def _cold(bench: Bench, chain: Chain) -> Stages:
    bench.say(f"{chain.name}: cold")
    began = time.perf_counter_ns()
    with _node(bench, exact=True) as node:
        started = time.perf_counter_ns()
        stages = _registered(node, chain)
    start = (started - began) / 1e3
    return stages | {"start": start, "total": stages["total"] + start}


def _registered(node: Node, chain: Chain) -> Stages:
    """Register the function and call it."""
    began = time.perf_counter_ns()
    node.register(chain.document)
    register = (time.perf_counter_ns() - began) / 1e3
    stages = _called(node, chain)
    return stages | {"register": register, "total": stages["total"] + register}


def _warm(node: Node, chain: Chain) -> Stages:
    """Register, call, and have the function forgotten again."""
    stages = _registered(node, chain)
    node.remove(FunctionSpec, chain.function)
    return stages


def _hot(node: Node, chain: Chain, count: int) -> list[Stages]:
    node.register(chain.document)
    for _ in range(10):
        _called(node, chain)
    return [_called(node, chain) for _ in range(count)]


def _local(lane: Lane, chain: Chain, count: int) -> list[float]:
    if not chain.expected(lane.run(chain.body)):
        raise InternalError(f"the bare loop of {chain.name} gave a wrong result")
    found = []
    for _ in range(count):
        began = time.perf_counter_ns()
        lane.go()
        found.append((time.perf_counter_ns() - began) / 1e3)
    return found


def _in_turns(bench: Bench, node: Node, lane: Lane, chain: Chain) -> dict[str, Histogram]:
    bench.say(f"{chain.name}: hot")
    sets = {chain.entry: ItemSet(chain.entry, (Item("x", 0, chain.body),))}
    actions: dict[str, Callable[[], object]] = {
        names.BARE: lane.go,
        NAME: lambda: node.invoke_sets(chain.function, sets),
    }
    count = bench.pick(50, 500, 2000)
    found: dict[str, Histogram] = in_turns(actions, count=count, seconds=bench.pick(0.3, 3.0, 4.0))
    return found


def _over_http(bench: Bench, chain: Chain, found: Starts) -> None:
    bench.say(f"{chain.name}: hot, over HTTP")
    settings = _settings(bench, exact=False)
    try:
        with node_server(settings, (chain.document,)) as server:
            request = HttpRequest(f"/v1/invoke/{chain.function}", chain.body)
            seconds, warm_up = bench.pick((0.3, 0.2), (2.0, 0.5), (3.0, 0.5))
            load = closed_loop(server.port, request, callers=1, seconds=seconds, warm_up_s=warm_up)
    except (ServerFailed, DandelionError) as error:
        found.skips.append(Skip("dandelion over HTTP", str(error)))
        return
    if load.failed or not load.count:
        found.skips.append(Skip("dandelion over HTTP", load.note or "no answers"))
        return
    found.hot[f"{NAME}, over HTTP"] = Histogram.of(load.latency)


def _medians(found: Sequence[Stages]) -> Stages:
    return {key: statistics.median(stages[key] for stages in found) for key in found[0]}


def _us(found: Histogram) -> float:
    median: float = found.values()["p50"]
    return median


def _vecadd_claims(found: Starts) -> list[Claim]:
    cold, local = found.total_ms("cold"), found.total_ms("local")
    run_ms = sum(_medians(found.stages["hot"])[k] for k in ("copy_in", "kernels", "copy_out")) / 1e3
    return [
        Claim(
            "PyPlover, Figure 9",
            "a cold start takes 2915 ms, of which 2831 ms are the platform's: 37 times as long as "
            "the program without it (79 ms, with all it has to set up)",
            f"{cold:.0f} ms, of which {_medians(found.stages['cold'])['start'] / 1e3:.0f} ms start "
            f"node and engine; the bare loop takes {local:.2f} ms without any set-up",
            cold < 2915,
        ),
        Claim(
            "PyPlover, Figure 9",
            "running the kernel takes 20.8 ms with its copies",
            f"{run_ms:.2f} ms",
            None,
        ),
    ]


def _cnn_claims(found: Starts) -> list[Claim]:
    cold, warm = found.total_ms("cold"), found.total_ms("warm")
    hot, bare = _us(found.hot[NAME]), _us(found.hot[names.BARE])
    claims = [
        Claim(
            "PyPlover, Figure 10",
            "a cold start takes 2156 ms, a warm one 94 ms, a hot call 1.04 ms",
            f"{cold:.0f} ms, {warm:.2f} ms and {hot / 1e3:.3f} ms, in the process of the node",
            cold < 2156 and warm < 94 and hot < 1040,
        ),
        Claim(
            "PyPlover, Figure 10",
            "the platform adds 0.2 ms to a hot call of 0.2 ms of work",
            f"{(hot - bare) / 1e3:.3f} ms over the bare loop's {bare / 1e3:.3f} ms",
            hot - bare < 200,
        ),
    ]
    if (http := found.hot.get(f"{NAME}, over HTTP")) is not None:
        claims.append(
            Claim(
                "PyPlover, Figure 10",
                "a hot call takes 1.04 ms, with HTTP and JSON",
                f"{_us(http) / 1e3:.3f} ms with HTTP and bytes",
                _us(http) < 1040,
            )
        )
    return claims
