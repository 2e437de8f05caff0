"""What functions write while they run: records from the backend to the reader.

A backend gives lines that it has read from a sandbox, which is untrusted: they are text, bounded in
length and number, and the labels of stream and level are from fixed lists. The text itself may
still contain any character, so a program that shows it on a terminal has to escape it (`shown`).
"""

from __future__ import annotations

import unicodedata

import msgspec

LINE_LIMIT = 4096
"""Characters of one line; the rest is cut off."""
CALL_LINES = 256
"""Lines that one call keeps."""
PAGE_LINES = 1000
"""Lines that one query gives, unless it asks for fewer."""
STDOUT, STDERR, LOGGING = "stdout", "stderr", "logging"


class PrintedLine(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A line that a call wrote.

    Attributes:
        stream: ``stdout``, ``stderr`` or ``logging``.
        text: without the line break.
        level: of a record of `logging`, such as ``warning``; else empty.
    """

    stream: str
    text: str
    level: str = ""


class LogLine(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """A line with what is known of its call.

    Attributes:
        time: when the call ended, in UTC, as ISO 8601.
        invocation: its id.
        function: the name of the function.
        application, instance: which instance of the composition.
        stream, text, level: as of `PrintedLine`.
        attempt: 1, and more if the call was run again.
    """

    time: str
    invocation: str
    function: str
    application: str
    instance: int
    stream: str
    text: str
    level: str = ""
    attempt: int = 1


class LogPage(msgspec.Struct, frozen=True):
    """Some lines, oldest first.

    Attributes:
        lines: the newest that were asked for.
        last: what to give as `after` to get those that follow.
    """

    lines: tuple[LogLine, ...]
    last: int


def printed_lines(text: str, stream: str, level: str = "") -> list[PrintedLine]:
    """Divide a text into lines; empty ones are left out, long ones are cut off."""
    if 1 < len(text) <= LINE_LIMIT and text.find("\n") == len(text) - 1 and text[-2] != "\r":
        return [PrintedLine(stream, text[:-1], level)]
    pieces = text.replace("\r\n", "\n").split("\n", CALL_LINES * 4)[: CALL_LINES * 4]
    return [PrintedLine(stream, _cut(piece), level) for piece in pieces if piece]


def bounded(lines: list[PrintedLine]) -> tuple[PrintedLine, ...]:
    """Keep as many lines as a call may have."""
    if len(lines) <= CALL_LINES:
        return tuple(lines)
    more = PrintedLine(STDERR, "[further lines were dropped]")
    return (*lines[: CALL_LINES - 1], more)


def shown(text: str) -> str:
    """Escape what could control a terminal, or hide or reorder what it shows."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or _is_harmless(c) else _escape(c) for c in text)


def shown_lines(text: str) -> str:
    """Escape the lines of a text as `shown` does."""
    if text.isprintable():
        return text
    return "\n".join(map(shown, text.split("\n")))


def _is_harmless(character: str) -> bool:
    """Tell a tab, spaces of other scripts, and joiners, such as of emoji."""
    return character in "\t\u200c\u200d" or unicodedata.category(character) == "Zs"


def _escape(character: str) -> str:
    return character.encode("unicode_escape", "surrogatepass").decode("ascii")


def _cut(line: str) -> str:
    return line if len(line) <= LINE_LIMIT else line[:LINE_LIMIT] + " [cut off]"
