"""One tenant with a GPU for itself: what an engine adds to a request and to a launch."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from functools import partial

from dandelion.errors import DandelionError, InternalError

from ..experiment import Bench, experiment
from ..histogram import Histogram
from ..records import Axis, Claim, Found, Look, Metric, Panel, Row, Skip, Unit
from ..systems import kaas_graphs, kaas_runs, names
from ..systems.kaas_shapes import JACOBI, RESNET50, SHAPES, Shape, Tuned
from ..systems.partitions import TenantProcess
from ..systems.tenant_process import Start
from ..systems.tenants import Dandelion
from ..timing import in_turns

METRICS = (
    Metric("p50", "median latency", Unit.US, logarithmic=True),
    Metric("p90", "90th percentile", Unit.US, logarithmic=True, drawn=False),
    Metric("over_bare", "more than the bare loop", Unit.US, drawn=False),
    Metric("per_launch", "of that for each launch", Unit.US, drawn=False),
)
PAPER = {  # latency in ms, KaaS and native; kernels' time in ms, KaaS and native
    "resnet50": (30.2, 26.1, 8.18, 4.42),
    "bert": (151.4, 146.9, 99.0, 92.9),
    "jacobi": (82.9, 62.3, 77.1, 54.0),
    "cGEMM": (47.7, 46.5, 39.6, 38.9),
}
EMPTY = "empty launches"


@experiment(
    "kaas_alone",
    group="kaas",
    question="what does an engine add to a tenant that has the GPU for itself?",
    source="KaaS, isolated latency",
)
def alone(bench: Bench) -> Found:
    """Compare with processes of the tenant's own, and with the bare loop in them."""
    if not bench.backend:
        return Found((), skips=(Skip("kaas_alone", kaas_runs.NO_DEVICE),))
    shapes: Sequence[Shape] = (RESNET50,) if bench.quick else SHAPES
    rows: list[Row] = []
    skips: list[Skip] = []
    with kaas_runs.Device(bench) as device:
        for shape in shapes:
            given = device.fit(kaas_runs.scaled(bench, shape, limit_bytes=0))
            rows += _rows(bench, device, given, shape.name, skips)
        empty = device.fit(kaas_runs.scaled(bench, JACOBI), empty=True)
        launches = _rows(bench, device, empty, f"{empty.shape.launches} {EMPTY}", skips)
    axis = Axis("graph")
    title = "one client: latency of a request"
    many = Panel("launches", "launches that do next to nothing", axis, METRICS, tuple(launches),
                 Look.BARS, names.BARE)  # fmt: skip
    panel = Panel("alone", title, axis, METRICS, tuple(rows), Look.BARS, names.BARE)
    claims = [
        *_slower(rows, real=bench.gpu and not bench.quick),
        *_launching(launches, empty.shape.launches),
        *_fixed(rows),
    ]
    words = kaas_runs.scaled_words(bench, limit_bytes=0)
    return Found((panel, many), tuple(claims), skips=tuple(skips), scaled=words)


def _rows(
    bench: Bench, device: kaas_runs.Device, given: Tuned, name: str, skips: list[Skip]
) -> list[Row]:
    """Time a shape on all systems, in turns."""
    body = kaas_graphs.body(given.shape, bench.seed)
    ways = {names.DEDICATED: False} | ({names.DEDICATED_GRAPH: True} if device.facts.graphs else {})
    with contextlib.ExitStack() as stack:
        actions = {}
        for way, graph in ways.items():
            bench.say(f"{name}: starting {way}")
            process = TenantProcess(Start(bench.backend, given, 0, graph))
            stack.enter_context(process)
            actions[way] = partial(process.run, body)
        document = kaas_graphs.document(given, 1)
        for workers, system in ((0, names.SEQUENTIAL), (2, names.CONCURRENT)):
            bench.say(f"{name}: starting {system}")
            try:
                node = stack.enter_context(
                    Dandelion(bench.backend, given, 1, workers=workers, document=document)
                )
            except DandelionError as error:
                skips.append(Skip(f"{system}, {name}", str(error)))
                continue
            actions[system] = partial(node.call, 0, body)
        if len({action() for action in actions.values()}) != 1:
            raise InternalError(f"the systems give different results for {name}")
        bench.say(f"{name}: timing")
        count, seconds = bench.pick((15, 0.4), (60, 1.5), (200, 5.0))
        runs = bench.pick(10, 30, 30)
        bare = device.times(given, runs)
        found = in_turns(actions, count=count, warm_up=6, seconds=seconds)
        bare += device.times(given, runs)
    found = {names.BARE: _counted(bare)} | found
    return [_row(system, name, h, found[names.BARE], given.shape) for system, h in found.items()]


def _counted(runs_us: Sequence[float]) -> Histogram:
    counted = Histogram()
    counted.record_all(runs_us)
    return counted


def _row(system: str, name: str, found: Histogram, bare: Histogram, shape: Shape) -> Row:
    values = found.values()
    if system != names.BARE:
        over = values["p50"] - bare.values()["p50"]
        values |= {"over_bare": over, "per_launch": over / shape.launches}
    return Row(system, name, values, found.count)


def _medians(rows: Sequence[Row], name: str) -> dict[str, float]:
    return {row.system: row.values["p50"] for row in rows if row.x == name}


def _best(medians: dict[str, float]) -> float | None:
    return min((m for n, m in medians.items() if n.startswith("dandelion")), default=None)


def _slower(rows: Sequence[Row], *, real: bool) -> list[Claim]:
    """How much longer a request takes than in a process of the tenant's own; sizes may be scaled,
    and then it cannot be told."""
    claims = []
    for shape in SHAPES:
        medians = _medians(rows, shape.name)
        best = _best(medians)
        if best is None:
            continue
        latency, native = PAPER[shape.name][:2]
        ratio, limit = best / medians[names.DEDICATED], latency / native
        claims.append(
            Claim(
                f"KaaS, isolated latency of {shape.name}",
                f"a request takes {latency} ms, {limit:.2f} times as long as in a process of its "
                f"own ({native} ms)",
                f"{best / 1e3:.2f} ms, {ratio:.2f} times as long as in a process of its own "
                f"({medians[names.DEDICATED] / 1e3:.2f} ms)",
                ratio <= limit if real else None,
            )
        )
    return claims


def _launching(rows: Sequence[Row], launches: int) -> list[Claim]:
    """What each launch costs."""
    medians = _medians(rows, f"{launches} {EMPTY}")
    ours = medians.get(names.SEQUENTIAL)
    if ours is None:
        return []
    bare = medians[names.BARE]
    return [
        Claim(
            "KaaS, launches of jacobi and bert",
            "the executor adds 7.7 to 7.9 us to each launch",
            f"{(ours - bare) / launches:+.2f} us, with {launches} launches that take "
            f"{ours / launches:.2f} us each, {bare / launches:.2f} us in the bare loop",
            (ours - bare) / launches <= 7.9,
        )
    ]


def _fixed(rows: Sequence[Row]) -> list[Claim]:
    """What each request costs, whatever it launches."""
    medians = _medians(rows, RESNET50.name)
    ours = medians.get(names.SEQUENTIAL)
    if ours is None:
        return []
    more = ours - medians[names.BARE]
    return [
        Claim(
            "KaaS, requests of resnet50",
            "a request with 145 buffers takes about 3 ms longer, besides its launches",
            f"{more / 1e3:+.3f} ms over the bare loop, with everything",
            more <= 3000,
        )
    ]
