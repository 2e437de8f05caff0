"""Memory that a frontend keeps ready for bodies."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from dandelion.frontend_process.leases import Leases
from dandelion.frontend_process.spares import Spares
from dandelion.memory import ArenaMap, Context, SharedDomain

KIB = 1024


class Node:
    """Gives what is asked for when it is told to."""

    def __init__(self, arena: ArenaMap, limit_bytes: int) -> None:
        self.leases = Leases(arena, lambda size: pytest.fail("nothing waits"))
        self.asked: list[int] = []
        self.spares = Spares(self.asked.append, limit_bytes)
        self._number = 0

    def ready(self) -> int:
        """How many contexts lie ready."""
        return sum(map(len, self.spares._ready.values()))

    def give(self) -> None:
        """Give all that was asked for."""
        for size in self.asked:
            self._number += 1
            context = self.leases.leased(self._number, self._number * 512 * KIB, size)
            self.spares.add(size, context)
        self.asked.clear()

    def body(self, size: int, now_s: float = 0.0) -> Context | None:
        """Take memory for a body, and submit its invocation."""
        taken = self.spares.take(size, now_s)
        self.spares.fill()
        return taken


@pytest.fixture
def node() -> Iterator[Node]:
    domain = SharedDomain(64 << 20)
    yield Node(domain.map, 1 << 20)
    domain.close()


def test_a_size_that_comes_again_lies_ready(node: Node) -> None:
    assert node.body(5000) is None
    assert node.asked == []
    assert node.body(8192) is None  # as many pages
    assert node.asked == [8192]
    node.give()
    assert node.ready() == 1
    first = node.body(5000)
    assert first is not None
    assert (first.size_bytes, len(first.view)) == (5000, 5000)
    assert node.asked == [8192]  # the next one
    node.give()
    second = node.body(8192)
    assert second is not None
    assert second.offset_bytes != first.offset_bytes


def test_bodies_at_the_same_time_get_more(node: Node) -> None:
    for _ in range(9):
        assert node.body(100_000) is None
    assert node.asked == [102_400] * 4
    node.give()
    assert all(node.body(100_000) is not None for _ in range(4))
    assert node.asked == [102_400] * 4


def test_large_bodies_have_none(node: Node) -> None:
    for _ in range(3):
        assert node.body(256 * KIB + 1) is None
    assert node.asked == []


def test_no_room_for_them_is_no_error(node: Node) -> None:
    for _ in range(2):
        node.body(8192)
    node.asked.clear()
    node.spares.add(8192, None)
    assert node.body(8192) is None
    assert node.asked == [8192] * 2  # it may fit now


def test_other_sizes_take_the_place_of_unused_ones(node: Node) -> None:
    for _ in range(5):
        node.body(256 * KIB)
    node.give()
    assert node.ready() == 4  # all that is allowed
    for _ in range(2):
        assert node.body(8192) is None
    assert node.ready() == 0
    assert len(node.leases.gone()) == 4
    for _ in range(2):
        node.body(8192)
    assert node.asked == [8192]


def test_all_go_back_when_none_is_used(node: Node) -> None:
    for _ in range(2):
        node.body(8192, 1.0)
    node.give()
    node.spares.expire(1.4)
    assert node.ready() == 1
    node.body(100_000, 1.4)  # other sizes are in use
    node.spares.expire(1.7)
    assert node.ready() == 1
    node.spares.expire(2.0)
    assert node.ready() == 0
    assert node.leases.gone() == (1,)


def test_what_comes_too_late_goes_back(node: Node) -> None:
    for _ in range(2):
        node.body(8192, 1.0)
    node.spares.expire(2.0)
    node.give()
    assert node.ready() == 0
    assert node.leases.gone() == (1,)
