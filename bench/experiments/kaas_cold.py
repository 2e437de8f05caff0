"""What a cold start costs a tenant: of a function in an engine that is up, and of a process.

KaaS' test model is three matrix multiplications in a row. Its executor was up, too, when it was
measured cold; a process was not, which is the point.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence

from dandelion.errors import InternalError

from ..experiment import Bench, experiment
from ..records import Axis, Claim, Found, Look, Metric, Panel, Row, Skip, Unit
from ..systems import kaas_graphs, kaas_runs, names
from ..systems.kaas_shapes import MICRO, Tuned
from ..systems.partitions import TenantProcess
from ..systems.tenant_process import Start
from ..systems.tenants import Dandelion

STAGES = {
    "start": "process and imports",
    "device": "open the device",
    "load": "code and constants",
    "plan": "plan, code and constants",
    "copy_in": "copy in",
    "kernels": "kernels",
    "copy_out": "copy out and wait",
    "run": "request",
    "dispatch": "everything else",
}
METRICS = (
    *(Metric(key, name, Unit.US) for key, name in STAGES.items()),
    Metric("total", "total", Unit.US, drawn=False),
)
PAPER_MS = {"warm": (10.27, 9.53), "cold": (21.54, 438.13)}
"""KaaS' totals, of its executor and of a process."""

Stages = dict[str, float]


@experiment(
    "kaas_cold",
    group="kaas",
    question="what does a tenant's first request cost, with an engine and with a process?",
    source="KaaS, breakdown of cold and warm starts",
)
def cold(bench: Bench) -> Found:
    """Time first and later requests of tenants, by their stages."""
    if not bench.backend:
        return Found((), skips=(Skip("kaas_cold", kaas_runs.NO_DEVICE),))
    (given,) = kaas_runs.fitted(bench, [MICRO])
    tenants = bench.pick(3, 8, 10)
    engine = _engine(bench, given, tenants)
    process = _process(bench, given, bench.pick(2, 5, 6))
    rows = tuple(
        Row(system, start, _medians(found), len(found))
        for system, starts in ((names.SEQUENTIAL, engine), (names.EXCLUSIVE, process))
        for start, found in starts.items()
    )
    title = f"{given.shape.name}: first requests (cold) and later ones (warm), by stage"
    panel = Panel("starts", title, Axis("start"), METRICS, rows, Look.STACKED, names.EXCLUSIVE)
    return Found(
        (panel,),
        tuple(_claims(rows, real=bench.gpu and not bench.quick)),
        scaled=kaas_runs.scaled_words(bench),
        notes=(
            "Code was compiled before, and lies in the cache of compiled code.",
            "Cold in the engine: no request of this tenant was ever seen; the engine is up.",
        ),
    )


def _engine(bench: Bench, given: Tuned, tenants: int) -> dict[str, list[Stages]]:
    """Time the first request of each tenant but one, and one that comes later."""
    first, later = [], []
    with Dandelion(bench.backend, given, tenants) as node:
        for tenant in range(tenants):
            bench.say(f"engine, tenant {tenant}")
            body = kaas_graphs.body(given.shape, bench.seed)
            took = node.stages(tenant, body)
            if tenant:  # the first one's request compiles
                first.append(took)
            for _ in range(3):
                node.stages(tenant, body)
            later += [node.stages(tenant, body) for _ in range(5)]
    return {"cold": first, "warm": later}


def _process(bench: Bench, given: Tuned, count: int) -> dict[str, list[Stages]]:
    """Start a process again and again; time its first request and some later ones."""
    first, later, replies = [], [], set()
    body = kaas_graphs.body(given.shape, bench.seed)
    for number in range(count):
        bench.say(f"process {number}")
        began = time.perf_counter_ns()
        with TenantProcess(Start(bench.backend, given)) as process:
            stages = process.wait().stages_us
            replies.add(process.run(body))
            total = (time.perf_counter_ns() - began) / 1e3
            first.append(stages | {"run": total - sum(stages.values()), "total": total})
            for _ in range(5):
                began = time.perf_counter_ns()
                process.run(body)
                took = (time.perf_counter_ns() - began) / 1e3
                later.append({"run": took, "total": took})
    if len(replies) != 1:
        raise InternalError("a process gives another result after a restart")
    return {"cold": first, "warm": later}


def _medians(found: Sequence[Stages]) -> Stages:
    return {key: statistics.median(stages[key] for stages in found) for key in found[0]}


def _claims(rows: Sequence[Row], *, real: bool) -> list[Claim]:
    totals = {(row.system, row.x): row.values["total"] / 1e3 for row in rows}
    claims = []
    holds: bool | None
    for start, (engine_ms, process_ms) in PAPER_MS.items():
        ours = totals[names.SEQUENTIAL, start]
        other = totals[names.EXCLUSIVE, start]
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
                f"{ours:.2f} ms, {measured} ({other:.2f} ms)",
                holds,
            )
        )
    return claims
