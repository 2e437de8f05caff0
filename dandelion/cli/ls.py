"""``dandelion ls``: what is registered, in its newest versions."""

from __future__ import annotations

from dandelion.cli.output import Output, size_text
from dandelion.cli.parser import Arguments
from dandelion.frontend.client import Client
from dandelion.frontend.records import Entry

SINGULAR = {"functions": "function", "compositions": "composition", "libraries": "library"}


def run(arguments: Arguments, out: Output) -> int:
    """List all kinds, or one."""
    with Client(arguments.url) as client:
        entries = client.list()
    if arguments.kind:
        entries = [e for e in entries if e.kind == SINGULAR[arguments.kind]]
    show(entries, out)
    return 0


def show(entries: list[Entry], out: Output) -> None:
    """Print entries as a table or JSON."""
    if out.as_json:
        out.document(entries)
        return
    rows = [(e.kind, e.name, str(e.version), _sets(e), _details(e)) for e in entries]
    out.table(("kind", "name", "version", "sets", ""), rows)


def _sets(entry: Entry) -> str:
    if entry.kind == "library":
        return ""
    return f"({', '.join(entry.inputs)}) -> ({', '.join(entry.outputs)})"


def _details(entry: Entry) -> str:
    if entry.kind == "library":
        return size_text(entry.size_bytes)
    if entry.kind == "composition":
        return f"uses {', '.join(entry.uses)}" if entry.uses else ""
    fixed = f"; fixed: {', '.join(entry.static)}" if entry.static else ""
    return ", ".join(entry.formats) + fixed
