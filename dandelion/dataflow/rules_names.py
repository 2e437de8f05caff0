"""Names and problems, as used by the static rules of the language."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator

import msgspec

from dandelion.dataflow.graph import SourcePosition
from dandelion.errors import Problem, nearest

NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
NAME_LIMIT = 255  # characters


class FunctionSignature(msgspec.Struct, frozen=True):
    """The name of a function or composition and its sets, in order."""

    name: str
    inputs: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.name}({', '.join(self.inputs)}) => ({', '.join(self.outputs)})"


def problem(
    code: str,
    message: str,
    place: SourcePosition,
    *,
    expected: str = "",
    found: str = "",
    nearest: str = "",
) -> Problem:
    """Make a problem at a position."""
    where = str(place)
    return Problem(code, message, where, place.line, place.column, expected, found, nearest)


def repeated(names: Iterable[str]) -> list[str]:
    """Return the names that occur more than once, in order."""
    return [name for name, count in Counter(names).items() if count > 1]


def meant(name: str, known: Iterable[str]) -> str:
    """Return the nearest known name, or an empty text."""
    if len(name) > NAME_LIMIT:
        return ""
    return nearest(name, (k for k in known if len(k) <= NAME_LIMIT)) or ""


def bad_names(names: Iterable[str], place: SourcePosition) -> Iterator[Problem]:
    """Report names that are not identifiers; JSON and Python may have them, a text cannot."""
    for name in dict.fromkeys(names):
        if not NAME.fullmatch(name) or len(name) > NAME_LIMIT:
            rule = f"ASCII letters, digits and '_', at most {NAME_LIMIT}, no digit first"
            yield problem("bad-name", f"{name[:60]!r} cannot be a name", place, expected=rule)


def no_such_set(
    code: str,
    kind: str,
    called: FunctionSignature,
    name: str,
    place: SourcePosition,
    advice: str = "",
) -> Problem:
    """Report a set that a function does not have.

    Args:
        code: of the problem.
        kind: ``input`` or ``output``.
        called: the function.
        name: the unknown set.
        place: its position.
        advice: what to do, instead of the nearest name.
    """
    sets = called.inputs if kind == "input" else called.outputs
    message = f"'{called.name}' has no {kind} set '{name}'"
    if advice:
        return problem(code, f"{message}; {advice}", place)
    known = ", ".join(f"'{s}'" for s in sets) or f"no {kind} set at all"
    return problem(code, message, place, expected=known, nearest=meant(name, sets))
