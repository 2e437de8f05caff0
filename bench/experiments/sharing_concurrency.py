"""How many workers a node chooses by itself, and what that is worth.

The shapes are those of `kaas`, each client is a tenant with constants of its own, and each asks
again as soon as it was answered. The node has the default number of workers. Systems are measured
one after the other, each alone on the device: together they would not fit its memory.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from dandelion.errors import DandelionError

from ..experiment import Bench, experiment
from ..records import Axis, Budget, Findings, Metric, Panel, Row, Skip, Unit, at_least
from ..systems import kaas_graphs, names
from ..systems.kaas_lineup import TenantLineup, fitted, scaled_words, shapes_of
from ..systems.kaas_shapes import TunedShape
from ..systems.tenant_load import closed_loop
from ..systems.tenants import Exclusive, SharedNode, Tenants, TimeSliced

RATE = Metric("achieved_per_s", "requests", Unit.PER_SECOND, better="higher")
RATIO = Metric("ratio", "over the best without a node", Unit.RATIO, drawn=False, better="higher")
AT_ONCE = Metric("at_once", "active workers, or processes", Unit.COUNT, drawn=False, better="")
EXCLUSIVE_CLIENTS = (1, 4)
"""With more clients, processes that are restarted for each request only become slower."""
LEAST_RATIO = 1.0


@dataclass(slots=True)
class Measured:
    """What one system answered, by clients: requests in a second, how many, and calls at once."""

    name: str
    rates: dict[int, float] = field(default_factory=dict)
    counts: dict[int, int] = field(default_factory=dict)
    at_once: dict[int, int] = field(default_factory=dict)


@experiment(
    "sharing_concurrency", group="sharing", needs_device=True,
    question="does the number of workers that a node chooses beat processes that share the device?",
)  # fmt: skip
def concurrency(bench: Bench) -> Findings:
    """Compare a node with default workers with MPS partitions, time slices and restarts."""
    counts = bench.pick((1, 3), (1, 4), (1, 4, 16, 32))
    panels: list[Panel] = []
    skips: dict[Skip, None] = {}
    budgets: list[Budget] = []
    for given in fitted(bench, shapes_of(bench)):
        shape = given.shape
        bodies = [kaas_graphs.body(shape, bench.seed + i) for i in range(max(counts))]
        lineup = TenantLineup(bench, given, bodies)
        rows = rows_of(_measured(lineup, counts))
        skips |= dict.fromkeys(lineup.skips)
        budgets += budgets_of(bench, shape.name, rows)
        panels.append(
            Panel(
                f"concurrency_{kaas_graphs.function_name(shape, 0)[:-2]}",
                f"{shape.name}: {shape.launches} launches of {given.blocks} blocks",
                Axis("clients", logarithmic=True), (RATE, RATIO, AT_ONCE), rows,
            )
        )  # fmt: skip
    return Findings(
        tuple(panels), budgets=tuple(budgets), skips=tuple(skips), scaled=scaled_words(bench)
    )


def _measured(lineup: TenantLineup, counts: Sequence[int]) -> list[Measured]:
    """Measure all systems of a shape."""
    bench, given, tenants = lineup.bench, lineup.given, max(counts)
    found: list[Measured] = []
    expected: list[bytes] = []

    def measure(name: str, start: Callable[[], Tenants], clients: Sequence[int]) -> None:
        lineup.say(f"starting {name}")
        try:
            with start() as system:
                lineup.check(system, expected)
                one = next((m for m in found if m.name == name), None)
                if one is None:
                    found.append(one := Measured(name))
                for count in clients:
                    _ask(lineup, system, one, count)
        except (DandelionError, OSError) as error:
            skip = Skip(f"{name}, {given.shape.name}", str(error))
            if skip not in lineup.skips:
                lineup.skips.append(skip)

    measure(names.DANDELION, lambda: _node(bench, given, tenants), counts)
    measure(names.TIME_SLICED, lambda: TimeSliced(bench.backend, given, tenants), counts)
    few = tuple(count for count in counts if count in EXCLUSIVE_CLIENTS)
    measure(names.EXCLUSIVE, lambda: Exclusive(bench.backend, given), few)
    for count in counts:
        with _partitions(lineup, count) as partitions:
            if partitions is not None:
                one = next((m for m in found if m.name == names.MPS), None)
                if one is None:
                    found.append(one := Measured(names.MPS))
                _ask(lineup, partitions, one, count)
    return found


def _node(bench: Bench, given: TunedShape, tenants: int) -> SharedNode:
    return SharedNode(bench.backend, given, tenants, workers=None)


@contextlib.contextmanager
def _partitions(lineup: TenantLineup, clients: int) -> Iterator[Tenants | None]:
    lineup.say(f"starting {clients} {names.MPS}")
    partitions = lineup.partitions(clients)
    if partitions is None:
        yield None
        return
    with partitions:
        yield partitions


def _ask(lineup: TenantLineup, system: Tenants, found: Measured, clients: int) -> None:
    """Measure a window, after the node had time to choose, and processes some calls each."""
    bench, bodies = lineup.bench, lineup.bodies[:clients]
    lineup.say(f"{clients} clients, {system.name}")
    exclusive = isinstance(system, Exclusive) and clients > 1
    if isinstance(system, SharedNode):
        closed_loop(system, bodies, seconds=bench.pick(0.1, 0.3, 8.0 if clients > 1 else 1.0))
    elif not exclusive:
        closed_loop(system, bodies, seconds=bench.pick(0.05, 0.1, 0.3), least=clients, most_s=1.5)
    seconds = bench.pick(0.15, 0.3, 1.2)
    if exclusive:
        load = closed_loop(system, bodies, seconds=0.1, least=2, most_s=bench.pick(2.0, 3.0, 6.0))
    else:
        load = closed_loop(system, bodies, seconds=seconds)
    found.rates[clients] = load.per_s
    found.counts[clients] = load.latency.count
    found.at_once[clients] = _at_once(system, clients)


def _at_once(system: Tenants, clients: int) -> int:
    if isinstance(system, SharedNode):
        return sum(workers.active for workers in system.node.capacity().workers) or 1
    return 1 if isinstance(system, Exclusive) else clients


def rows_of(found: Sequence[Measured]) -> tuple[Row, ...]:
    """Make a row for each system and number of clients."""
    rows = []
    for one in found:
        for clients, rate in one.rates.items():
            others = [m.rates.get(clients, 0.0) for m in found if m.name != names.DANDELION]
            best = max(others, default=0.0)
            values = {
                "achieved_per_s": rate,
                "ratio": rate / best if best else 1.0,
                "at_once": float(one.at_once[clients]),
            }
            rows.append(Row(one.name, clients, values, one.counts[clients]))
    return tuple(rows)


def budgets_of(bench: Bench, shape: str, rows: Sequence[Row]) -> list[Budget]:
    """Judge a GPU's values: from four clients on, no other system is faster."""
    if not bench.judges or len({row.system for row in rows}) < 2:
        return []
    return [
        at_least(
            f"{shape}, {row.x:g} clients, chosen workers over the best other system",
            row.values["ratio"], LEAST_RATIO, "x", f"{row.values['at_once']:g} workers",
        )
        for row in rows
        if row.system == names.DANDELION and isinstance(row.x, (int, float)) and row.x >= 4
    ]  # fmt: skip
