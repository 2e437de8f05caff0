"""Excerpts: the source line at fault, with a caret line below it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import msgspec

from dandelion.errors import Problem

WIDTH = 88  # longest part of a source line that is shown, in characters


def excerpt(line: str, number: int, column: int, length: int = 1) -> str:
    """Show one source line and mark a part of it.

    Args:
        line: the line, without its end.
        number: its number, from one.
        column: first marked character, from one.
        length: number of marked characters.

    Returns:
        Two lines. Tabs and unprintable characters become blanks and ``?``, so that the carets are
        in the right column; of a long line the part around the mark is shown.
    """
    plain = "".join(" " if c in "\t\r" else c if c.isprintable() else "?" for c in line.rstrip())
    first = max(0, min(column - 1 - WIDTH // 2, len(plain) - WIDTH))
    shown = plain[first : first + WIDTH]
    start = column - 1 - first
    carets = "^" * max(1, min(length, len(shown) - start))
    gutter = f"{number:>5} | "
    return f"{gutter}{shown}\n{' ' * (len(gutter) - 2)}| {' ' * start}{carets}"


def with_excerpts(problems: Iterable[Problem], line_of: Callable[[Problem], str]) -> list[Problem]:
    """Add excerpts to problems that have a position but no excerpt yet.

    Args:
        problems: the problems of a check.
        line_of: returns the source line of a problem, or an empty text if it is unknown.
    """
    return [_with_excerpt(problem, line_of) for problem in problems]


def in_text(text: str) -> Callable[[Problem], str]:
    """Return a `line_of` for `with_excerpts` that looks lines up in `text`."""
    lines = text.split("\n")
    return lambda problem: lines[problem.line - 1] if 0 < problem.line <= len(lines) else ""


def in_texts(texts: Mapping[str, str]) -> Callable[[Problem], str]:
    """Return a `line_of` for problems of several texts; `texts` by the file name of the parser."""
    finders = {file: in_text(text) for file, text in texts.items()}
    nowhere = in_text("")
    return lambda problem: finders.get(problem.where.rsplit(":", 2)[0], nowhere)(problem)


def _with_excerpt(problem: Problem, line_of: Callable[[Problem], str]) -> Problem:
    if problem.excerpt or not problem.line:
        return problem
    line = line_of(problem)
    if not line.strip():
        return problem
    length = word_length(line, problem.column)
    shown = excerpt(line, problem.line, problem.column, length)
    return msgspec.structs.replace(problem, excerpt=shown)


def word_length(line: str, column: int) -> int:
    """Count the characters of the word that starts at `column`; at least one."""
    end = column - 1
    while end < len(line) and (line[end].isalnum() or line[end] == "_"):
        end += 1
    return max(1, end - column + 1)
