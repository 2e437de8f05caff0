"""Groups of launches that a `Blueprint` collects in ``with`` blocks."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping

from dandelion.blueprint.builder_sizes import Buffer, SizeLike, size_of
from dandelion.blueprint.records import Action, Case


@contextlib.contextmanager
def collected(levels: list[list[Action]]) -> Iterator[list[Action]]:
    """Collect the actions of a ``with`` block.

    Args:
        levels: of a blueprint; actions are added to the last one.
    """
    levels.append([])
    try:
        yield levels[-1]
    finally:
        levels.pop()


class Alternatives:
    """The groups of launches of `Blueprint.candidates`."""

    def __init__(self, levels: list[list[Action]]) -> None:
        self._levels = levels
        self.groups: list[tuple[Action, ...]] = []

    @contextlib.contextmanager
    def alternative(self) -> Iterator[None]:
        """Add the launches inside the ``with`` block as one group."""
        with collected(self._levels) as actions:
            yield
        self.groups.append(tuple(actions))


class Choice:
    """The cases of a choice, see `Blueprint.choose`."""

    def __init__(self, levels: list[list[Action]]) -> None:
        self._levels = levels
        self.cases: list[Case] = []

    @contextlib.contextmanager
    def case(self, up_to: int, padded: Mapping[Buffer, SizeLike] | None = None) -> Iterator[None]:
        """Add the launches inside the ``with`` block, for sizes up to a number.

        Args:
            up_to: that number; larger than that of the case before.
            padded: bytes of memory that buffers have then, behind an input's data zeros.
        """
        with collected(self._levels) as actions:
            yield
        room = {buffer.name: size_of(size) for buffer, size in (padded or {}).items()}
        self.cases.append(Case(up_to, tuple(actions), room))
