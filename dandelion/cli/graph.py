"""``dandelion graph``: draw a composition of a file or of a node."""

from __future__ import annotations

from pathlib import Path

from dandelion.cli.output import Output, WrongUsage
from dandelion.cli.parser import Arguments
from dandelion.frontend.client import Client
from dandelion.frontend.graphs import draw_text

SUFFIXES = {".svg": "svg", ".mmd": "mermaid", ".json": "json"}


def run(arguments: Arguments, out: Output) -> int:
    """Draw, to standard output or a file."""
    target = arguments.output
    format_ = arguments.format
    if format_ is None:
        format_ = "json" if out.as_json else SUFFIXES.get(target.suffix if target else "", "text")
    drawn = _drawn(arguments, format_)
    if target is not None:
        target.write_text(drawn, "utf-8")
    else:
        out.raw(drawn.encode() + (b"" if drawn.endswith("\n") else b"\n"))
    return 0


def _drawn(arguments: Arguments, format_: str) -> str:
    path = Path(arguments.source)
    if path.is_file():
        return draw_text(path.read_text("utf-8"), arguments.name, format_, str(path))
    if path.suffix == ".dandelion":
        raise WrongUsage(str(path), "there is no such file")
    with Client(arguments.url) as client:
        return client.graph(arguments.source, format_, arguments.version_)
