"""Reading JSON with all problems at once: kinds of values, fields, names given twice."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias, TypeVar

from dandelion.errors import Problem, nearest

MOST_PROBLEMS = 200
"""So many problems of a document are reported: names are compared for each, which takes long."""

Json: TypeAlias = Any  # the result of json.loads; every use below checks its type first
_T = TypeVar("_T")


class Duplicates(dict[str, Json]):
    """A JSON object that records its duplicate names."""

    twice: tuple[str, ...] = ()


def json_object(pairs: list[tuple[str, Json]]) -> Duplicates:
    result = Duplicates(pairs)
    if len(result) != len(pairs):
        counts = Counter(name for name, _ in pairs)
        result.twice = tuple(name for name, count in counts.items() if count > 1)
    return result


def kind_of(value: Json) -> str:
    if value is None or isinstance(value, bool):
        return json.dumps(value)
    if isinstance(value, dict):
        return "an object" if value else "an empty object"
    if isinstance(value, list):
        return f"a list of {len(value)}"
    text = json.dumps(value)
    return text if len(text) < 40 else f"{text[:36]}..."


class TooManyProblems(Exception):
    """A document has as many problems as are reported."""


class DocumentReader:
    """One pass over a document; `problems` grows. It ends with `TooManyProblems`."""

    def __init__(self) -> None:
        self.problems: list[Problem] = []

    def report(
        self, code: str, where: str, message: str, *, expected: str = "", found: str = "",
        close: str | None = None,
    ) -> None:  # fmt: skip
        self.problems.append(
            Problem(code, message, where, expected=expected, found=found, nearest=close or "")
        )
        if len(self.problems) == MOST_PROBLEMS:
            raise TooManyProblems

    def wrong(self, where: str, expected: str, value: Json) -> None:
        self.report("type", where, "wrong kind of value", expected=expected, found=kind_of(value))

    def fields(
        self, where: str, value: Json, required: tuple[str, ...], optional: tuple[str, ...] = ()
    ) -> Mapping[str, Json]:
        """Read an object with known fields; report all others."""
        if not isinstance(value, dict):
            self.wrong(where, "an object", value)
            return {}
        known = (*required, *optional)
        prefix = f"{where}." if where else ""
        for name in value:
            if name not in known:
                close = nearest(name, known)
                expected = "" if close else " or ".join(known)
                where_field = f"{prefix}{name}"
                self.report(
                    "unknown-field", where_field, "unknown field", expected=expected, close=close
                )
        for name in required:
            if name not in value:
                self.report("missing-field", where or "document", f"field '{name}' is missing")
        self.twice(where, value)
        return value

    def twice(self, where: str, value: Json) -> None:
        for name in value.twice if isinstance(value, Duplicates) else ():
            self.report("duplicate", f"{where}.{name}" if where else name, "given twice")

    def name(self, where: str, value: Json) -> str:
        if isinstance(value, str) and value and len(value) <= 1024 and value.isprintable():
            return value
        self.wrong(where, "a name", value)
        return ""

    def integer(self, where: str, value: Json) -> int:
        if isinstance(value, int) and not isinstance(value, bool):
            return value
        self.wrong(where, "an integer", value)
        return 1

    def items(
        self, where: str, value: Json, read: Callable[[str, Json], _T | None]
    ) -> tuple[_T, ...]:
        if not isinstance(value, list):
            self.wrong(where, "a list", value)
            return ()
        found = (read(f"{where}[{i}]", v) for i, v in enumerate(value))
        return tuple(item for item in found if item is not None)

    def tagged(self, where: str, value: Json, tags: tuple[str, ...]) -> tuple[str, Json]:
        """Read ``{TAG: content}``; the tag is empty if the value is not of this form."""
        if not isinstance(value, dict) or len(value) != 1:
            self.wrong(where, "one of " + ", ".join(f"{{{t}: ...}}" for t in tags), value)
            return "", None
        ((tag, content),) = value.items()
        self.twice(where, value)
        if tag not in tags:
            close = nearest(tag, tags)
            expected = "" if close else " or ".join(tags)
            self.report("unknown-tag", where, f"unknown '{tag}'", expected=expected, close=close)
            return "", None
        return tag, content
