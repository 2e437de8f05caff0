"""``dandelion logs``: what functions wrote to their standard streams and to `logging`.

On a terminal, a line could move the cursor or hide other lines. So characters that are not printed
are escaped; ``--json`` prints objects in ASCII.
"""

from __future__ import annotations

import json

import msgspec

from dandelion.call_logs import LogLine, shown
from dandelion.cli.connection import connect
from dandelion.cli.output import Output
from dandelion.cli.parser import Arguments


def run(arguments: Arguments, out: Output) -> int:
    """Print lines, and with ``-f`` all later ones until the command is interrupted."""
    with connect(arguments) as client:
        function, invocation = arguments.function, arguments.invocation
        if arguments.follow:
            for line in client.follow_logs(function, invocation):
                _print(line, out)
        else:
            for line in client.logs(function, invocation).lines:
                _print(line, out)
    return 0


def _print(line: LogLine, out: Output) -> None:
    if out.as_json:
        text = json.dumps(msgspec.to_builtins(line)).replace("\x7f", "\\u007f")
    else:
        text = text_of(line)
    out.raw(text.encode("utf-8", "backslashreplace") + b"\n")


def text_of(line: LogLine) -> str:
    """Write a line for people."""
    label = line.level or line.stream
    function = line.function
    if line.application != function:
        function += f" ({line.application})"
    head = f"{line.time} {line.invocation} {shown(function)}[{line.instance}] {label}"
    return f"{head}: {shown(line.text)}"
