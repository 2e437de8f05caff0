"""How long tenants of one GPU wait when every system is offered the same load."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

from ..experiment import Bench, experiment
from ..records import Axis, Claim, Found, Look, Metric, Panel, Row, Skip, Unit
from ..systems import kaas_graphs, kaas_runs, names
from ..systems.kaas_cast import Cast, cast, shapes, warm
from ..systems.kaas_shapes import JACOBI, RESNET50
from ..systems.partitions import Exclusive
from ..systems.tenants import Tenants, closed_loop, open_loop

LATENCY = (
    Metric("p50", "median latency", Unit.US, logarithmic=True),
    Metric("p90", "90th percentile", Unit.US, logarithmic=True, drawn=False),
    Metric("p99", "99th percentile", Unit.US, logarithmic=True, drawn=False),
    Metric("achieved_per_s", "requests", Unit.PER_SECOND, drawn=False, better="higher"),
)
_OWN_PEAK = (
    "KaaS drove each system at 70 % of its own peak, which flatters those with a low one; here all "
    "are offered the same rate, and latency counts from the intended time."
)
_PATIENCE = (
    "What exclusive processes did not answer in time counts as if it had been answered when "
    "patience ended; their true latencies are longer."
)


@experiment(
    "kaas_latency",
    group="kaas",
    question="how long do tenants wait, when all systems are offered the same?",
    source="KaaS, latency with Poisson arrivals",
)
def latency(bench: Bench) -> Found:
    """Offer all systems the same rate: 70 % of what the slowest that shares the device can do."""
    if not bench.backend:
        return Found((), skips=(Skip("kaas_latency", kaas_runs.NO_DEVICE),))
    tenants = bench.pick(3, 4, 8)
    panels, claims, skips = [], [], []
    chosen = [s for s in shapes(bench) if s.name in (RESNET50.name, JACOBI.name)]
    for given in kaas_runs.fitted(bench, chosen):
        with cast(bench, given, tenants) as made, contextlib.ExitStack() as stack:
            partitions = made.partitions(tenants)
            if partitions is not None:
                made.systems.append(stack.enter_context(partitions))
            offered = 0.7 * _slowest(made)
            rows = tuple(_arrivals(made, system, offered) for system in made.systems)
        skips += [skip for skip in made.skips if skip not in skips]
        name = given.shape.name
        panels.append(
            Panel(
                f"latency_{kaas_graphs.function_name(given.shape, 0)[:-2]}",
                f"{name}: {tenants} tenants, {offered:.3g} requests/s in all",
                Axis("load"),
                LATENCY,
                rows,
                Look.BARS,
                names.EXCLUSIVE,
            )
        )
        claims += _waits(name, rows)
    return Found(
        tuple(panels),
        tuple(claims),
        skips=tuple(skips),
        scaled=kaas_runs.scaled_words(bench),
        notes=(_OWN_PEAK, _PATIENCE),
    )


def _slowest(made: Cast) -> float:
    bench = made.bench
    rates = []
    for system in made.systems:
        if isinstance(system, Exclusive):
            continue
        warm(system, made.bodies, bench)
        bench.say(f"{made.given.shape.name}: the peak of {system.name}")
        rates.append(closed_loop(system, made.bodies, seconds=bench.pick(0.15, 0.25, 0.8)).per_s)
    slowest: float = min(rates)
    return slowest


def _arrivals(made: Cast, system: Tenants, offered: float) -> Row:
    bench = made.bench
    bench.say(f"{made.given.shape.name}: {offered:.3g}/s, {system.name}")
    seconds = bench.pick(0.3, 0.8, 2.5)
    patience = bench.pick(0.3, 0.5, 3.0)
    found = open_loop(
        system,
        made.bodies,
        rate_per_s=offered,
        seconds=seconds,
        seed=bench.seed,
        patience_s=patience,
    )
    if isinstance(system, Exclusive):
        system.close()
    failed = sum(found.errors.values())
    values = found.latency.values() | {"achieved_per_s": found.per_s}
    answered = found.latency.count - failed
    note = f"{failed} not answered within {seconds + patience:g} s" if failed else ""
    return Row(system.name, "70 % of the slowest", values, answered, failed, note)


def _waits(name: str, rows: Sequence[Row]) -> list[Claim]:
    paper = {"bert": 15.0, "jacobi": 15.0}.get(name)
    medians = {row.system: row.values["p50"] for row in rows}
    lost = {row.system: row.errors for row in rows}
    ours = min((m for n, m in medians.items() if n.startswith("dandelion")), default=0.0)
    if paper is None or not ours or names.EXCLUSIVE not in medians:
        return []
    factor = medians[names.EXCLUSIVE] / ours
    at_least = "at least " if lost[names.EXCLUSIVE] else ""
    return [
        Claim(
            f"KaaS, latency of {name}",
            f"with 16 clients on 4 GPUs the median latency is about {paper:.0f} times lower than "
            "with exclusive processes, each driven at 70 % of its own peak",
            f"{at_least}{factor:.0f} times lower at the same offered rate",
            factor >= paper,
        )
    ]
