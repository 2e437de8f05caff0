"""Tables on standard output."""

from __future__ import annotations

import io
from collections.abc import Sequence

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

NO_WIDTH = 1 << 20
"""Wider than any row."""


def show(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table. On a terminal long cells are folded; elsewhere a row is one line.

    Args:
        columns: their headings.
        rows: cells without anything that could control a terminal.
    """
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for column in columns:
        table.add_column(column, overflow="fold")
    for row in rows:
        table.add_row(*map(Text, row))
    console = Console(highlight=False, markup=False, emoji=False)
    if console.is_terminal:
        console.print(table)
        return
    table.box = table.box if console.encoding.startswith("utf") else None
    lines = io.StringIO()
    Console(file=lines, width=NO_WIDTH).print(table)
    for line in lines.getvalue().splitlines():
        print(line.rstrip())
