"""What an experiment found, in a terminal."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal

from rich import box
from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from .records import Budget, Claim, Found, Outcome, Panel
from .sheets import Column, sheet_of
from .units import clean

VERDICTS = {True: "holds", False: "does not hold", None: "cannot tell"}
"""Of a claim, for people."""

_COLOURS = {True: "green", False: "red", None: "yellow"}


def print_outcome(outcome: Outcome, console: Console) -> None:
    """Print everything that one run of an experiment found.

    Names and sentences of the outcome are printed as they are; none of them is markup.
    """
    found = outcome.found
    console.print()
    console.print(Text(f"{clean(outcome.experiment)}: {clean(outcome.question)}", style="bold"))
    console.print(Text(_origin(outcome), style="dim"))
    for warning in warnings_of(outcome):
        console.print(Text(warning, style="bold yellow"))
    for panel in found.panels:
        _print_panel(panel, console)
    _print_claims(found.claims, console)
    _print_budgets(found.budgets, console)
    _print_remarks(found, console)


def warnings_of(outcome: Outcome) -> list[str]:
    """Say what keeps the figures of an outcome from being the full ones, in sentences."""
    said = []
    if outcome.quick:
        said.append("QUICK RUN: the figures are only indications.")
    if outcome.found.scaled:
        said.append(f"SCALED: {clean(outcome.found.scaled)}")
    return said


def print_table(
    console: Console, columns: Sequence[Column], rows: Iterable[Sequence[str | Text]]
) -> None:
    """Print a table of cells; figures to the right."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for column in columns:
        side: Literal["left", "right"] = "right" if column.figures else "left"
        table.add_column(Text(column.title), justify=side, overflow="fold")
    for row in rows:
        table.add_row(*(Text(cell) if isinstance(cell, str) else cell for cell in row))
    console.print(Padding(table, (0, 0, 0, 2)))


def _origin(outcome: Outcome) -> str:
    parts = [outcome.source, outcome.machine_name, outcome.backend, outcome.commit, outcome.date]
    return clean(", ".join(p for p in (*parts, f"took {outcome.duration_s:.1f} s") if p))


def _print_panel(panel: Panel, console: Console) -> None:
    console.print()
    console.print(Text(clean(panel.title), style="underline"))
    if not panel.rows:
        console.print(Text("  nothing was measured", style="dim"))
        return
    sheet = sheet_of(panel)
    print_table(console, sheet.columns, sheet.rows)


def _print_claims(claims: Sequence[Claim], console: Console) -> None:
    if not claims:
        return
    console.print(Text("\nClaims of the papers", style="underline"))
    titles = ("source", "says", "measured here", "verdict")
    rows = [
        (clean(c.source), clean(c.says), clean(c.measured),
         Text(VERDICTS[c.holds], style=_COLOURS[c.holds]))
        for c in claims
    ]  # fmt: skip
    print_table(console, [Column(t, False) for t in titles], rows)


def _print_budgets(budgets: Sequence[Budget], console: Console) -> None:
    if not budgets:
        return
    console.print(Text("\nBudget", style="underline"))
    columns = [
        Column("path", False), Column("limit", True), Column("measured", True),
        Column("", False), Column("why", False),
    ]  # fmt: skip
    rows = [
        (clean(b.path), clean(b.limit), clean(b.measured),
         Text("pass" if b.passes else "FAIL", style=_COLOURS[b.passes]), clean(b.why))
        for b in budgets
    ]  # fmt: skip
    print_table(console, columns, rows)


def _print_remarks(found: Found, console: Console) -> None:
    if found.skips or found.notes:
        console.print()
    for skip in found.skips:
        text = Text(f"skipped {clean(skip.what)}: ", style="yellow")
        console.print(text.append(clean(skip.reason), style="default"))
    for note in found.notes:
        console.print(Text(f"note: {clean(note)}", style="dim"))
