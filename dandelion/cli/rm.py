"""``dandelion rm``: remove a name, or one version of it."""

from __future__ import annotations

from dandelion.cli.connection import connect
from dandelion.cli.ls import show
from dandelion.cli.output import Output
from dandelion.cli.parser import Arguments


def run(arguments: Arguments, out: Output) -> int:
    """Remove, and list what was removed."""
    with connect(arguments) as client:
        removed = client.remove(arguments.name, arguments.version_)
    if not out.as_json:
        out.line("removed:")
    show(removed, out)
    return 0
