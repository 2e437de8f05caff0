"""The request is at fault: its names, sets, sizes, texts and documents."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from dandelion.errors.error import Blame, DandelionError
from dandelion.errors.suggestions import suggestion


class Problem(msgspec.Struct, frozen=True):
    """One mistake in a text or document, and its location.

    `where` is ``file:line:column`` for texts and a path such as
    ``blueprint.control_flow[3].args[1]`` for documents; `line` and `column` count from one and are
    zero where there is no text. `hint` says what to do. `excerpt` is the line at fault with a caret
    line below it.
    """

    code: str
    message: str
    where: str = ""
    line: int = 0
    column: int = 0
    expected: str = ""
    found: str = ""
    nearest: str = ""
    excerpt: str = ""
    hint: str = ""

    def __str__(self) -> str:
        text = f"{self.where}: {self.message}" if self.where else self.message
        if self.expected:
            text += f"; expected {self.expected}"
        if self.found:
            text += f", found {self.found}"
        text += f"; {self.hint}" if self.hint else ""
        text += suggestion(self.nearest)
        return f"{text}\n{self.excerpt}" if self.excerpt else text


@dataclass(eq=False)
class InvalidInput(DandelionError):
    """A part of a request is not valid: a set, a shape, a field, a size.

    `where` names the part of the request, for example ``sets.image`` or ``deadline_s``.
    """

    where: str
    message: str
    hint: str = ""
    status = 400
    blame = Blame.CALLER

    def __str__(self) -> str:
        return f"{self.where}: {self.message}" + (f"; {self.hint}" if self.hint else "")


@dataclass(eq=False)
class TooLarge(DandelionError):
    """A body, item or set is larger than its limit.

    `remedy` says how the limit is raised, if that is possible.
    """

    where: str
    size_bytes: int
    limit_bytes: int
    remedy: str = ""
    status = 413
    blame = Blame.CALLER

    def __str__(self) -> str:
        text = f"{self.where}: {self.size_bytes} bytes are more than the limit {self.limit_bytes}"
        return f"{text}; make it smaller" + (f", or {self.remedy}" if self.remedy else "")


@dataclass(eq=False)
class TooMany(DandelionError):
    """A count exceeds its limit."""

    where: str
    what: str
    count: int
    limit: int
    status = 413
    blame = Blame.CALLER

    def __str__(self) -> str:
        return (
            f"{self.where}: {self.count} {self.what} are more than the limit {self.limit};"
            " put more into each, or send several requests"
        )


@dataclass(eq=False)
class Problems(DandelionError):
    """All mistakes of one document, reported at once."""

    problems: tuple[Problem, ...]
    status = 400
    blame = Blame.CALLER

    def __str__(self) -> str:
        return "\n".join(str(problem) for problem in self.problems)


@dataclass(eq=False)
class InvalidComposition(Problems):
    """A composition text or graph breaks the static rules."""


@dataclass(eq=False)
class InvalidBlueprint(Problems):
    """A blueprint breaks the static rules, or does not fit its inputs or the device."""


@dataclass(eq=False)
class InvalidFunction(Problems):
    """A function's declaration or code is not valid: names, limits, code that does not load."""
