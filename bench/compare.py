"""Two runs of the same experiments side by side: what changed, and by how much.

A change of a few percent is noise on any machine, so a value counts as changed only if it moved by
more than a tenth and, where both runs know the spread of it, the spreads do not overlap. Runs of
different machines or sizes can be looked at, but say so first.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from pathlib import Path

import msgspec
from rich.console import Console
from rich.text import Text

from dandelion.errors import InvalidInput

from .kept import read_outcomes
from .records import Metric, Outcome, Panel, Row, Unit
from .sheets import Column, measured
from .tables import print_table
from .units import bounds, clean, figure, number

NOISE = 0.10
"""Relative change that says nothing."""


class Verdict(enum.Enum):
    """On a value of two runs."""

    BETTER = "better"
    WORSE = "worse"
    SAME = "same"
    CHANGED = "changed"  # of a metric where neither direction is better
    ONLY_OLD = "only in the old run"
    ONLY_NEW = "only in the new run"


class Change(msgspec.Struct, frozen=True):
    """One value in two runs.

    Attributes:
        panel: key of the panel.
        system, x, metric: which value.
        unit: of the values.
        old, new: None where it was not measured.
        ratio: new over old, where both are there and old is not zero.
    """

    panel: str
    system: str
    x: float | str
    metric: str
    unit: Unit
    old: float | None
    new: float | None
    ratio: float | None
    verdict: Verdict


class Comparison(msgspec.Struct, frozen=True):
    """An experiment's two runs.

    Attributes:
        experiment: its name.
        old, new: where and when they ran, for people.
        warnings: why the figures may not be comparable.
        changes: every value of either run, in the order of the new one.
        verdicts: lines of the budget and claims whose verdict is another one now, as sentences.
    """

    experiment: str
    old: str
    new: str
    warnings: tuple[str, ...]
    changes: tuple[Change, ...]
    verdicts: tuple[str, ...]

    def count(self, verdict: Verdict) -> int:
        """Count the values with that verdict."""
        return sum(change.verdict is verdict for change in self.changes)


def compare(a: Outcome, b: Outcome) -> Comparison:
    """Compare the old run `a` of an experiment with the new run `b`.

    Raises:
        InvalidInput: they are runs of different experiments.
    """
    if a.experiment != b.experiment:
        said = f"'{clean(a.experiment)}' and '{clean(b.experiment)}' are different experiments"
        raise InvalidInput("compare", said)
    changes = [change for old, new in _panels(a, b) for change in _changes(old, new)]
    verdicts = (*_budget_changes(a, b), *_claim_changes(a, b))
    return Comparison(
        b.experiment, _origin(a), _origin(b), tuple(_warnings(a, b)), tuple(changes), verdicts
    )


def compare_kept(a: Path, b: Path) -> tuple[list[Comparison], list[str]]:
    """Compare outcomes that are kept in two files or two folders.

    Outcomes are paired by experiment, machine and backend; where an experiment has one outcome on
    either side, by the experiment alone.

    Returns:
        Comparisons in the order of the new ones, and sentences on outcomes without a partner.

    Raises:
        InvalidInput: nothing can be read there, or two files are of different experiments.
    """
    old, new = read_outcomes(a), read_outcomes(b)
    if a.is_file() and b.is_file():
        return [compare(old[0], new[0])], []
    found, lonely = [], []
    for outcome in new:
        partner = _partner(outcome, old, new)
        if partner is None:
            lonely.append(f"{_place(outcome)} is only in {b}")
            continue
        old.remove(partner)
        found.append(compare(partner, outcome))
    lonely += [f"{_place(outcome)} is only in {a}" for outcome in old]
    return found, lonely


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
    for said in comparison.verdicts:
        console.print(Text(f"  {said}", style="bold"))
    counts = ", ".join(f"{comparison.count(v)} {v.value}" for v in Verdict if comparison.count(v))
    console.print(Text(f"  {counts or 'nothing was measured'}", style="bold"))


_COLOURS = {Verdict.BETTER: "green", Verdict.WORSE: "red", Verdict.CHANGED: "yellow"}


def _cells(change: Change) -> list[str | Text]:
    return [
        clean(change.panel),
        clean(change.system),
        number(change.x, Unit.COUNT),
        clean(change.metric),
        figure(change.old, change.unit),
        figure(change.new, change.unit),
        figure(change.ratio, Unit.RATIO),
        Text(change.verdict.value, style=_COLOURS.get(change.verdict, "dim")),
    ]


def _panels(a: Outcome, b: Outcome) -> list[tuple[Panel, Panel]]:
    """Pair panels by key; a panel of one run only is paired with itself without rows."""
    old = {panel.key: panel for panel in a.found.panels}
    new = {panel.key: panel for panel in b.found.panels}
    keys = dict.fromkeys([*new, *old])
    return [(old.get(k) or _emptied(new[k]), new.get(k) or _emptied(old[k])) for k in keys]


def _emptied(panel: Panel) -> Panel:
    return msgspec.structs.replace(panel, rows=())


def _changes(old: Panel, new: Panel) -> list[Change]:
    rows: dict[tuple[str, float | str], list[Row | None]] = {}
    for side, panel in enumerate((new, old)):
        for row in panel.rows:
            rows.setdefault((row.system, row.x), [None, None])[side] = row
    metrics = {m.key: m for m in (*old.metrics, *new.metrics)}
    return [
        _change(new.key, metric, x, system, before, after)
        for (system, x), (after, before) in rows.items()
        for metric in metrics.values()
        if _known(before, metric) is not None or _known(after, metric) is not None
    ]


def _change(
    panel: str, metric: Metric, x: float | str, system: str, before: Row | None, after: Row | None
) -> Change:
    old, new = _known(before, metric), _known(after, metric)
    ratio = new / old if old and new is not None else None
    if before is None or after is None or old is None or new is None:
        verdict = Verdict.ONLY_NEW if old is None else Verdict.ONLY_OLD
    elif _is_noise(before, after, metric.key):
        verdict = Verdict.SAME
    elif metric.better not in ("lower", "higher"):
        verdict = Verdict.CHANGED
    else:
        verdict = Verdict.BETTER if (new < old) is (metric.better == "lower") else Verdict.WORSE
    return Change(panel, system, x, metric.name, metric.unit, old, new, ratio, verdict)


def _is_noise(before: Row, after: Row, key: str) -> bool:
    old, new = before.values[key], after.values[key]
    if abs(new - old) <= NOISE * abs(old):
        return True
    spreads = bounds(before.values, key), bounds(after.values, key)
    if spreads[0] is None or spreads[1] is None:
        return False
    return max(spreads[0][0], spreads[1][0]) <= min(spreads[0][1], spreads[1][1])


def _known(row: Row | None, metric: Metric) -> float | None:
    return measured(row, metric.key) if row is not None else None


def _budget_changes(a: Outcome, b: Outcome) -> list[str]:
    old = {(budget.path, budget.limit): budget for budget in a.found.budgets}
    said = []
    for now in b.found.budgets:
        was = old.get((now.path, now.limit))
        if was is not None and was.passes is not now.passes:
            word = "now passes" if now.passes else "FAILS now"
            said.append(
                f"budget '{clean(now.path)}' ({clean(now.limit)}) {word}: "
                f"{clean(was.measured)}, then {clean(now.measured)}"
            )
    return said


def _claim_changes(a: Outcome, b: Outcome) -> list[str]:
    old = {(claim.source, claim.says): claim for claim in a.found.claims}
    words = {True: "holds now", False: "does not hold now", None: "cannot be told now"}
    said = []
    for now in b.found.claims:
        was = old.get((now.source, now.says))
        if was is not None and was.holds is not now.holds:
            said.append(
                f"claim '{clean(now.says)}' ({clean(now.source)}) {words[now.holds]}: "
                f"{clean(was.measured)}, then {clean(now.measured)}"
            )
    return said


def _warnings(a: Outcome, b: Outcome) -> list[str]:
    said = []
    if a.machine_name != b.machine_name:
        names = f"{clean(a.machine_name)}, then {clean(b.machine_name)}"
        said.append(f"the machines differ: {names}")
    keys = dict.fromkeys([*a.machine, *b.machine])
    differ = [k for k in keys if a.machine.get(k, "") != b.machine.get(k, "")]
    if a.machine_name == b.machine_name and differ:
        pairs = (f"{k} {a.machine.get(k, 'none')}, then {b.machine.get(k, 'none')}" for k in differ)
        said.append(f"the machine changed: {clean('; '.join(pairs))}")
    if a.backend != b.backend:
        said.append(f"the backends differ: {clean(a.backend)}, then {clean(b.backend)}")
    if a.quick is not b.quick:
        said.append(f"the {'old' if a.quick else 'new'} run was a quick one, the other was not")
    if a.found.scaled != b.found.scaled:
        sizes = [clean(o.found.scaled) or "not scaled" for o in (a, b)]
        said.append(f"the sizes differ: {sizes[0]}, then {sizes[1]}")
    return said


def _partner(outcome: Outcome, old: Sequence[Outcome], new: Sequence[Outcome]) -> Outcome | None:
    same = [o for o in old if o.experiment == outcome.experiment]
    exact = [o for o in same if _place(o) == _place(outcome)]
    if exact:
        return exact[0]
    alone = sum(o.experiment == outcome.experiment for o in new) == 1
    return same[0] if len(same) == 1 and alone else None


def _place(outcome: Outcome) -> str:
    backend = f", {outcome.backend}" if outcome.backend else ""
    return clean(f"{outcome.experiment} on {outcome.machine_name}{backend}")


def _origin(outcome: Outcome) -> str:
    return clean(f"{_place(outcome)}, commit {outcome.commit or 'unknown'}, {outcome.date}")
