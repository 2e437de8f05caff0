"""Memory of the node's arena that a frontend asks for, uses and gives back."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from dandelion.data import Bytes
from dandelion.frontend_process.leases import SLAB_BYTES, SLAB_ITEM_BYTES, Leases, Slabs
from dandelion.frontend_process.link import Link
from dandelion.frontend_process.messages import FromNode, Lease, Leased, Release
from dandelion.frontend_process.spares import Spares
from dandelion.memory import ArenaMap, Context

_RELEASE_S = 0.01
"""Memory that is no longer used goes back after so long, if no other message is sent before."""
_SPARE_BYTES = 1024 * 1024
_SPARE_SHARE = 32
"""Of the arena; all frontends together keep so much ready for bodies at most."""


@dataclass(frozen=True, slots=True)
class _Asked:
    """What the node was asked for: a size, and the future or the function that gets it."""

    size_bytes: int
    future: asyncio.Future[Context] | None = None
    add: Callable[[int, Context | None], None] | None = None


class RemoteMemory:
    """Leases of one frontend. For the loop's thread alone.

    Args:
        loop: the running loop.
        link: to the node.
        numbers: numbers of requests, which leases share with all others.
        arena: of the node.
        frontends: how many processes share it.

    Attributes:
        leases: what the frontend has of the arena.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        link: Link[FromNode],
        numbers: Iterator[int],
        arena: ArenaMap,
        frontends: int,
    ) -> None:
        self._loop = loop
        self._link = link
        self._numbers = numbers
        self._asked: dict[int, _Asked] = {}
        self._releasing: asyncio.TimerHandle | None = None
        self.leases = Leases(arena, lambda size: self.lease_now(size)[1])
        self._slabs = Slabs(self._ask_slab)
        limit_bytes = min(_SPARE_BYTES, arena.size_bytes // (_SPARE_SHARE * frontends))
        self._spares = Spares(self._ask_spare, limit_bytes)
        self._slabs.fill()

    async def acquire(self, size_bytes: int) -> Context:
        """Give a context with any content.

        Raises:
            ContextFull: the arena has no room.
        """
        spare = self._spares.take(size_bytes, self._loop.time())
        return spare if spare is not None else (await self.lease(size_bytes))[1]

    def place(self, data: Bytes) -> tuple[int, int] | None:
        """Copy data to memory that lies ready; gives the number of the lease and the offset there.

        The memory is given back after the next invocation, so that has to name the place. None if
        nothing lies ready.
        """
        size = len(data)
        if size <= SLAB_ITEM_BYTES:
            return self._slabs.place(data)
        spare = self._spares.take(size, self._loop.time())
        if spare is None:
            return None
        spare.view[:] = data
        return self.leases.find(spare.view)

    async def lease(self, size_bytes: int) -> tuple[int, Context]:
        """Ask for a context; give its number, too. Raises as `acquire`."""
        future: asyncio.Future[Context] = self._loop.create_future()
        self.release()  # there may be no room otherwise
        number = self._ask(_Asked(size_bytes, future))
        try:
            return number, await future
        finally:
            del future  # its error refers to this frame

    def lease_now(self, size_bytes: int) -> tuple[int, Context]:
        """Ask for a context and wait for it as `lease` does; for threads."""
        return asyncio.run_coroutine_threadsafe(self.lease(size_bytes), self._loop).result()

    def _ask(self, asked: _Asked, *, ahead: bool = False) -> int:
        number = next(self._numbers)
        self._asked[number] = asked
        self._link.post(Lease(number, asked.size_bytes, ahead))
        return number

    def _ask_slab(self) -> None:
        self._ask(_Asked(SLAB_BYTES, add=self._slabs.add))

    def _ask_spare(self, size_bytes: int) -> None:
        def add(_: int, context: Context | None) -> None:
            self._spares.add(size_bytes, context)

        self._ask(_Asked(size_bytes, add=add), ahead=True)

    def leased(self, message: Leased) -> None:
        """Take what was asked for."""
        asked = self._asked.pop(message.number)
        context = self.leases.leased(message.number, message.offset, asked.size_bytes)
        if asked.add is not None:
            asked.add(message.number, context)
        elif asked.future is not None and not asked.future.done():
            asked.future.set_result(context)
        self.release_later()  # it may not be wanted any more

    def failed(self, number: int, error: Callable[[], Exception]) -> bool:
        """Take note that there is no room; gives whether the number is that of a lease."""
        asked = self._asked.pop(number, None)
        if asked is None:
            return False
        if asked.add is not None:
            asked.add(number, None)
        elif asked.future is not None and not asked.future.done():
            asked.future.set_exception(error())
        return True

    def lost(self) -> None:
        """Fail everything that waits; the node is gone."""
        for asked in self._asked.values():
            if asked.future is not None:
                asked.future.cancel()

    def submitted(self) -> None:
        """Send what may go with an invocation, behind what refers to memory."""
        self.release()
        self._spares.fill()

    def release(self) -> None:
        """Give back what is no longer used."""
        if self.leases.has_gone:
            self._link.post(Release(self.leases.gone()))

    def release_later(self) -> None:
        """Look from now on, as long as there are leases or results, for what is to be released."""
        if self._releasing is None:
            self._releasing = self._loop.call_later(_RELEASE_S, self._look_for_releases)

    def _look_for_releases(self) -> None:
        self._releasing = None
        self._spares.expire(self._loop.time())
        self.release()
        if len(self.leases) > len(self._slabs):
            self.release_later()
