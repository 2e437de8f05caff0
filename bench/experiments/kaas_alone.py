"""One tenant of a GPU: what an engine adds to requests and launches, and what cold starts cost.

KaaS' test model for cold starts is three matrix multiplications in a row. Its executor was already
running when it was measured cold, and a process was not.
"""

from __future__ import annotations

import contextlib
import statistics
import time
from collections.abc import Sequence
from functools import partial

from dandelion.errors import DandelionError, InternalError

from ..experiment import Bench, experiment
from ..records import Axis, Claim, Findings, Metric, Panel, Plot, Row, Skip, Unit
from ..samples import Samples
from ..systems import kaas_graphs, names
from ..systems.kaas_lineup import ShapeFitter, fitted, scaled, scaled_words, shapes_of
from ..systems.kaas_shapes import JACOBI, MICRO, RESNET50, SHAPES, Shape, TunedShape
from ..systems.tenant_process import TenantProcess, TenantStart
from ..systems.tenants import SharedNode
from ..timing import in_turns

METRICS = (
    Metric("p50", "median latency", Unit.US, logarithmic=True),
    Metric("p90", "90th percentile", Unit.US, logarithmic=True, drawn=False),
    Metric("over_bare", "more than the bare loop", Unit.US, drawn=False),
    Metric("per_launch", "of that for each launch", Unit.US, drawn=False),
)
PAPER_MS = {  # latency of KaaS and native
    "resnet50": (30.2, 26.1), "bert": (151.4, 146.9), "jacobi": (82.9, 62.3), "cGEMM": (47.7, 46.5),
}  # fmt: skip
EMPTY = "empty launches"
STAGES = {
    "start": "process and imports",
    "device": "open the device",
    "load": "code; in a process constants, too",
    "plan": "plan, constants",
    "copy_in": "copy in",
    "kernels": "kernels",
    "copy_out": "copy out and wait",
    "run": "request",
    "dispatch": "everything else",
}
START_METRICS = (
    *(Metric(key, name, Unit.US) for key, name in STAGES.items()),
    Metric("total", "total", Unit.US, drawn=False),
)
PAPER_STARTS_MS = {"warm": (10.27, 9.53), "cold": (21.54, 438.13)}
"""KaaS' totals, of its executor and of a process."""

Stages = dict[str, float]


@experiment(
    "kaas_alone", group="kaas", needs_device=True, source="KaaS, isolated latency",
    question="what does an engine add to a tenant that has the GPU for itself?",
)  # fmt: skip
def alone(bench: Bench) -> Findings:
    """Compare with processes of the tenant's own, and with the bare loop in them."""
    rows: list[Row] = []
    skips: list[Skip] = []
    with ShapeFitter(bench) as fitter:
        for shape in shapes_of(bench):
            given = fitter.fit(scaled(bench, shape, limit_bytes=0))
            rows += _rows(bench, fitter, given, shape.name, skips)
        empty = fitter.fit(scaled(bench, JACOBI), empty=True)
        launches = _rows(bench, fitter, empty, f"{empty.shape.launches} {EMPTY}", skips)
    axis = Axis("graph")
    panels = (
        Panel("alone", "one client: latency of a request", axis, METRICS, tuple(rows), Plot.BARS,
              names.BARE),
        Panel("launches", "launches that do next to nothing", axis, METRICS, tuple(launches),
              Plot.BARS, names.BARE),
    )  # fmt: skip
    claims = [
        *slower(rows, real=bench.gpu and not bench.quick),
        *launching(launches, empty.shape.launches),
        *_fixed(rows),
    ]
    words = scaled_words(bench, limit_bytes=0)
    return Findings(panels, tuple(claims), skips=tuple(skips), scaled=words)


def _rows(
    bench: Bench, fitter: ShapeFitter, given: TunedShape, name: str, skips: list[Skip]
) -> list[Row]:
    """Time a shape on all systems, in turns."""
    body = kaas_graphs.body(given.shape, bench.seed)
    own = {names.DEDICATED: False} | ({names.DEDICATED_GRAPH: True} if fitter.ready.graphs else {})
    with contextlib.ExitStack() as stack:
        actions = {}
        for system, graph in own.items():
            bench.say(f"{name}: starting {system}")
            process = TenantProcess(TenantStart(bench.backend, given, 0, graph))
            actions[system] = partial(stack.enter_context(process).run, body)
        document = kaas_graphs.document(given, 1)
        for workers, system in ((0, names.SEQUENTIAL), (2, names.CONCURRENT)):
            bench.say(f"{name}: starting {system}")
            try:
                node = SharedNode(bench.backend, given, 1, workers=workers, document=document)
            except DandelionError as error:
                skips.append(Skip(f"{system}, {name}", str(error)))
                continue
            actions[system] = partial(stack.enter_context(node).call, 0, body)
        if len({action() for action in actions.values()}) != 1:
            raise InternalError(f"the systems give different results for {name}")
        bench.say(f"{name}: timing")
        count, seconds = bench.pick((15, 0.4), (60, 1.5), (200, 5.0))
        runs = bench.pick(10, 30, 30)
        bare = fitter.times(given, runs)
        timed = in_turns(actions, count=count, warm_up=6, seconds=seconds)
        bare += fitter.times(given, runs)
    timed = {names.BARE: Samples.of_us(bare)} | timed
    return [_row(system, name, s, timed[names.BARE], given.shape) for system, s in timed.items()]


def _row(system: str, name: str, found: Samples, bare: Samples, shape: Shape) -> Row:
    values = found.values()
    if system != names.BARE:
        over = found.median - bare.median
        values |= {"over_bare": over, "per_launch": over / shape.launches}
    return Row(system, name, values, found.count)


def _medians(rows: Sequence[Row], name: str) -> dict[str, float]:
    return {row.system: row.values["p50"] for row in rows if row.x == name}


def slower(rows: Sequence[Row], *, real: bool) -> list[Claim]:
    """How much longer a request takes than in a process of the tenant's own.

    With scaled sizes, where `real` is False, this cannot be told.
    """
    claims = []
    for shape in SHAPES:
        medians = _medians(rows, shape.name)
        best = min((m for n, m in medians.items() if n.startswith("dandelion")), default=None)
        if best is None:
            continue
        latency, native = PAPER_MS[shape.name]
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


def launching(rows: Sequence[Row], launches: int) -> list[Claim]:
    """What each launch costs."""
    medians = _medians(rows, f"{launches} {EMPTY}")
    ours, bare = medians.get(names.SEQUENTIAL), medians.get(names.BARE, 0.0)
    if ours is None:
        return []
    measured = (
        f"{(ours - bare) / launches:+.2f} us, with {launches} launches that take "
        f"{ours / launches:.2f} us each, {bare / launches:.2f} us in the bare loop"
    )
    says = "the executor adds 7.7 to 7.9 us to each launch"
    source = "KaaS, launches of jacobi and bert"
    return [Claim(source, says, measured, (ours - bare) / launches <= 7.9)]


def _fixed(rows: Sequence[Row]) -> list[Claim]:
    """What each request costs, apart from its launches."""
    medians = _medians(rows, RESNET50.name)
    ours = medians.get(names.SEQUENTIAL)
    if ours is None:
        return []
    more = ours - medians[names.BARE]
    says = "a request with 145 buffers takes about 3 ms longer, besides its launches"
    measured = f"{more / 1e3:+.3f} ms over the bare loop, with everything"
    return [Claim("KaaS, requests of resnet50", says, measured, more <= 3000)]


@experiment(
    "kaas_cold", group="kaas", needs_device=True,
    question="what does a tenant's first request cost, with an engine and with a process?",
    source="KaaS, breakdown of cold and warm starts",
)  # fmt: skip
def cold(bench: Bench) -> Findings:
    """Time first and later requests of tenants, by their stages."""
    (given,) = fitted(bench, [MICRO])
    rows = tuple(
        Row(system, start, stage_medians(found), len(found))
        for system, starts in (
            (names.SEQUENTIAL, _engine_starts(bench, given, bench.pick(3, 8, 10))),
            (names.EXCLUSIVE, _process_starts(bench, given, bench.pick(2, 5, 6))),
        )
        for start, found in starts.items()
    )
    title = f"{given.shape.name}: first requests (cold) and later ones (warm), by stage"
    panel = Panel("starts", title, Axis("start"), START_METRICS, rows, Plot.STACKED,
                  names.EXCLUSIVE)  # fmt: skip
    return Findings(
        (panel,),
        tuple(_start_claims(rows, real=bench.gpu and not bench.quick)),
        scaled=scaled_words(bench),
        notes=(
            "Code was compiled before, and lies in the cache of compiled code.",
            "Cold in the engine: no request of this tenant was ever seen; the engine is up.",
        ),
    )


def _engine_starts(bench: Bench, given: TunedShape, tenants: int) -> dict[str, list[Stages]]:
    """Time the first request of each tenant but the first, which compiles, and later ones."""
    first: list[Stages] = []
    later: list[Stages] = []
    body = kaas_graphs.body(given.shape, bench.seed)
    with SharedNode(bench.backend, given, tenants) as node:
        for tenant in range(tenants):
            bench.say(f"engine, tenant {tenant}")
            found = [node.stages(tenant, body) for _ in range(9)]
            first += found[:1] if tenant else []
            later += found[4:]
    return {"cold": first, "warm": later}


def _process_starts(bench: Bench, given: TunedShape, count: int) -> dict[str, list[Stages]]:
    """Start a process repeatedly; time its first request and some later ones."""
    first, later, replies = [], [], set()
    body = kaas_graphs.body(given.shape, bench.seed)
    for number in range(count):
        bench.say(f"process {number}")
        began = time.perf_counter_ns()
        with TenantProcess(TenantStart(bench.backend, given)) as process:
            stages = process.wait().stages_us
            replies.add(process.run(body))
            total = (time.perf_counter_ns() - began) / 1e3
            first.append(stages | {"run": total - sum(stages.values()), "total": total})
            timed = in_turns({"run": partial(process.run, body)}, count=5, warm_up=0)["run"]
            later += [{"run": ns / 1e3, "total": ns / 1e3} for ns in timed.ns]
    if len(replies) != 1:
        raise InternalError("a process gives another result after a restart")
    return {"cold": first, "warm": later}


def stage_medians(found: Sequence[Stages]) -> Stages:
    """Give the median of each stage."""
    return {key: statistics.median(stages[key] for stages in found) for key in found[0]}


def _start_claims(rows: Sequence[Row], *, real: bool) -> list[Claim]:
    totals = {(row.system, row.x): row.values["total"] / 1e3 for row in rows}
    claims = []
    holds: bool | None
    for start, (engine_ms, process_ms) in PAPER_STARTS_MS.items():
        ours, other = totals[names.SEQUENTIAL, start], totals[names.EXCLUSIVE, start]
        if start == "cold":
            says = f"{process_ms / engine_ms:.1f} times faster than"
            holds = other / ours >= process_ms / engine_ms
            measured = f"{other / ours:.1f} times faster"
        else:
            says = f"{engine_ms / process_ms:.2f} times as long as"
            holds = ours / other <= engine_ms / process_ms if real else None
            measured = f"{ours / other:.2f} times as long"
        claims.append(
            Claim(
                f"KaaS, {start} starts",
                f"{engine_ms} ms with the executor, {says} with a process ({process_ms} ms)",
                f"{ours:.2f} ms, {measured} ({other:.2f} ms)", holds,
            )
        )  # fmt: skip
    return claims
