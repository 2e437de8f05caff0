"""Names and problems: what the static rules of the language are made of."""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Iterable, Iterator

import msgspec

from dandelion.dataflow.graph import Place
from dandelion.errors import Problem, nearest

NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
NAME_LIMIT = 255  # characters


class Signature(msgspec.Struct, frozen=True):
    """What a function or composition is called and which sets it has, in order."""

    name: str
    inputs: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.name}({', '.join(self.inputs)}) => ({', '.join(self.outputs)})"


def problem(
    code: str,
    message: str,
    place: Place,
    *,
    expected: str = "",
    found: str = "",
    nearest: str = "",
) -> Problem:
    """Make a problem of a place."""
    where = str(place)
    return Problem(code, message, where, place.line, place.column, expected, found, nearest)


def repeated(names: Iterable[str]) -> list[str]:
    """Give the names that occur more than once, in order."""
    return [name for name, count in Counter(names).items() if count > 1]


def meant(name: str, known: Iterable[str]) -> str:
    """Give the known name that is nearest, or an empty text; looks at the first 200 names only.

    Comparing names costs far more than all rules together, and a text may hold any number of them.
    """
    if len(name) > NAME_LIMIT:
        return ""
    few = itertools.islice((k for k in known if len(k) <= NAME_LIMIT), 200)
    return nearest(name, few) or ""


def bad_names(names: Iterable[str], place: Place) -> Iterator[Problem]:
    """Report what is no identifier; a text cannot hold such names, JSON and Python can."""
    for name in dict.fromkeys(names):
        if not NAME.fullmatch(name) or len(name) > NAME_LIMIT:
            rule = f"ASCII letters, digits and '_', at most {NAME_LIMIT}, no digit first"
            yield problem("bad-name", f"{name[:60]!r} cannot be a name", place, expected=rule)


def no_such_set(
    code: str, kind: str, called: Signature, name: str, place: Place, advice: str = ""
) -> Problem:
    """Report a set that a function does not have.

    Args:
        code: of the problem.
        kind: ``input`` or ``output``.
        called: the function.
        name: the set that it lacks.
        place: where that stands.
        advice: what to do, instead of the nearest name.
    """
    sets = called.inputs if kind == "input" else called.outputs
    message = f"'{called.name}' has no {kind} set '{name}'"
    if advice:
        return problem(code, f"{message}; {advice}", place)
    known = ", ".join(f"'{s}'" for s in sets) or f"no {kind} set at all"
    return problem(code, message, place, expected=known, nearest=meant(name, sets))
