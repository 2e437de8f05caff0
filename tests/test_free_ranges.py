"""Free ranges against a bitmap."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    MultipleResults,
    RuleBasedStateMachine,
    consumes,
    initialize,
    invariant,
    multiple,
    rule,
)

from dandelion.memory.free_ranges import FreeRanges


class FreeRangesAgainstBitmap(RuleBasedStateMachine):
    """The model is a list of booleans, one for each unit of the space."""

    taken: Bundle[tuple[int, int]] = Bundle("taken")

    @initialize(size=st.integers(1, 64))
    def start(self, size: int) -> None:
        self.ranges = FreeRanges(size)
        self.free = [True] * size

    @rule(target=taken, size=st.integers(1, 70))
    def take(self, size: int) -> tuple[int, int] | MultipleResults[tuple[int, int]]:
        fitting = [(length, start) for start, length in runs(self.free) if length >= size]
        start = self.ranges.take(size)
        if not fitting:
            assert start is None
            return multiple()
        assert start == min(fitting)[1]  # best fit, and the lowest of equals
        assert all(self.free[start : start + size])
        self.free[start : start + size] = [False] * size
        return start, size

    @rule(piece=consumes(taken))
    def give(self, piece: tuple[int, int]) -> None:
        start, size = piece
        self.ranges.give(start, size)
        self.free[start : start + size] = [True] * size

    @rule(piece=consumes(taken), data=st.data())
    def give_in_two_parts(self, piece: tuple[int, int], data: st.DataObject) -> None:
        start, size = piece
        cut = data.draw(st.integers(0, size))
        for at, part in ((start, cut), (start + cut, size - cut)):
            if part:
                self.give((at, part))

    @invariant()
    def counts_agree(self) -> None:
        if hasattr(self, "ranges"):
            assert self.ranges.free == sum(self.free)
            assert self.ranges.largest == max((n for _, n in runs(self.free)), default=0)


TestFreeRanges = FreeRangesAgainstBitmap.TestCase


def runs(free: list[bool]) -> list[tuple[int, int]]:
    """Start and length of every run of free units."""
    found: list[tuple[int, int]] = []
    for at, is_free in enumerate(free):
        if is_free and found and sum(found[-1]) == at:
            found[-1] = (found[-1][0], found[-1][1] + 1)
        elif is_free:
            found.append((at, 1))
    return found


@given(st.lists(st.integers(1, 9), max_size=20), st.randoms())
def test_all_that_comes_back_is_one_range_again(sizes: list[int], order: object) -> None:
    ranges = FreeRanges(100)
    pieces = [(s, n) for n in sizes if (s := ranges.take(n)) is not None]
    order.shuffle(pieces)  # type: ignore[attr-defined]  # hypothesis types randoms() as object
    for piece in pieces:
        ranges.give(*piece)
    assert (ranges.free, ranges.largest) == (100, 100)
    assert ranges.take(100) == 0
