"""Many tenants on one GPU: throughput and latency, with and without an engine that they share.

Each client is a tenant with its own constants. The graphs are synthetic and have the shape of KaaS'
four models; see `dandelion.bench.systems.kaas_shapes`. KaaS' values are of 4 GPUs, ours of one, so
clients for each GPU are compared.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence

from ..experiment import Bench, experiment
from ..records import Axis, Claim, Findings, Metric, Panel, Plot, Row, Skip, Unit
from ..samples import spread
from ..systems import kaas_graphs, names
from ..systems.kaas_lineup import (
    TenantLineup,
    fitted,
    policies_of,
    scaled_words,
    shapes_of,
    tenant_lineup,
)
from ..systems.kaas_shapes import JACOBI, MICRO, RESNET50, SHAPES
from ..systems.tenant_load import TenantLoad, closed_loop, open_loop
from ..systems.tenants import Exclusive, Tenants

THROUGHPUT = Metric("achieved_per_s", "requests", Unit.PER_SECOND, better="higher")
LATENCY = (
    Metric("p50", "median latency", Unit.US, logarithmic=True),
    Metric("p90", "90th percentile", Unit.US, logarithmic=True, drawn=False),
    Metric("p99", "99th percentile", Unit.US, logarithmic=True, drawn=False),
    Metric("achieved_per_s", "requests", Unit.PER_SECOND, drawn=False, better="higher"),
)
COLLAPSES = {"resnet50": 110.0, "bert": 64.0, "jacobi": 30.0, "cGEMM": 60.0}
"""KaaS' throughput over that of exclusive processes, with more clients than GPUs."""

AGAINST_MPS = {"resnet50": 0.85, "bert": 0.62, "jacobi": 0.23, "cGEMM": 0.60}
"""KaaS' throughput over that of MPS partitions, with 16 clients on 4 GPUs."""

_LONG_US = 1_000_000.0
_NO_ZEROING = (
    "Processes without an engine keep what the last request left in their memory; the engine "
    "zeroes it, and closes each tenant's constants to all others."
)
_OWN_PEAK = (
    "KaaS drove each system at 70 % of its own peak, which flatters those with a low one; here all "
    "are offered the same rate, and latency counts from the intended time."
)
_PATIENCE = (
    "What exclusive processes did not answer in time counts as if it had been answered when "
    "time limit ended; their true latencies are longer."
)


@experiment(
    "kaas_throughput", group="kaas_load", needs_device=True,
    question="what becomes of throughput when clients outnumber GPUs?",
    source="KaaS, throughput against the number of clients",
)  # fmt: skip
def throughput(bench: Bench) -> Findings:
    """Ask with more and more clients, each of which waits for its answer."""
    counts = bench.pick((1, 3), (1, 2, 6), (1, 4, 16, 32))
    panels: list[Panel] = []
    skips: dict[Skip, None] = {}
    for given in fitted(bench, shapes_of(bench)):
        with tenant_lineup(bench, given, max(counts)) as lineup:
            rows = tuple(row for clients in counts for row in _window(lineup, clients))
        skips |= dict.fromkeys(lineup.skips)
        shape = given.shape
        panels.append(
            Panel(
                f"throughput_{kaas_graphs.function_name(shape, 0)[:-2]}",
                f"{shape.name}: {shape.launches} launches of {given.blocks} blocks",
                Axis("clients", logarithmic=True), (THROUGHPUT,), rows, baseline=names.EXCLUSIVE,
            )
        )  # fmt: skip
    nearest = min(counts, key=lambda count: abs(count - 4))
    return Findings(
        tuple(panels),
        tuple(collapses(panels, counts) + partitioned(panels, nearest)),
        skips=tuple(skips),
        scaled=scaled_words(bench),
        notes=(
            "One GPU; unless scaled, requests take as long here as KaaS' did on a V100.",
            _NO_ZEROING,
        ),
    )


def _window(lineup: TenantLineup, clients: int) -> list[Row]:
    """Measure all systems with so many clients, in turns."""
    bench = lineup.bench
    seconds, rounds = bench.pick(0.15, 0.25, 0.6), bench.pick(1, 2, 2)
    if clients * lineup.given.shape.target_us > _LONG_US:
        rounds = 1  # every client asks at least once, which takes as long as both windows
    loads: dict[str, list[TenantLoad]] = {}
    with contextlib.ExitStack() as stack:
        partitions = lineup.partitions(clients)
        more = [stack.enter_context(partitions)] if partitions is not None else []
        systems = [*lineup.systems, *more]
        for system in systems:
            lineup.warm(system, clients)
        for number in range(rounds):
            for system in systems:
                if number and isinstance(system, Exclusive):
                    continue  # restarts do not differ much, and take long
                lineup.say(f"{clients} clients, {system.name}")
                found = _asked(lineup, system, clients, seconds)
                loads.setdefault(system.name, []).append(found)
                if isinstance(system, Exclusive):
                    system.close()  # an idle process would keep its memory from the others
    return [
        Row(name, clients, spread("achieved_per_s", [load.per_s for load in found]),
            sum(load.latency.count for load in found), sum(load.failed for load in found))
        for name, found in loads.items()
    ]  # fmt: skip


def _asked(lineup: TenantLineup, system: Tenants, clients: int, seconds: float) -> TenantLoad:
    """Measure a window; for processes that are restarted for each request, some restarts."""
    bodies = lineup.bodies[:clients]
    if not isinstance(system, Exclusive) or clients == 1:
        return closed_loop(system, bodies, seconds=seconds)
    system.close()  # the first request is a switch, too
    least, most_s = lineup.bench.pick((1, 2.0), (2, 3.0), (2, 10.0))
    return closed_loop(system, bodies, seconds=0.1, least=least, most_s=most_s)


def _rates(panel: Panel, clients: float) -> dict[str, float]:
    return {row.system: row.values["achieved_per_s"] for row in panel.rows if row.x == clients}


def _ours(values: Mapping[str, float]) -> list[float]:
    return [value for name, value in values.items() if name.startswith("dandelion")]


def collapses(panels: Sequence[Panel], counts: Sequence[int]) -> list[Claim]:
    """KaaS' main claim: how many times the throughput of exclusive processes."""
    claims = []
    for panel, shape in zip(panels, SHAPES, strict=False):
        many = [c for c in counts if c > 1]
        factors = [
            max(ours) / rates[names.EXCLUSIVE]
            for rates in (_rates(panel, clients) for clients in many)
            if rates.get(names.EXCLUSIVE) and (ours := _ours(rates))
        ]
        if not factors:
            continue
        says = (
            f"an engine has {COLLAPSES[shape.name]:.0f} times the throughput of exclusive "
            "processes, once clients outnumber GPUs"
        )
        measured = (
            f"{min(factors):.0f} to {max(factors):.0f} times, with {many[0]} to {many[-1]} "
            "clients on one device"
        )
        source = f"KaaS, throughput of {shape.name}"
        claims.append(Claim(source, says, measured, min(factors) >= 30))
    return claims


def partitioned(panels: Sequence[Panel], clients: int) -> list[Claim]:
    """What KaaS measured and did not plot: partitions are faster than a serial engine."""
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
        best = max(_ours(rates)) / rates[names.MPS]
        measured = (
            f"sequential {ours:.2f} times, the best of ours {best:.2f} times, with {clients} "
            "clients on one device"
        )
        claims.append(Claim(source, says, measured, ours < 1))
    return claims


@experiment(
    "kaas_policies", group="kaas_load", needs_device=True,
    question="what do policies change when many tenants share two engines?",
    source="KaaS, throughput with the policies balance, affinity and exclusive",
)  # fmt: skip
def policies(bench: Bench) -> Findings:
    """Ask nodes with different policies, in turns; see `policies_of` for the memory they have."""
    counts = bench.pick((2,), (1, 4), (1, 4, 16))
    (given,) = fitted(bench, (MICRO if bench.quick else RESNET50,))
    with tenant_lineup(bench, given, max(counts), policies_of) as lineup:
        rows = tuple(row for clients in counts for row in _window(lineup, clients))
    panel = Panel(
        "policies", f"{given.shape.name}: two workers with room for half of the constants each",
        Axis("clients", logarithmic=True), (THROUGHPUT,), rows, baseline=names.CONCURRENT,
    )  # fmt: skip
    return Findings(
        (panel,), tuple(chosen_engines(panel, max(counts), bench)), skips=tuple(lineup.skips),
        scaled=scaled_words(bench),
    )  # fmt: skip


def chosen_engines(panel: Panel, clients: int, bench: Bench) -> list[Claim]:
    """What KaaS says of policies: tenants should keep their engines, and share them."""
    rates = _rates(panel, clients)
    affinity, balance, exclusive = (
        rates.get(f"{names.CONCURRENT}, {policy}", 0.0)
        for policy in ("affinity", "balance", "exclusive")
    )
    if not (affinity and balance and exclusive):
        return []
    kept, shared = affinity / balance, affinity / exclusive
    return [
        Claim(
            "KaaS, affinity against balance",
            "with 16 clients of cGEMM on 4 GPUs, affinity has 7 times the throughput of balance, "
            "since each GPU has room for 7 clients; with resnet50, which fits, there is no gain",
            f"{kept:.2f} times with {clients} clients, where each worker has room for half of them",
            kept > 1.1 if bench.judges else None,
        ),
        Claim(
            "KaaS, affinity against exclusive",
            "with 16 clients of resnet50 on 4 GPUs, affinity has 116 times the throughput of "
            "exclusive processes, which are restarted for each tenant",
            f"{shared:.2f} times that of the policy exclusive with {clients} clients, which "
            "restarts no process",
        ),
    ]


@experiment(
    "kaas_latency", group="kaas", needs_device=True,
    question="how long do tenants wait, when all systems are offered the same?",
    source="KaaS, latency with Poisson arrivals",
)  # fmt: skip
def latency(bench: Bench) -> Findings:
    """Offer all systems the same rate: 70 % of the peak of the slowest that shares the device."""
    tenants = bench.pick(3, 4, 8)
    panels: list[Panel] = []
    claims: list[Claim] = []
    skips: dict[Skip, None] = {}
    chosen = [s for s in shapes_of(bench) if s.name in (RESNET50.name, JACOBI.name)]
    for given in fitted(bench, chosen):
        with tenant_lineup(bench, given, tenants) as lineup, contextlib.ExitStack() as stack:
            partitions = lineup.partitions(tenants)
            if partitions is not None:
                lineup.systems.append(stack.enter_context(partitions))
            offered = 0.7 * _slowest(lineup)
            rows = tuple(_arrivals(lineup, system, offered) for system in lineup.systems)
        skips |= dict.fromkeys(lineup.skips)
        name = given.shape.name
        panels.append(
            Panel(
                f"latency_{kaas_graphs.function_name(given.shape, 0)[:-2]}",
                f"{name}: {tenants} tenants, {offered:.3g} requests/s in all",
                Axis("load"), LATENCY, rows, Plot.BARS, names.EXCLUSIVE,
            )
        )  # fmt: skip
        claims += waits(name, rows)
    return Findings(
        tuple(panels), tuple(claims), skips=tuple(skips), scaled=scaled_words(bench),
        notes=(_OWN_PEAK, _PATIENCE),
    )  # fmt: skip


def _slowest(lineup: TenantLineup) -> float:
    rates = []
    for system in lineup.systems:
        if not isinstance(system, Exclusive):
            lineup.warm(system, len(lineup.bodies))
            lineup.say(f"the peak of {system.name}")
            seconds = lineup.bench.pick(0.15, 0.25, 0.8)
            rates.append(closed_loop(system, lineup.bodies, seconds=seconds).per_s)
    return min(rates)


def _arrivals(lineup: TenantLineup, system: Tenants, offered: float) -> Row:
    bench = lineup.bench
    lineup.say(f"{offered:.3g}/s, {system.name}")
    seconds, patience_s = bench.pick(0.3, 0.8, 2.5), bench.pick(0.3, 0.5, 3.0)
    found = open_loop(
        system, lineup.bodies, rate_per_s=offered, seconds=seconds, seed=bench.seed,
        patience_s=patience_s,
    )  # fmt: skip
    if isinstance(system, Exclusive):
        system.close()
    values = found.latency.values() | {"achieved_per_s": found.per_s}
    failed, answered = found.failed, found.latency.count - found.failed
    note = f"{failed} not answered within {seconds + patience_s:g} s" if failed else ""
    return Row(system.name, "70 % of the slowest", values, answered, failed, note)


def waits(name: str, rows: Sequence[Row]) -> list[Claim]:
    """How many times lower the median latency is than with exclusive processes."""
    paper = {"bert": 15.0, "jacobi": 15.0}.get(name)
    medians = {row.system: row.values["p50"] for row in rows}
    ours = min(_ours(medians), default=0.0)
    if paper is None or not ours or names.EXCLUSIVE not in medians:
        return []
    factor = medians[names.EXCLUSIVE] / ours
    unanswered = any(row.errors for row in rows if row.system == names.EXCLUSIVE)
    return [
        Claim(
            f"KaaS, latency of {name}",
            f"with 16 clients on 4 GPUs the median latency is about {paper:.0f} times lower than "
            "with exclusive processes, each driven at 70 % of its own peak",
            f"{'at least ' if unanswered else ''}{factor:.0f} times lower at the same offered rate",
            factor >= paper,
        )
    ]
