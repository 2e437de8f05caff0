"""``dandelion result ID``: wait for the result of an asynchronous invocation and show it."""

from __future__ import annotations

from dandelion.cli.connection import connect
from dandelion.cli.invoke import show_result
from dandelion.cli.output import Output
from dandelion.cli.parser import Arguments


def run(arguments: Arguments, out: Output) -> int:
    """Wait, and print or write the sets."""
    with connect(arguments) as client:
        result = client.submitted(arguments.name).result(arguments.wait, progress=True)
    show_result(arguments, out, arguments.name, result)
    return 0
