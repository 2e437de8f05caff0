"""``dandelion record NAME set=text ... -o FILE``: invoke, and save a recording."""

from __future__ import annotations

from pathlib import Path

from dandelion.cli.connection import connect
from dandelion.cli.invoke import check_numbers, described, read_sets
from dandelion.cli.output import Output
from dandelion.cli.parser import Arguments
from dandelion.errors import from_record
from dandelion.recording.records import decode_recording
from dandelion.sizes import size_text

SUFFIX = ".recording"


def run(arguments: Arguments, out: Output) -> int:
    """Record an invocation. The exit code is 1 if it failed; it is recorded all the same."""
    sets = read_sets(arguments.sets)
    with connect(arguments) as client:
        check_numbers(arguments.sets, described(client, arguments))
        data = client.record(
            arguments.name, sets, version=arguments.version_, deadline_s=arguments.deadline
        )
    recording = decode_recording(data)
    target = arguments.output or Path(recording.invocation + SUFFIX)
    target.write_bytes(data)
    if out.as_json:
        out.document(
            {
                "file": str(target),
                "invocation": recording.invocation,
                "calls": len(recording.calls),
                "omitted_calls": recording.omitted_calls,
                "error": recording.error,
            }
        )
    else:
        calls = f"{len(recording.calls)} calls"
        if recording.omitted_calls:
            calls += f" ({recording.omitted_calls} more are not in it)"
        out.line(f"{target}: {calls}, {size_text(len(data))}")
        out.line(f"run it again with: dandelion replay {target}")
    if recording.error is not None:
        out.error(from_record(recording.error))
        return 1
    return 0
