"""The snippets of a page in Markdown.

A fenced block is a snippet. What a reader does with it follows from its language and title:

=============================== ==========================================================
```python                       it is run
```` ```sh ````                 its commands are run in the page's folder
```` ```console ````            each line that begins with ``$`` is run; the others are its output
```` ```text ````               what the snippet before it prints; ``...`` stands for others;
                                without such a snippet a command must succeed
```` ```LANGUAGE title="a.c" ```` it is written to the file
``title="second terminal"``     its command goes on running while the page does
others                          they are valid in their language
none                            a tree, a message: no code
=============================== ==========================================================

Comments of HTML, which no reader sees, are instructions: ``<!-- skip: REASON -->`` before a snippet
that is only checked, and ``<!-- run: LANGUAGE`` with lines up to ``-->`` for what a page assumes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

_BLOCK = re.compile(
    r"^(?P<indent> *)(?P<fence>```+)(?P<language>[\w-]*)(?P<info>[^\n`]*)\n(?P<text>.*?)"
    r"^ *(?P=fence)[ ]*$"
    r"|^<!-- run: (?P<hidden>\w+)(?P<hidden_info>[^\n]*)\n(?P<code>.*?)-->$"
    r"|^<!-- skip: (?P<reason>.*?) -->$",
    re.MULTILINE | re.DOTALL,
)


@dataclass(frozen=True, slots=True)
class Snippet:
    """A block of a page.

    Attributes:
        language: after the fence; may be empty.
        title: in the line of the fence.
        text: its lines.
        line: of the page, from 1, that has its first line.
        skipped: why it is not run; empty if it is.
    """

    language: str
    title: str
    text: str
    line: int
    skipped: str = ""

    @property
    def is_file(self) -> bool:
        """Tell whether the title is the name of a file."""
        return re.fullmatch(r"[\w./-]+\.\w+|Containerfile", self.title) is not None


def snippets(page: str) -> Iterator[Snippet]:
    """Yield the blocks of a page in their order."""
    reason = ""
    for found in _BLOCK.finditer(page):
        if found["reason"]:
            reason = " ".join(found["reason"].split())
            continue
        is_hidden = found["hidden"] is not None
        text = found["code"] if is_hidden else _dedented(found["text"], len(found["indent"]))
        title = re.search(r'title="([^"]*)"', found["hidden_info" if is_hidden else "info"] or "")
        start = found.start("code" if is_hidden else "text")
        yield Snippet(
            found["hidden" if is_hidden else "language"],
            title[1] if title else "",
            text,
            page.count("\n", 0, start) + 1,
            reason,
        )
        reason = ""


def commands(text: str) -> Iterator[tuple[str, str]]:
    """Yield the commands of a console with the output that is shown for each."""
    command, output, is_open = "", "", False
    for line in text.splitlines():
        if line.startswith("$ "):
            if command:
                yield command, output
            command, output, is_open = line[2:], "", line.endswith("\\")
        elif is_open:
            command, is_open = f"{command}\n{line}", line.endswith("\\")
        else:
            output += line + "\n"
    if command:
        yield command, output


def agrees(shown: str, printed: str) -> bool:
    """Compare what a page shows with what was printed.

    A line ``...`` stands for any number of lines, and within a line for any text. The widths of
    columns do not count.
    """
    pattern = ""
    for line in shown.strip().splitlines():
        if line.strip() == "...":
            pattern += r"(?:[^\n]*\n)*"
        else:
            parts = (re.escape(part) for part in _narrow(line).split("..."))
            pattern += r"[^\n]*".join(parts) + r"\n"
    lines = [_narrow(line) for line in printed.strip().splitlines()]
    return re.fullmatch(pattern, "".join(f"{line}\n" for line in lines)) is not None


def _narrow(line: str) -> str:
    return re.sub(r"─+", "─", re.sub(r"[ \t]+", " ", line)).rstrip()


def _dedented(text: str, indent: int) -> str:
    return "".join(line[indent:] if line.strip() else line for line in text.splitlines(True))
