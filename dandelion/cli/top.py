"""``dandelion top``: functions and recent invocations of a node, as they change."""

from __future__ import annotations

import time

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from dandelion.activity import Activity, ActivityQuery
from dandelion.cli.connection import connect
from dandelion.cli.output import Output
from dandelion.cli.parser import Arguments
from dandelion.cli.tables import NO_WIDTH

INTERVAL_S = 1.0
_RECENT = 15


def run(arguments: Arguments, out: Output) -> int:
    """Show until Ctrl-C; once, if standard output is not a terminal that can be overwritten."""
    with connect(arguments) as client:
        query = ActivityQuery(limit=_RECENT)
        found = client.activity(query)
        if out.as_json:
            out.document(found)
            return 0
        console = Console()
        if not console.is_terminal or console.is_dumb_terminal:
            Console(width=NO_WIDTH).print(_screen(found, None, 0.0))
            return 0
        with Live(_screen(found, None, 0.0), console=console, screen=True) as live:
            while True:
                before, began = found, time.monotonic()
                time.sleep(INTERVAL_S)
                found = client.activity(query)
                live.update(_screen(found, before, time.monotonic() - began))


def _screen(found: Activity, before: Activity | None, passed_s: float) -> Group:
    rate = f", {(found.cursor - before.cursor) / passed_s:.1f}/s" if before is not None else ""
    head = Text(f"{found.running_count} running, {found.cursor} ended{rate}")
    return Group(head, _functions(found, before, passed_s), _invocations(found))


def _functions(found: Activity, before: Activity | None, passed_s: float) -> Table:
    table = Table("function", "calls", "calls/s", "failed", "waiting", "p50 ms", "p99 ms", box=None)
    counted = {} if before is None else {one.name: one.calls for one in before.functions}
    for one in sorted(found.functions, key=lambda one: -one.run_s):
        new = one.calls - counted.get(one.name, 0)
        rate = f"{new / passed_s:.1f}" if before is not None else ""
        times = f"{one.p50_ms:.3g}", f"{one.p99_ms:.3g}"
        failed = Text(str(one.failures), "red" if one.failures else "")
        table.add_row(Text(one.name), str(one.calls), rate, failed, str(one.waiting), *times)
    return table


def _invocations(found: Activity) -> Table:
    table = Table("invocation", "name", "outcome", "ms", "error", box=None)
    for one in found.invocations:
        outcome = Text(one.outcome, "green" if one.outcome == "ok" else "red")
        message = Text(one.message.partition("\n")[0], no_wrap=True, overflow="ellipsis")
        table.add_row(one.id, Text(one.name), outcome, f"{one.duration_ms:.1f}", message)
    return table
