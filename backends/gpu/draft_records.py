"""What the control flow of a blueprint becomes before its buffers have a place: its records."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from dandelion.blueprint import Access

from .lowering import LibraryStep
from .open_arguments import OpenArgument
from .templates import TemplateLaunch


@dataclass(frozen=True, slots=True)
class Loop:
    """Do a part of the program `times` times.

    Attributes:
        times: how often, or at most.
        program: which part.
        word: the buffer that begins with the word that must not be zero for a further iteration;
            empty if there is none.
    """

    times: int
    program: Program
    word: str = ""


Program: TypeAlias = tuple["int | Loop", ...]
"""Indices of steps, in order, with loops."""


def walked(program: Program) -> Iterator[int]:
    """Give the index of each step in the order of execution, loops unrolled."""
    for step in program:
        if isinstance(step, Loop):
            for _ in range(step.times):
                yield from walked(step.program)
        else:
            yield step


@dataclass(frozen=True, slots=True)
class PlaceDraft:
    """A place in a buffer, by the buffer's name."""

    buffer: str
    offset_bytes: int


@dataclass(frozen=True, slots=True)
class LaunchDraft:
    """A launch."""

    kernel: str
    args: tuple[PlaceDraft | OpenArgument | bytes, ...]
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    shared_bytes: int
    access: Mapping[str, Access]


@dataclass(frozen=True, slots=True)
class CopyDraft:
    """A copy of a buffer."""

    target: str
    source: str

    @property
    def access(self) -> Mapping[str, Access]:
        """What it does with each buffer."""
        return {self.target: Access.WRITE, self.source: Access.READ}


@dataclass(frozen=True, slots=True)
class ZeroDraft:
    """Zeroing a buffer."""

    buffer: str

    @property
    def access(self) -> Mapping[str, Access]:
        """What it does with each buffer."""
        return {self.buffer: Access.WRITE}


@dataclass(frozen=True, slots=True)
class OperationDraft:
    """A step of a library operation."""

    step: LibraryStep | TemplateLaunch
    access: Mapping[str, Access]


Draft: TypeAlias = LaunchDraft | CopyDraft | ZeroDraft | OperationDraft


Choices: TypeAlias = Mapping[str, int]
"""The number of the alternative for candidates, by their place; by default the first."""


@dataclass(frozen=True, slots=True)
class CandidateGroup:
    """What was chosen of candidates.

    Attributes:
        where: their place in the blueprint.
        count: how many alternatives there are.
        first, end: of the steps of the chosen one.
    """

    where: str
    count: int
    first: int
    end: int
