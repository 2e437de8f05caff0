"""Pulling regions between two ends, without a network."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future
from typing import Any

import pytest

from dandelion.cluster.call_messages import RegionSize
from dandelion.cluster.exchange import WINDOW, Exchange, Fetched
from dandelion.cluster.handshake import BadPeer
from dandelion.cluster.messages import PIECE_BYTES, Message, Piece, Pull, Release
from dandelion.data import Bytes
from dandelion.errors import ContextFull, DandelionError, NodeLost
from dandelion.memory import SharedDomain

MIB = 1 << 20


class AtOnce(Executor):
    """A pool without threads."""

    def submit(self, work: Callable[..., Any], /, *given: Any, **named: Any) -> Future[Any]:
        done: Future[Any] = Future()
        done.set_result(work(*given, **named))
        return done


class Line:
    """One direction: messages wait until a test delivers them."""

    def __init__(self) -> None:
        self.sink: Callable[[Message, int], memoryview] = lambda message, size: memoryview(b"")
        self.received: Callable[[Message, memoryview | None], None] = lambda message, data: None
        self.other: Line
        self.waiting: list[tuple[Message, bytes]] = []
        self.sent_bytes = self.received_bytes = 0

    def send(self, message: Message, pieces: list[Bytes] | None = None) -> None:
        self.waiting.append((message, b"".join(bytes(p) for p in pieces or ())))

    def close(self, reason: str) -> None:
        self.waiting.clear()

    def deliver(self) -> None:
        """Give the first message to the other end."""
        message, data = self.waiting.pop(0)
        view = None
        if data:
            view = self.other.sink(message, len(data))
            view[:] = data
        self.other.received(message, view)


class Pair:
    """Two ends; the first pulls from the second."""

    def __init__(self) -> None:
        self.arenas = [SharedDomain(16 * MIB), SharedDomain(16 * MIB)]
        self.here, self.there = (
            Exchange(name, arena, AtOnce(), lambda event: event())
            for name, arena in zip(("there", "here"), self.arenas, strict=True)
        )
        self.lines = [Line(), Line()]
        self.lines[0].other, self.lines[1].other = self.lines[1], self.lines[0]
        for exchange, line in zip((self.here, self.there), self.lines, strict=True):
            exchange.attach(line)  # type: ignore[arg-type]

    def run(self) -> None:
        while any(line.waiting for line in self.lines):
            for line in self.lines:
                if line.waiting:
                    line.deliver()

    def fetch(self, *regions: RegionSize, remember: tuple[int, ...] = ()) -> list[Any]:
        found: list[Fetched | DandelionError] = []
        self.here.fetch(regions, found.append, remember)
        return found


@pytest.fixture
def pair() -> Iterator[Pair]:
    made = Pair()
    yield made
    made.here.close("the end")
    made.there.close("the end")
    gc.collect()
    for arena in made.arenas:
        arena.recycle()
        assert arena.stats().used_bytes == 0
        arena.close()


def test_a_region_comes_in_pieces_within_the_window(pair: Pair) -> None:
    data = bytes(range(256)) * (6 * MIB // 256) + b"rest"
    found = pair.fetch(pair.there.regions.hold([data[:1000], data[1000:]]))
    assert len(pair.lines[0].waiting) == WINDOW
    sizes = [m.size for m, _ in pair.lines[0].waiting if isinstance(m, Pull)]
    assert sizes == [PIECE_BYTES] * WINDOW
    pair.run()
    ((region, copy),) = found[0].items()
    assert bytes(copy) == data
    assert copy.readonly
    pair.here.release([region])
    pair.run()
    assert len(pair.there.regions) == 0


def test_calls_that_want_the_same_share_one_copy(pair: Pair) -> None:
    region = pair.there.regions.export(bytes(2 * MIB))
    first, second = pair.fetch(region), pair.fetch(region)
    pair.run()
    third = pair.fetch(region)
    assert first[0][1] is second[0][1] is third[0][1]
    pair.there.withdraw([region.region])
    pair.run()
    again = pair.fetch(region)
    pair.run()
    assert isinstance(again[0], NodeLost)  # it is not held any more


def test_without_room_it_fails_and_the_next_one_works(pair: Pair) -> None:
    large = pair.there.regions.hold([bytes(20 * MIB)])
    small = pair.there.regions.hold([b"small"])
    found, other = pair.fetch(large), pair.fetch(small)
    pair.run()
    assert isinstance(found[0], ContextFull)
    assert bytes(other[0][small.region]) == b"small"


def test_together_one_failure_ends_all_and_nothing_stays(pair: Pair) -> None:
    there = pair.there.regions.hold([bytes(3 * MIB)])
    found = pair.fetch(RegionSize(99, 5), there)
    pair.run()
    assert isinstance(found[0], NodeLost)
    assert len(found) == 1
    pair.here.release([there.region])
    pair.run()


def test_the_end_of_the_connection_ends_fetches_once(pair: Pair) -> None:
    found = pair.fetch(pair.there.regions.hold([bytes(3 * MIB)]))
    pair.here.close("it broke")
    pair.here.close("again")
    assert isinstance(found[0], NodeLost)
    assert len(found) == 1
    assert isinstance(pair.fetch(RegionSize(1, 1))[0], NodeLost)


def test_pieces_that_were_not_asked_for_end_the_connection(pair: Pair) -> None:
    pair.fetch(pair.there.regions.hold([bytes(MIB)]))
    for piece in (Piece(7, 0), Piece(1, 5)):
        with pytest.raises(BadPeer):
            pair.lines[0].sink(piece, 10)
    with pytest.raises(BadPeer):
        pair.lines[0].sink(Pull(1, 1, 0, 1), 10)


def test_the_place_of_a_copy_is_known_as_long_as_the_copy(pair: Pair) -> None:
    region = pair.there.regions.export(bytes(2 * MIB))
    found = pair.fetch(region, remember=(region.region,))
    pair.run()
    copy = found.pop()[region.region]
    pair.here.release([region.region], copied=True)
    pair.run()
    assert pair.here.place_of(copy) == (region.region, 0)
    assert pair.here.place_of(copy[100:200]) == (region.region, 100)
    assert pair.here.place_of(bytes(100)) is None
    assert pair.there.regions.whole(region.region) is not None
    address = pair.arenas[0].locate(copy)
    del copy
    other = pair.arenas[0].acquire_to_fill(2 * MIB)  # the same memory, for something else
    assert pair.arenas[0].locate(other.view) == address
    assert pair.here.place_of(other.view) is None
    assert [type(m) for m, _ in pair.lines[0].waiting] == [Release]
    pair.run()
    assert pair.there.regions.whole(region.region) is None


def test_originals_that_were_dropped_are_forgotten(pair: Pair) -> None:
    region = pair.there.regions.export(bytes(2 * MIB))
    found = pair.fetch(region, remember=(region.region,))
    pair.run()
    copy = found.pop()[region.region]
    pair.here.forget([region.region])
    assert pair.here.place_of(copy) is None
