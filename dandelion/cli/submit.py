"""``dandelion submit NAME set=text ...``: begin an asynchronous invocation."""

from __future__ import annotations

from dandelion.asynchronous.records import KeptRequest
from dandelion.cli.connection import connect
from dandelion.cli.invocations import follow
from dandelion.cli.invoke import check_numbers, described, read_sets
from dandelion.cli.output import Output
from dandelion.cli.parser import Arguments


def run(arguments: Arguments, out: Output) -> int:
    """Submit, print the id, and perhaps follow."""
    requested = KeptRequest(
        name=arguments.name,
        version=arguments.version_,
        deadline_s=arguments.deadline,
        priority=arguments.priority,
        key=arguments.key,
        callback=arguments.callback,
    )
    with connect(arguments) as client:
        check_numbers(arguments.sets, described(client, arguments))
        handle = client.submit_sets(requested, read_sets(arguments.sets))
        if arguments.follow:
            return follow(handle, out)
        if out.as_json:
            out.document({"id": handle.id})
        else:
            out.line(handle.id)
    return 0
