"""Questions between two nodes: data and large messages in regions, nothing left behind."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import cast
from unittest.mock import Mock

import pytest

from dandelion.cluster.call_messages import RegionSize
from dandelion.cluster.control_end import ControlEnd
from dandelion.cluster.exchange import Exchange, Fetched
from dandelion.cluster.frames import Frames
from dandelion.cluster.handshake import BadPeer
from dandelion.cluster.messages import BlobAt, Question, Reply, encode
from dandelion.cluster.questions import PART_BYTES, Answer, Questions
from dandelion.data import Bytes
from dandelion.errors import DandelionError, TooMany


class _Side:
    """One end: its connections for messages and for data."""

    def __init__(self, name: str) -> None:
        self.other = self
        self.regions = self
        self.held: dict[int, bytes] = {}
        self.count = self.largest = 0
        self.limit = 10
        self.questions = Questions(name, cast(Frames, self), cast(Exchange, self), self.answer)

    def send(self, message: Question | Reply, pieces: Sequence[Bytes] = ()) -> None:
        self.largest = max(self.largest, len(encode(message)))
        self.other.questions.received(message, memoryview(b"".join(pieces)) if pieces else None)

    def hold(self, pieces: Sequence[Bytes]) -> RegionSize:
        if len(self.held) >= self.limit:
            raise TooMany("a call", "regions", self.limit + 1, self.limit)
        self.count += 1
        self.held[self.count] = b"".join(pieces)
        return RegionSize(self.count, len(self.held[self.count]))

    def fetch(
        self, sizes: Sequence[RegionSize], done: Callable[[Fetched | DandelionError], None]
    ) -> None:
        done({one.region: memoryview(self.other.held[one.region]) for one in sizes})

    def release(self, regions: Sequence[int]) -> None:
        for region in regions:
            self.other.held.pop(region, None)

    def withdraw(self, regions: Sequence[int]) -> None:
        for region in regions:
            self.held.pop(region, None)

    async def answer(self, peer: str, content: bytes, data: Bytes) -> Answer:
        """Give everything back, in the other order."""
        return Answer(bytes(data), (content,))


@pytest.mark.parametrize("content", [0, 5, 64 << 10, 100_000, PART_BYTES + 7])
@pytest.mark.parametrize("data", [0, 5, 100_000])
def test_messages_of_any_size_arrive(content: int, data: int) -> None:
    async def run() -> None:
        one, other = _Side("b:1"), _Side("a:1")
        one.other, other.other = other, one
        for length, more in ((content, data), (data, content)):
            asked = bytes(range(251)) * (length // 251 + 1), b"\xff" * more
            found = await one.questions.ask(asked[0][:length], (asked[1],) if more else ())
            assert (found[0], bytes(found[1])) == (asked[1], asked[0][:length])
        assert max(one.largest, other.largest) < 70_000
        assert not one.held
        assert not other.held

    asyncio.run(run())


def test_a_message_that_its_data_cannot_have_ends_the_link() -> None:
    side = _Side("b:1")
    for message in (Question(1, b"", (), 1), Question(1, b"", (RegionSize(1, 5),), 6)):
        with pytest.raises(BadPeer):
            side.questions.received(message, None)


def test_data_that_cannot_be_held_leaves_nothing() -> None:
    async def run() -> None:
        side = _Side("b:1")
        side.limit = 2
        with pytest.raises(TooMany):
            await side.questions.ask(b"question", [bytes(2 * PART_BYTES + 1)])
        assert not side.held

    asyncio.run(run())


def test_a_blob_that_cannot_be_held_is_answered() -> None:
    """Else the node that asks would wait for it until the link ends."""
    side, control = _Side("b:1"), Mock()
    side.limit = 0
    end = ControlEnd("b:1", control, cast(Exchange, side), Mock())
    end._serving_blobs = 1
    end._hold_blob(7, b"blob")
    control.send.assert_called_once_with(BlobAt(7, None))
    assert not end._serving_blobs
