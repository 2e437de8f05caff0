"""``dandelion register``: files and folders, all or nothing."""

from __future__ import annotations

from dandelion.cli.connection import connect
from dandelion.cli.output import Output
from dandelion.cli.parser import Arguments
from dandelion.cli.sources import read_sources
from dandelion.frontend.records import RegisterResponse


def run(arguments: Arguments, out: Output) -> int:
    """Register the contents of all paths."""
    document = read_sources(arguments.paths)
    with connect(arguments) as client:
        registered = client.register(document, progress=True)
    if out.as_json:
        out.document(RegisterResponse(tuple(registered)))
    else:
        out.table(
            ("kind", "name", "version"), [(r.kind, r.name, str(r.version)) for r in registered]
        )
    return 0
