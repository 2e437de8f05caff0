"""Questions between two nodes, each with an answer: bytes, and perhaps data in pieces.

Small data comes with its message. Larger data is held in regions of `PART_BYTES`, which the other
side pulls one after the other: its arena needs room for one of them only. A large message, such as
thousands of records with the texts of errors, is put before the data and comes with it.
A question whose link ends before the answer fails with `NodeLost`; the other side may have done
what was asked.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass

from dandelion.cluster.call_messages import RegionSize
from dandelion.cluster.exchange import Exchange, Fetched
from dandelion.cluster.frames import Frames
from dandelion.cluster.handshake import BadPeer
from dandelion.cluster.messages import INLINE_BYTES, Question, Reply
from dandelion.data import Bytes
from dandelion.errors import DandelionError, NodeLost

PART_BYTES = 8 << 20
QUESTIONS_LIMIT = 8192
"""Of one node, that are being answered; further ones are refused."""

log = logging.getLogger("dandelion.cluster")


@dataclass(frozen=True, slots=True)
class Answer:
    """What a question gets: a message, and data in pieces, which must not change."""

    content: bytes
    chunks: Sequence[Bytes] = ()


class Questions:
    """The questions over one link, in both directions. For the loop's thread.

    Args:
        peer: name of the other node.
        control: the connection for messages.
        exchange: for larger data.
        answer: answers a question of the other node, given its name, the message and the data. It
            raises nothing.
    """

    def __init__(
        self,
        peer: str,
        control: Frames,
        exchange: Exchange,
        answer: Callable[[str, bytes, Bytes], Awaitable[Answer]],
    ) -> None:
        self._peer = peer
        self._control = control
        self._exchange = exchange
        self._answer = answer
        self._number = 0
        self._asked: dict[int, asyncio.Future[tuple[bytes, Bytes]]] = {}
        self._answering: set[asyncio.Task[None]] = set()
        self._closed: NodeLost | None = None

    async def ask(self, content: bytes, chunks: Sequence[Bytes] = ()) -> tuple[bytes, Bytes]:
        """Ask the other node; return its message and data.

        Raises:
            NodeLost: the link ended.
            DandelionError: the data could not be fetched, or cannot be held.
        """
        if self._closed is not None:
            raise self._closed
        self._number += 1
        number = self._number
        answered: asyncio.Future[tuple[bytes, Bytes]]
        answered = self._asked[number] = asyncio.get_running_loop().create_future()
        regions: list[int] = []
        try:
            regions = self._send(Question, number, content, chunks)
            return await answered
        finally:
            self._asked.pop(number, None)
            self._exchange.withdraw(regions)

    def _send(
        self,
        kind: type[Question] | type[Reply],
        number: int,
        content: bytes,
        chunks: Sequence[Bytes],
    ) -> list[int]:
        """Send a message; return the regions that hold its data."""
        head_bytes = len(content) if len(content) > INLINE_BYTES else 0
        if head_bytes:
            content, chunks = b"", (content, *chunks)
        pieces: list[Bytes] = [memoryview(chunk).cast("B") for chunk in chunks if len(chunk)]
        held: list[RegionSize] = []
        try:
            if sum(map(len, pieces)) > INLINE_BYTES:
                held.extend(map(self._exchange.regions.hold, _parts(pieces)))
                pieces = []
            self._control.send(kind(number, content, tuple(held), head_bytes), pieces)
        except DandelionError:
            self._exchange.withdraw([one.region for one in held])
            raise
        return [one.region for one in held]

    def received(self, message: Question | Reply, data: memoryview | None) -> None:
        """Take a message of the other node."""
        if isinstance(message, Reply):
            if message.number > self._number:
                raise BadPeer("it answered a question that was not asked")
            self._fetch(message, data, self._replied)
            return
        if len(self._answering) >= QUESTIONS_LIMIT:
            self._exchange.release([one.region for one in message.regions])
            self._control.send(Reply(message.number, b""))  # callers that wait are no broken peer
            return
        self._fetch(message, data, self._questioned)

    def _fetch(
        self,
        message: Question | Reply,
        data: memoryview | None,
        done: Callable[[int, bytes, Bytes | DandelionError], None],
    ) -> None:
        if message.head_bytes > sum([one.size for one in message.regions]):
            raise BadPeer("a message is larger than the data that has it")
        if not message.regions:
            done(message.number, message.content, b"" if data is None else data)
            return
        whole = bytearray()
        left = list(message.regions)

        def fetched(found: Fetched | DandelionError) -> None:
            region = left.pop(0).region
            if isinstance(found, DandelionError):
                self._exchange.release([region, *(one.region for one in left)])
                done(message.number, message.content, found)
                return
            whole.extend(found[region])
            self._exchange.release([region])
            if left:
                self._exchange.fetch(left[:1], fetched)
            else:
                view, head_bytes = memoryview(whole).toreadonly(), message.head_bytes
                content = bytes(view[:head_bytes]) if head_bytes else message.content
                done(message.number, content, view[head_bytes:])

        self._exchange.fetch(left[:1], fetched)

    def _replied(self, number: int, content: bytes, data: Bytes | DandelionError) -> None:
        answered = self._asked.get(number)
        if answered is None or answered.done():
            return  # the caller was cancelled
        if isinstance(data, DandelionError):
            answered.set_exception(data)
        else:
            answered.set_result((content, data))

    def _questioned(self, number: int, content: bytes, data: Bytes | DandelionError) -> None:
        if self._closed is not None:
            return
        if isinstance(data, DandelionError):
            log.warning("data of %s cannot be taken: %s", self._peer, data)
            self._control.send(Reply(number, b""))  # an answer that cannot be read is a refusal
            return
        task = asyncio.get_running_loop().create_task(self._respond(number, content, data))
        self._answering.add(task)
        task.add_done_callback(self._answering.discard)

    async def _respond(self, number: int, content: bytes, data: Bytes) -> None:
        answer = await self._answer(self._peer, content, data)
        if self._closed is not None:
            return
        try:
            self._send(Reply, number, answer.content, answer.chunks)
        except DandelionError as error:
            log.warning("an answer for %s cannot be sent: %s", self._peer, error)
            self._control.send(Reply(number, b""))

    def close(self, reason: str) -> None:
        """The link ended."""
        self._closed = NodeLost(self._peer, reason)
        for answered in self._asked.values():
            if not answered.done():
                answered.set_exception(NodeLost(self._peer, reason))
        for task in self._answering:
            task.cancel()


def _parts(pieces: Sequence[Bytes]) -> Iterator[list[Bytes]]:
    """Divide data into parts of `PART_BYTES`, without copying."""
    part: list[Bytes] = []
    room = PART_BYTES
    for piece in pieces:
        rest = memoryview(piece)
        while len(rest):
            part.append(rest[:room])
            rest, room = rest[room:], room - len(part[-1])
            if not room:
                yield part
                part, room = [], PART_BYTES
    if part:
        yield part
