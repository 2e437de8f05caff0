"""Many tenants on one GPU: throughput, with and without an engine that they share.

Each client is a tenant with constants of its own. The graphs are synthetic and have the shape of
KaaS' four models; see `dandelion.bench.systems.kaas_shapes`. KaaS' figures are of 4 GPUs, ours of
one, so it is clients for each GPU that compare.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from ..experiment import Bench, experiment
from ..records import Axis, Claim, Found, Metric, Panel, Row, Skip, Unit
from ..systems import kaas_graphs, kaas_runs, names
from ..systems.kaas_cast import Cast, cast, shapes, warm
from ..systems.kaas_shapes import SHAPES, Tuned
from ..systems.partitions import Exclusive
from ..systems.tenants import Asked, Tenants, closed_loop

THROUGHPUT = Metric("achieved_per_s", "requests", Unit.PER_SECOND, better="higher")
COLLAPSES = {"resnet50": 110.0, "bert": 64.0, "jacobi": 30.0, "cGEMM": 60.0}
"""How many times KaaS' throughput was that of exclusive processes, with more clients than GPUs."""

AGAINST_MPS = {"resnet50": 0.85, "bert": 0.62, "jacobi": 0.23, "cGEMM": 0.60}
"""KaaS' throughput over that of MPS partitions, with 16 clients on 4 GPUs."""

_LONG_US = 1_000_000.0
_KEPT = (
    "Processes without an engine keep what the last request left in their memory; the engine "
    "zeroes it, and closes each tenant's constants to all others."
)


@experiment(
    "kaas_throughput",
    group="kaas_load",
    question="what becomes of throughput when clients outnumber GPUs?",
    source="KaaS, throughput against the number of clients",
)
def throughput(bench: Bench) -> Found:
    """Ask with more and more clients, each of which waits for its answer."""
    if not bench.backend:
        return Found((), skips=(Skip("kaas_throughput", kaas_runs.NO_DEVICE),))
    counts = bench.pick((1, 3), (1, 2, 6), (1, 4, 16, 32))
    panels, skips = [], []
    for given in kaas_runs.fitted(bench, shapes(bench)):
        with cast(bench, given, max(counts)) as made:
            rows = [row for clients in counts for row in _window(made, clients)]
        skips += [skip for skip in made.skips if skip not in skips]
        panels.append(_panel(given, tuple(rows)))
    return Found(
        tuple(panels),
        tuple(_collapses(panels, counts) + _partitioned(panels, _nearest(counts, 4))),
        skips=tuple(skips),
        scaled=kaas_runs.scaled_words(bench),
        notes=(
            "One GPU; unless scaled, requests take as long here as KaaS' did on a V100.",
            _KEPT,
        ),
    )


def _panel(given: Tuned, rows: tuple[Row, ...]) -> Panel:
    shape = given.shape
    return Panel(
        f"throughput_{kaas_graphs.function_name(shape, 0)[:-2]}",
        f"{shape.name}: {shape.launches} launches of {given.blocks} blocks",
        Axis("clients", logarithmic=True),
        (THROUGHPUT,),
        rows,
        baseline=names.EXCLUSIVE,
    )


def _window(made: Cast, clients: int) -> list[Row]:
    """Measure all systems with so many clients, in turns."""
    bench = made.bench
    seconds, rounds = bench.pick(0.15, 0.25, 0.6), bench.pick(1, 2, 2)
    if clients * made.given.shape.target_us > _LONG_US:
        rounds = 1  # everybody asks once at least, which takes as long as both windows
    partitions = made.partitions(clients)
    systems = [*made.systems, *([partitions] if partitions is not None else [])]
    rates: dict[str, list[float]] = {system.name: [] for system in systems}
    counts, errors = dict.fromkeys(rates, 0), dict.fromkeys(rates, 0)
    try:
        for system in systems:
            warm(system, made.bodies[:clients], bench)
        for number in range(rounds):
            for system in systems:
                if number and isinstance(system, Exclusive):
                    continue  # restarts do not differ much, and take long
                bench.say(f"{made.given.shape.name}: {clients} clients, {system.name}")
                found = _asked(system, made.bodies[:clients], seconds, bench)
                rates[system.name].append(found.per_s)
                counts[system.name] += found.latency.count
                errors[system.name] += sum(found.errors.values())
                if isinstance(system, Exclusive):
                    system.close()  # an idle process would keep its memory from the others
    finally:
        if partitions is not None:
            partitions.close()
    return [
        Row(name, clients, _spread(found), counts[name], errors[name])
        for name, found in rates.items()
    ]


def _spread(rates: list[float]) -> dict[str, float]:
    values = {"achieved_per_s": statistics.median(rates)}
    if len(rates) > 1:
        values |= {"achieved_per_s_low": min(rates), "achieved_per_s_high": max(rates)}
    return values


def _asked(system: Tenants, bodies: Sequence[bytes], seconds: float, bench: Bench) -> Asked:
    """Measure a window; for processes that are restarted for each request, some restarts."""
    found: Asked
    if isinstance(system, Exclusive) and len(bodies) > 1:
        system.close()  # it begins with a switch, as it goes on
        least, most = bench.pick((1, 2.0), (2, 3.0), (2, 10.0))
        found = closed_loop(system, bodies, seconds=0.1, least=least, most_s=most)
    else:
        found = closed_loop(system, bodies, seconds=seconds)
    return found


def _rates(panel: Panel, clients: float) -> dict[str, float]:
    return {row.system: row.values["achieved_per_s"] for row in panel.rows if row.x == clients}


def _ours(rates: dict[str, float]) -> list[float]:
    return [rate for name, rate in rates.items() if name.startswith("dandelion")]


def _collapses(panels: Sequence[Panel], counts: Sequence[int]) -> list[Claim]:
    """KaaS' headline: how many times the throughput of exclusive processes."""
    claims = []
    for panel, shape in zip(panels, SHAPES, strict=False):
        many = [c for c in counts if c > 1]
        found = [_rates(panel, clients) for clients in many]
        factors = [
            max(ours) / r[names.EXCLUSIVE]
            for r in found
            if r.get(names.EXCLUSIVE) and (ours := _ours(r))
        ]
        if not factors:
            continue
        paper = COLLAPSES[shape.name]
        claims.append(
            Claim(
                f"KaaS, throughput of {shape.name}",
                f"an engine has {paper:.0f} times the throughput of exclusive processes, once "
                "clients outnumber GPUs",
                f"{min(factors):.0f} to {max(factors):.0f} times, with {many[0]} to {many[-1]} "
                "clients on one device",
                min(factors) >= 30,
            )
        )
    return claims


def _nearest(counts: Sequence[int], to: int) -> int:
    return min(counts, key=lambda count: abs(count - to))


def _partitioned(panels: Sequence[Panel], clients: int) -> list[Claim]:
    """What KaaS measured and did not plot: partitions beat a serial engine."""
    claims = []
    for panel, shape in zip(panels, SHAPES, strict=False):
        rates = _rates(panel, clients)
        says = (
            f"a serial engine has {AGAINST_MPS[shape.name]} times the throughput of MPS partitions "
            "with 4 clients for each GPU"
        )
        source = f"KaaS, {shape.name} against MPS partitions (measured, not plotted)"
        if names.MPS not in rates or names.SEQUENTIAL not in rates:
            claims.append(Claim(source, says, "there are no MPS partitions here"))
            continue
        ours = rates[names.SEQUENTIAL] / rates[names.MPS]
        best = max(_ours(rates))
        measured = (
            f"sequential {ours:.2f} times, the best of ours {best / rates[names.MPS]:.2f} times, "
            f"with {clients} clients on one device"
        )
        claims.append(Claim(source, says, measured, ours < 1))
    return claims
