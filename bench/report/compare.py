"""Two runs of the same experiments side by side: what changed, and by how much.

A change of a few percent is noise on any machine. So a value counts as changed only if it moved by
more than a tenth and, where both runs have a spread, the spreads do not overlap. Runs of different
machines or sizes can be compared, with a warning.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from pathlib import Path

import msgspec
from rich.console import Console
from rich.text import Text

from dandelion.errors import InvalidInput

from ..records import ExperimentResult, Metric, Panel, Row, Unit, read_results
from .tables import Column, measured, print_table
from .units import bounds, clean, figure, number

NOISE = 0.10
"""Relative change that means nothing."""


class ChangeVerdict(enum.Enum):
    """Of a value in two runs."""

    BETTER = "better"
    WORSE = "worse"
    SAME = "same"
    CHANGED = "changed"  # of a metric where neither direction is better
    ONLY_OLD = "only in the old run"
    ONLY_NEW = "only in the new run"


class ValueChange(msgspec.Struct, frozen=True):
    """One value in two runs.

    Attributes:
        panel, system, x, metric: which value.
        old, new: None where it was not measured.
        ratio: new over old, where both were measured and old is not zero.
    """

    panel: str
    system: str
    x: float | str
    metric: str
    unit: Unit
    old: float | None
    new: float | None
    ratio: float | None
    verdict: ChangeVerdict


class Comparison(msgspec.Struct, frozen=True):
    """An experiment's two runs.

    Attributes:
        old, new: where and when they ran, for people.
        warnings: why the values may not be comparable.
        changes: every value of either run, in the order of the new one.
        verdicts: budgets and claims whose verdict changed, as sentences.
    """

    experiment: str
    old: str
    new: str
    warnings: tuple[str, ...]
    changes: tuple[ValueChange, ...]
    verdicts: tuple[str, ...]

    def count(self, verdict: ChangeVerdict) -> int:
        """Count the values with that verdict."""
        return sum(change.verdict is verdict for change in self.changes)


def compare(a: ExperimentResult, b: ExperimentResult) -> Comparison:
    """Compare the old run `a` of an experiment with the new run `b`.

    Raises:
        InvalidInput: they are runs of different experiments.
    """
    if a.experiment != b.experiment:
        what = f"'{clean(a.experiment)}' and '{clean(b.experiment)}' are different experiments"
        raise InvalidInput("compare", what)
    changes = [change for old, new in _panels(a, b) for change in _changes(old, new)]
    verdicts = (*_budget_changes(a, b), *_claim_changes(a, b))
    return Comparison(
        b.experiment, _origin(a), _origin(b), tuple(_warnings(a, b)), tuple(changes), verdicts
    )


def compare_saved(a: Path, b: Path) -> tuple[list[Comparison], list[str]]:
    """Compare results that are saved in two files or two folders.

    Results are paired by experiment, machine and backend; where an experiment has one result on
    either side, by the experiment alone.

    Returns:
        Comparisons in the order of the new ones, and sentences about results without a partner.

    Raises:
        InvalidInput: nothing can be read there, or two files are of different experiments.
    """
    old, new = read_results(a), read_results(b)
    if a.is_file() and b.is_file():
        return [compare(old[0], new[0])], []
    comparisons, unpaired = [], []
    for result in new:
        partner = _partner(result, old, new)
        if partner is None:
            unpaired.append(f"{_place(result)} is only in {b}")
            continue
        old.remove(partner)
        comparisons.append(compare(partner, result))
    return comparisons, unpaired + [f"{_place(result)} is only in {a}" for result in old]


def print_comparison(comparison: Comparison, console: Console) -> None:
    """Print what changed between two runs of an experiment."""
    console.print()
    console.print(Text(clean(comparison.experiment), style="bold"))
    console.print(Text(f"old: {comparison.old}\nnew: {comparison.new}", style="dim"))
    for warning in comparison.warnings:
        console.print(Text(f"NOT COMPARABLE: {warning}", style="bold yellow"))
    titles = ("panel", "system", "x", "metric", "old", "new", "new / old", "")
    columns = [Column(t, t in ("old", "new", "new / old")) for t in titles]
    print_table(console, columns, [_cells(change) for change in comparison.changes])
    for sentence in comparison.verdicts:
        console.print(Text(f"  {sentence}", style="bold"))
    counts = [f"{n} {v.value}" for v in ChangeVerdict if (n := comparison.count(v))]
    console.print(Text(f"  {', '.join(counts) or 'nothing was measured'}", style="bold"))


_COLOURS = {
    ChangeVerdict.BETTER: "green", ChangeVerdict.WORSE: "red", ChangeVerdict.CHANGED: "yellow",
}  # fmt: skip


def _cells(change: ValueChange) -> list[str | Text]:
    return [
        clean(change.panel), clean(change.system), number(change.x, Unit.COUNT),
        clean(change.metric), figure(change.old, change.unit), figure(change.new, change.unit),
        figure(change.ratio, Unit.RATIO),
        Text(change.verdict.value, style=_COLOURS.get(change.verdict, "dim")),
    ]  # fmt: skip


def _panels(a: ExperimentResult, b: ExperimentResult) -> list[tuple[Panel, Panel]]:
    """Pair panels by key; a panel of one run only is paired with itself without rows."""
    old = {panel.key: panel for panel in a.found.panels}
    new = {panel.key: panel for panel in b.found.panels}
    empty = {k: msgspec.structs.replace(p, rows=()) for k, p in (old | new).items()}
    return [(old.get(k, empty[k]), new.get(k, empty[k])) for k in dict.fromkeys([*new, *old])]


def _changes(old: Panel, new: Panel) -> list[ValueChange]:
    rows: dict[tuple[str, float | str], list[Row | None]] = {}
    for side, panel in enumerate((new, old)):
        for row in panel.rows:
            rows.setdefault((row.system, row.x), [None, None])[side] = row
    metrics = {m.key: m for m in (*old.metrics, *new.metrics)}
    found = [
        _change(new.key, metric, x, system, before, after)
        for (system, x), (after, before) in rows.items()
        for metric in metrics.values()
    ]
    return [change for change in found if change.old is not None or change.new is not None]


def _change(
    panel: str, metric: Metric, x: float | str, system: str, before: Row | None, after: Row | None
) -> ValueChange:
    old = measured(before, metric.key) if before is not None else None
    new = measured(after, metric.key) if after is not None else None
    ratio = new / old if old and new is not None else None
    if before is None or after is None or old is None or new is None:
        verdict = ChangeVerdict.ONLY_NEW if old is None else ChangeVerdict.ONLY_OLD
    elif _is_noise(before, after, metric.key):
        verdict = ChangeVerdict.SAME
    elif metric.better not in ("lower", "higher"):
        verdict = ChangeVerdict.CHANGED
    else:
        better = (new < old) is (metric.better == "lower")
        verdict = ChangeVerdict.BETTER if better else ChangeVerdict.WORSE
    return ValueChange(panel, system, x, metric.name, metric.unit, old, new, ratio, verdict)


def _is_noise(before: Row, after: Row, key: str) -> bool:
    old, new = before.values[key], after.values[key]
    if abs(new - old) <= NOISE * abs(old):
        return True
    spreads = bounds(before.values, key), bounds(after.values, key)
    if spreads[0] is None or spreads[1] is None:
        return False
    return max(spreads[0][0], spreads[1][0]) <= min(spreads[0][1], spreads[1][1])


def _budget_changes(a: ExperimentResult, b: ExperimentResult) -> list[str]:
    old = {(budget.path, budget.limit): budget for budget in a.found.budgets}
    return [
        f"budget '{clean(now.path)}' ({clean(now.limit)}) "
        f"{'now passes' if now.passes else 'FAILS now'}: "
        f"{clean(was.measured)}, then {clean(now.measured)}"
        for now in b.found.budgets
        if (was := old.get((now.path, now.limit))) and was.passes is not now.passes
    ]


def _claim_changes(a: ExperimentResult, b: ExperimentResult) -> list[str]:
    old = {(claim.source, claim.says): claim for claim in a.found.claims}
    words = {True: "holds now", False: "does not hold now", None: "cannot be told now"}
    return [
        f"claim '{clean(now.says)}' ({clean(now.source)}) {words[now.holds]}: "
        f"{clean(was.measured)}, then {clean(now.measured)}"
        for now in b.found.claims
        if (was := old.get((now.source, now.says))) and was.holds is not now.holds
    ]


def _warnings(a: ExperimentResult, b: ExperimentResult) -> list[str]:
    warnings = []
    keys = dict.fromkeys([*a.machine, *b.machine])
    differ = [k for k in keys if a.machine.get(k, "") != b.machine.get(k, "")]
    if a.machine_name != b.machine_name:
        names = f"{clean(a.machine_name)}, then {clean(b.machine_name)}"
        warnings.append(f"the machines differ: {names}")
    elif differ:
        pairs = (f"{k} {a.machine.get(k, 'none')}, then {b.machine.get(k, 'none')}" for k in differ)
        warnings.append(f"the machine changed: {clean('; '.join(pairs))}")
    if a.backend != b.backend:
        warnings.append(f"the backends differ: {clean(a.backend)}, then {clean(b.backend)}")
    if a.quick is not b.quick:
        which = "old" if a.quick else "new"
        warnings.append(f"the {which} run was a quick one, the other was not")
    if a.found.scaled != b.found.scaled:
        sizes = [clean(o.found.scaled) or "not scaled" for o in (a, b)]
        warnings.append(f"the sizes differ: {sizes[0]}, then {sizes[1]}")
    return warnings


def _partner(
    result: ExperimentResult, old: Sequence[ExperimentResult], new: Sequence[ExperimentResult]
) -> ExperimentResult | None:
    same = [o for o in old if o.experiment == result.experiment]
    exact = [o for o in same if _place(o) == _place(result)]
    if exact:
        return exact[0]
    alone = sum(o.experiment == result.experiment for o in new) == 1
    return same[0] if len(same) == 1 and alone else None


def _place(result: ExperimentResult) -> str:
    backend = f", {result.backend}" if result.backend else ""
    return clean(f"{result.experiment} on {result.machine_name}{backend}")


def _origin(result: ExperimentResult) -> str:
    return clean(f"{_place(result)}, commit {result.commit or 'unknown'}, {result.date}")
