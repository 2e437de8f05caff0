"""One data connection: regions of the other side are pulled, and own ones are sent.

A region is pulled in pieces, straight into memory of the arena. Flow control is the puller's: it
asks for at most `WINDOW` pieces at a time, so a sender has no more than these in its queue, and a
receiver takes no more than it has memory for. Regions are pulled in the order in which they were
asked for.

What was copied from the other side, and still lies there, is known by its address in the memory of
this node (`place_of`). When the last view of the copy is gone, the other side is told.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections import deque
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Executor as Pool
from dataclasses import dataclass, field
from functools import partial

from dandelion.cluster.call_messages import RegionSize
from dandelion.cluster.frames import Frames
from dandelion.cluster.handshake import BadPeer
from dandelion.cluster.messages import PIECE_BYTES, Gone, Message, Piece, Pull, Release, Withdraw
from dandelion.cluster.regions import Regions
from dandelion.data import Bytes
from dandelion.errors import DandelionError, NodeLost
from dandelion.executors import to_dandelion_error
from dandelion.memory import Context, SharedDomain
from dandelion.memory.lease import address_of, leased_view

WINDOW = 4
"""How many pieces are asked for at a time."""
INLINE_ACQUIRE_BYTES = 512 * 1024
"""A larger context is acquired in a thread, since memory may have to be zeroed for it."""
FETCHES_LIMIT = 2 * 65536
STALL_NS = 10_000_000_000
"""After so long without a byte of the pieces that were asked for, the connection is given up."""

Fetched = dict[int, memoryview]
"""Regions of the other side, read-only, by number."""
Post = Callable[[Callable[[], None]], None]
_Copy = tuple[int, int, int]


@dataclass(slots=True, eq=False)
class _Fetch:
    """Regions that are wanted together."""

    done: Callable[[Fetched | DandelionError], None]
    left: int
    found: Fetched = field(default_factory=dict)
    ended: bool = False

    def end(self, result: Fetched | DandelionError) -> None:
        if not self.ended:
            self.ended = True
            self.done(result)


@dataclass(slots=True, eq=False)
class _Transfer:
    """A region that is being pulled."""

    number: int
    region: RegionSize
    fetches: list[_Fetch]
    remember: bool
    target: memoryview | None = None
    requested: int = 0
    arrived: int = 0
    pending: dict[int, int] = field(default_factory=dict)


class Exchange:
    """One end of a data connection.

    Args:
        peer: name of the other node, for errors.
        arena: where regions are copied to.
        pool: threads for large contexts.
        post: has something done on the node's loop.

    Attributes:
        regions: what this node holds for the other one.
        limit_bytes: size of the arena; nothing that is larger can be fetched.
    """

    def __init__(self, peer: str, arena: SharedDomain, pool: Pool, post: Post) -> None:
        self.limit_bytes = arena.map.size_bytes
        self.regions = Regions(self.limit_bytes // 8)
        self._peer = peer
        self._arena = arena
        self._pool = pool
        self._post = post
        self._frames: Frames | None = None
        self._transfers: dict[int, _Transfer] = {}
        self._by_region: dict[int, _Transfer] = {}
        self._there: Fetched = {}
        self._queue: deque[_Transfer] = deque()
        self._number = 0
        self._outstanding = 0
        self._copies: list[_Copy] = []  # address, size, region; by address
        self._dropped: deque[_Copy] = deque()
        self._closed = False
        self._progress = (0, 0)  # bytes that had arrived, and when these became more
        self._moved_bytes = (0, 0)

    @property
    def is_attached(self) -> bool:
        """Whether it has its connection."""
        return self._frames is not None

    @property
    def sent_bytes(self) -> int:
        """Bytes that were sent."""
        return self._moved_bytes[0] if self._frames is None else self._frames.sent_bytes

    @property
    def received_bytes(self) -> int:
        """Bytes that were received."""
        return self._moved_bytes[1] if self._frames is None else self._frames.received_bytes

    def attach(self, frames: Frames) -> None:
        """Use a connection, on which both ends have proved their membership."""
        if self._closed:
            frames.close("the link has ended")
            return
        self._frames = frames
        frames.sink = self._sink
        frames.received = self._received
        self._ask()

    def close(self, reason: str) -> None:
        """The connection ended, or is ended now: fetches fail, regions are dropped."""
        if self._closed:
            return
        self._closed = True
        frames, self._frames = self._frames, None
        if frames is not None:
            self._moved_bytes = (frames.sent_bytes, frames.received_bytes)
            frames.close(reason)
        transfers = list(self._transfers.values())
        self._transfers.clear()
        self._by_region.clear()
        self._there.clear()
        self._queue.clear()
        self._copies.clear()
        self.regions.clear()
        for transfer in transfers:
            for fetch in transfer.fetches:
                fetch.end(NodeLost(self._peer, reason))

    # --- regions of the other side ----------------------------------------------------------------

    def fetch(
        self,
        regions: Sequence[RegionSize],
        done: Callable[[Fetched | DandelionError], None],
        remember: Collection[int] = (),
    ) -> None:
        """Copy regions to the arena, those that are not there yet.

        Args:
            regions: of the other side.
            done: called on the loop, with the copies, or `ContextFull` if the arena has no room, or
                `NodeLost`.
            remember: numbers of those whose copies `place_of` is to know.
        """
        fetch = _Fetch(done, len(regions))
        if self._closed:
            fetch.end(NodeLost(self._peer, "its connection ended"))
            return
        if len(self._transfers) + len(regions) > FETCHES_LIMIT:
            raise BadPeer(f"it has more than {FETCHES_LIMIT} regions for this node")
        for region in regions:
            copy = self._there.get(region.region)
            if copy is not None:
                fetch.found[region.region] = copy
                fetch.left -= 1
            elif (known := self._by_region.get(region.region)) is not None:
                known.fetches.append(fetch)
            else:
                self._begin(region, fetch, region.region in remember)
        if not fetch.left:
            fetch.end(fetch.found)

    def _begin(self, region: RegionSize, fetch: _Fetch, remember: bool) -> None:
        self._number += 1
        transfer = _Transfer(self._number, region, [fetch], remember)
        self._transfers[transfer.number] = self._by_region[region.region] = transfer
        if region.size <= INLINE_ACQUIRE_BYTES:
            self._placed(transfer, self._acquire(region.size))
        else:
            self._pool.submit(self._acquire_later, transfer)

    def _acquire(self, size: int) -> Context | DandelionError:
        try:
            return self._arena.acquire_to_fill(size)
        except Exception as error:
            return to_dandelion_error(error, "the arena")

    def _acquire_later(self, transfer: _Transfer) -> None:
        context = self._acquire(transfer.region.size)
        self._post(partial(self._placed, transfer, context))

    def _placed(self, transfer: _Transfer, context: Context | DandelionError) -> None:
        if transfer.number not in self._transfers:
            return
        if isinstance(context, DandelionError):
            self._give_up(transfer, context)
            return
        transfer.target = context.view
        self._queue.append(transfer)
        self._ask()

    def _ask(self) -> None:
        """Ask for further pieces, as many as the window has room for."""
        while self._queue and self._outstanding < WINDOW and self._frames is not None:
            transfer = self._queue[0]
            size = min(PIECE_BYTES, transfer.region.size - transfer.requested)
            offset = transfer.requested
            transfer.requested += size
            transfer.pending[offset] = size
            if transfer.requested == transfer.region.size:
                self._queue.popleft()
            self._outstanding += 1
            self._frames.send(Pull(transfer.number, transfer.region.region, offset, size))

    def stalled(self, now_ns: int) -> str:
        """Tell why this connection is to be given up; empty if it is not. Called now and then.

        The other one may work all the time, as behind a firewall that has forgotten this one.
        """
        frames = self._frames
        if frames is None:
            return ""
        frames.is_moving(now_ns)
        count, since_ns = self._progress
        if not self._outstanding or frames.received_bytes != count or not since_ns:
            self._progress = (frames.received_bytes, now_ns)
        elif now_ns - since_ns > STALL_NS:
            return f"data that was asked for has not come for {STALL_NS / 1e9:.0f} s"
        return ""

    def _give_up(self, transfer: _Transfer, error: DandelionError) -> None:
        """A region cannot be had. Pieces that are on their way are dropped when they come."""
        self._by_region.pop(transfer.region.region, None)
        if transfer in self._queue:
            self._queue.remove(transfer)
        if not transfer.pending:
            self._transfers.pop(transfer.number, None)
        fetches, transfer.fetches = transfer.fetches, []
        for fetch in fetches:
            fetch.end(error)
        self._ask()

    def _sink(self, message: Message, size: int) -> memoryview:
        if not isinstance(message, Piece):
            raise BadPeer(f"{type(message).__name__} has data")
        transfer = self._transfers.get(message.transfer)
        if transfer is None or transfer.pending.get(message.offset) != size:
            raise BadPeer("it sent a piece that was not asked for")
        assert transfer.target is not None, "it is asked for with a target"
        return transfer.target[message.offset : message.offset + size]

    def _received(self, message: Message, data: memoryview | None) -> None:
        if isinstance(message, Piece) and data is not None:
            self._arrived(self._transfers[message.transfer], message.offset)
        elif isinstance(message, Pull):
            self._send(message)
        elif isinstance(message, Release):
            self.regions.released(message.regions, message.copied)
        elif isinstance(message, Withdraw):
            for region in message.regions:
                self._there.pop(region, None)
        elif isinstance(message, Gone):
            transfer = self._transfers.get(message.transfer)
            if transfer is not None and transfer.pending:
                self._outstanding -= len(transfer.pending)
                transfer.pending.clear()
                self._give_up(transfer, NodeLost(self._peer, "it does not hold the data any more"))
        else:
            raise BadPeer(f"{type(message).__name__} does not belong on this connection")

    def _arrived(self, transfer: _Transfer, offset: int) -> None:
        self._outstanding -= 1
        transfer.arrived += transfer.pending.pop(offset)
        if transfer.arrived == transfer.region.size:
            del self._transfers[transfer.number]
            self._landed(transfer)
        elif not transfer.fetches and not transfer.pending:
            del self._transfers[transfer.number]  # it was given up
        self._ask()

    def _landed(self, transfer: _Transfer) -> None:
        region = transfer.region.region
        if self._by_region.get(region) is not transfer:
            return
        del self._by_region[region]
        assert transfer.target is not None, "it has arrived"
        copy = self._there[region] = self._copied(transfer.target, region, transfer.remember)
        for fetch in transfer.fetches:
            fetch.found[region] = copy
            fetch.left -= 1
            if not fetch.left:
                fetch.end(fetch.found)

    def _copied(self, target: memoryview, region: int, remember: bool) -> memoryview:
        """Return the copy of a region; remember where the original is."""
        if not remember:
            return target.toreadonly()
        copy = (address_of(target), target.nbytes, region)
        insort(self._copies, copy)
        # It may be released inside the collector: one atomic append, no lock.
        release = partial(self._dropped.append, copy)
        return leased_view(target, 0, target.nbytes, release).toreadonly()

    def release(self, regions: Sequence[int], copied: bool = False) -> None:
        """Tell the other side that its regions are not needed, or that they were copied."""
        for region in regions:
            self._there.pop(region, None)
        if regions and self._frames is not None:
            self._frames.send(Release(tuple(regions), copied))

    def place_of(self, data: Bytes) -> tuple[int, int] | None:
        """Return the region of the other side that data was copied from, and the offset there."""
        if not self._copies:
            return None
        self.tidy()  # memory of a copy that is gone may be used for something else
        address, size = address_of(data), memoryview(data).nbytes
        at = bisect_right(self._copies, (address, 1 << 62, 0)) - 1
        if at < 0:
            return None
        start, length, region = self._copies[at]
        return (region, address - start) if address + size <= start + length else None

    def forget(self, regions: Sequence[int]) -> None:
        """The other side has dropped originals of copies."""
        gone = set(regions)
        self._copies = [copy for copy in self._copies if copy[2] not in gone]

    def tidy(self) -> None:
        """Tell the other side of copies that are gone; called now and then, too."""
        gone = []
        while self._dropped:
            copy = self._dropped.popleft()
            at = bisect_right(self._copies, copy) - 1
            if at >= 0 and self._copies[at] == copy:
                del self._copies[at]
                gone.append(copy[2])
        self.release(gone)

    # --- what this node holds ---------------------------------------------------------------------

    def _send(self, pull: Pull) -> None:
        assert self._frames is not None, "it was received there"
        pieces = self.regions.part(pull.region, pull.offset, pull.size)
        if pieces is None:
            self._frames.send(Gone(pull.transfer))
        else:
            self._frames.send(Piece(pull.transfer, pull.offset), pieces)

    def withdraw(self, regions: Sequence[int]) -> None:
        """Calls ended that regions of this node were held for."""
        gone = self.regions.withdraw(regions)
        if gone and self._frames is not None:
            self._frames.send(Withdraw(tuple(gone)))
