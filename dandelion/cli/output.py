"""Output of the verbs: text and tables, or one JSON document.

Text may quote what functions and other users wrote, so what could control a terminal is escaped.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import msgspec

from dandelion.call_logs import shown_lines
from dandelion.errors import DandelionError, InvalidInput
from dandelion.frontend.problem import encode_problem, printable, problem_of


@dataclass(eq=False)
class WrongUsage(InvalidInput):
    """The command line is wrong."""


class Output:
    """Standard output and standard error of one command.

    Args:
        as_json: print JSON only: the result on standard output, a problem on standard error.
    """

    def __init__(self, as_json: bool) -> None:
        self.as_json = as_json

    def document(self, value: object) -> None:
        """Print a value as JSON. Invalid Unicode is escaped, such as that of a path."""
        try:
            text = msgspec.json.encode(value)
        except UnicodeEncodeError:
            text = msgspec.json.encode(printable(msgspec.to_builtins(value)))
        self.json(text)

    def json(self, text: bytes) -> None:
        """Print JSON, indented."""
        self.raw(msgspec.json.format(text, indent=2) + b"\n")

    def json_line(self, value: object) -> None:
        """Print a value as JSON in one line."""
        self.raw(msgspec.json.encode(value) + b"\n")

    def raw(self, data: bytes | memoryview) -> None:
        """Write bytes as they are."""
        sys.stdout.flush()
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()

    def line(self, text: str) -> None:
        """Print text, also at once if a program reads it."""
        print(shown_lines(text).expandtabs(), flush=True)

    def table(self, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
        """Print a table, or nothing if it has no rows.

        On a terminal long cells are folded; elsewhere a row is one line, however long.
        """
        from dandelion.cli import tables  # it takes longer to load than all else of this module

        shown = [[shown_lines(cell) for cell in row] for row in rows]
        if shown:
            tables.show(columns, shown)

    def error(self, error: DandelionError) -> None:
        """Print an error on standard error."""
        if self.as_json:
            problem = msgspec.json.format(encode_problem(problem_of(error)), indent=2)
            print(problem.decode(), file=sys.stderr)
            return
        self.failure(str(error))
        for note in getattr(error, "__notes__", ()):
            print(f"  ({shown_lines(note)})", file=sys.stderr)

    def failure(self, message: str) -> None:
        """Print a message on standard error."""
        print(f"dandelion: {shown_lines(message)}", file=sys.stderr)
