"""What both ends of a link do alike: they end, and they give each other blobs."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Protocol

from dandelion.cluster.call_messages import RegionSize
from dandelion.cluster.exchange import Exchange, Fetched
from dandelion.cluster.frames import Frames
from dandelion.cluster.handshake import BadPeer
from dandelion.cluster.messages import (
    Ballot,
    BlobAt,
    GetBlob,
    Leave,
    Message,
    Question,
    Refuse,
    Reply,
)
from dandelion.cluster.questions import Answer, Questions
from dandelion.data import Bytes
from dandelion.errors import DandelionError
from dandelion.executors import Surroundings
from dandelion.function import Digest

if TYPE_CHECKING:
    from dandelion.cluster.catalog import ClusterCatalog

BLOBS_LIMIT = 1024

log = logging.getLogger("dandelion.cluster")


class Hub(Protocol):
    """What links need of the node."""

    around: Surroundings
    catalog: ClusterCatalog

    def ended(self, link: ControlEnd, reason: str) -> None:
        """A link has ended."""

    def ballot(self, peer: str, content: bytes) -> None:
        """A message of the catalogue's log came."""

    async def answer(self, peer: str, content: bytes, data: Bytes) -> Answer:
        """Answer a question of another node."""


class ControlEnd:
    """One end of a link.

    Args:
        peer: name of the other node.
        control: its connection for control.
        exchange: for the connection for data.
        hub: the node.
    """

    def __init__(self, peer: str, control: Frames, exchange: Exchange, hub: Hub) -> None:
        self.peer = peer
        self.exchange = exchange
        self.control = control
        self.questions = Questions(peer, control, exchange, hub.answer)
        self._hub = hub
        self._wanted: dict[int, Callable[[Bytes | None], None]] = {}
        self._serving_blobs = 0
        self._number = 0
        self._seen_bytes = 0
        self.closed = False

    @property
    def under_way(self) -> int:
        """How many calls are on the side that runs them."""
        return 0

    @property
    def sent_bytes(self) -> int:
        """Bytes that were sent over both connections."""
        return self.control.sent_bytes + self.exchange.sent_bytes

    @property
    def received_bytes(self) -> int:
        """Bytes that were received over both connections."""
        return self.control.received_bytes + self.exchange.received_bytes

    def leave(self) -> None:
        """Tell that this node shuts down, and runs none of the calls that it has not answered."""
        self.control.send(Leave())

    def close(self, reason: str, politely: bool = False) -> None:
        """End both connections; what was under way is answered as lost."""
        if self.closed:
            return
        self.closed = True
        self.control.close(reason, politely)
        self.exchange.close(reason)
        self.questions.close(reason)
        wanted, self._wanted = self._wanted, {}
        for done in wanted.values():
            done(None)
        self._closed(reason)
        self._hub.ended(self, reason)

    def is_moving(self, now_ns: int) -> bool:
        """Look after both connections; called now and then. A stalled link is ended.

        Returns:
            Whether something moved on the one for control since the last time: a part of a large
            message is a sign of life, too.
        """
        stalled = self.exchange.stalled(now_ns)
        if stalled:
            self.close(stalled)
            return False
        seen, self._seen_bytes = self._seen_bytes, self.control.received_bytes
        return self.control.is_moving(now_ns) or self._seen_bytes != seen

    def _closed(self, reason: str) -> None:
        """Give up what was under way."""

    def received(self, message: Message, data: memoryview | None) -> None:
        """Take a message of the control connection."""
        if isinstance(message, GetBlob):
            self._serve_blob(message)
        elif isinstance(message, BlobAt):
            self._blob_at(message)
        elif isinstance(message, Ballot):
            self._hub.ballot(self.peer, message.content)
        elif isinstance(message, Question | Reply):
            self.questions.received(message, data)
        elif isinstance(message, Refuse):
            raise BadPeer(f"{self.peer} refused: {message.reason[:500]}")
        else:
            raise BadPeer(f"{type(message).__name__} does not belong here")

    # --- blobs --------------------------------------------------------------------------------

    def get_blob(self, digest: Digest, done: Callable[[Bytes | None], None]) -> None:
        """Fetch a blob; see `BlobPeer`."""
        if self.closed:
            done(None)
            return
        self._number += 1
        self._wanted[self._number] = done
        self.control.send(GetBlob(self._number, digest))

    def _serve_blob(self, message: GetBlob) -> None:
        if self._serving_blobs >= BLOBS_LIMIT:
            raise BadPeer(f"it asks for more than {BLOBS_LIMIT} blobs at once")
        self._serving_blobs += 1

        def read() -> None:
            data = self._hub.catalog.local_blob(message.digest)
            self._hub.around.events.post(partial(self._hold_blob, message.number, data))

        self._hub.around.pool.submit(read)

    def _hold_blob(self, number: int, data: Bytes | None) -> None:
        self._serving_blobs -= 1
        if self.closed:
            return
        if data is None or not len(data):
            self.control.send(BlobAt(number, None if data is None else 0))
            return
        try:
            region = self.exchange.regions.hold([data])
        except DandelionError as error:
            log.warning("a blob for %s cannot be held: %s", self.peer, error)
            self.control.send(BlobAt(number, None))  # another node may have it
            return
        self.control.send(BlobAt(number, region.region, region.size))

    def _blob_at(self, message: BlobAt) -> None:
        done = self._wanted.pop(message.number, None)
        if done is None:
            raise BadPeer("it gave a blob that was not asked for")
        if not message.region:
            done(None if message.region is None else b"")
            return
        region = RegionSize(message.region, message.size)

        def got(found: Fetched | DandelionError) -> None:
            self.exchange.release([region.region])
            done(None if isinstance(found, DandelionError) else found[region.region])

        self.exchange.fetch([region], got)
