"""The shared domain: one sealed memfd, the **arena**, of which contexts are page-aligned slices.

The node owns the arena and its allocator. Trusted engine processes map the same memory by file
descriptor (`ArenaMap`) and receive (offset, length) pairs; they never allocate. Untrusted code
never maps it. The file cannot shrink or grow (seals), so a peer cannot make an access fault.

Acquiring is a lookup in the free ranges, never a system call. Returned slices are zeroed by
writing, not by punching holes: engines pin this memory for their devices, and after a hole a device
would still use the old pages.
"""

from __future__ import annotations

import ctypes
import fcntl
import mmap
import os
import threading
from collections import deque
from functools import partial
from typing import ClassVar

from dandelion.data import Bytes
from dandelion.errors import ContextFull, InvalidInput
from dandelion.memory.context import PAGE_BYTES, Context, DomainStats, MemoryDomain
from dandelion.memory.free_ranges import FreeRanges
from dandelion.memory.lease import address_of, leased_view

_EAGER_BYTES = 128 * 1024  # zeroed while acquiring: costs less than touching fresh pages
_REMEDY = "use smaller inputs or fewer invocations at once, or raise 'arena_bytes'"
_LOOKS = 4
"""How many of the last returned slices are kept for `acquire_to_fill`, unless all are zeroed."""
_WAITING_BYTES = 1024 * 1024  # zeroed by a waiting thread while it is still in the caches
_BATCH_BYTES = 16 * 1024 * 1024
"""So much is zeroed between two looks whether it is enough: a few milliseconds."""
_F_ADD_SEALS = 1033
_SEALS = 0x1 | 0x2 | 0x4  # seal, shrink, grow: linux/fcntl.h


class ArenaMap:
    """A mapping of the arena in this process.

    Args:
        fd: the arena's memfd; this object owns and closes it.
        size_bytes: size of the arena.
    """

    def __init__(self, fd: int, size_bytes: int) -> None:
        self.fd = fd
        self.size_bytes = size_bytes
        self._map = mmap.mmap(fd, size_bytes)
        self.view = memoryview(self._map)
        self.address = address_of(self.view)

    def locate(self, data: Bytes) -> int | None:
        """Return the offset of `data` in the arena, or None if it is elsewhere."""
        size = data.nbytes if isinstance(data, memoryview) else len(data)
        if not size or isinstance(data, bytes):
            return None
        offset = address_of(data) - self.address
        return offset if 0 <= offset <= self.size_bytes - size else None

    def close(self) -> None:
        """Close the descriptor; the memory is unmapped with the last view into it."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


class SharedDomain(MemoryDomain):
    """Contexts as slices of one arena that other processes can map.

    Args:
        capacity_bytes: size of the arena, rounded up to pages. It is reserved address space; pages
            are allocated on first access.
    """

    kind: ClassVar[str] = "shared"

    def __init__(self, capacity_bytes: int) -> None:
        if capacity_bytes <= 0:
            raise InvalidInput(
                "arena", f"{capacity_bytes} bytes are not a valid size", "give 1 or more"
            )
        size = _pages(capacity_bytes)
        fd = os.memfd_create("dandelion-arena", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.ftruncate(fd, size)
            fcntl.fcntl(fd, _F_ADD_SEALS, _SEALS)
            self.map = ArenaMap(fd, size)
        except (OSError, OverflowError) as error:
            os.close(fd)
            reason = f"the system cannot reserve {capacity_bytes} bytes: {error}"
            raise InvalidInput("arena", reason, "set a smaller arena_bytes") from None
        self._ranges = FreeRanges(size)
        self._returned: deque[tuple[int, int]] = deque()
        self._leased = 0
        self._in_zeroing_bytes = 0
        self._lock = threading.Lock()  # the ranges; held for microseconds
        self._zeroing = threading.Lock()  # held while memory is zeroed

    def _acquire(self, size_bytes: int) -> Context:
        size = _pages(size_bytes)
        self.recycle_some(_EAGER_BYTES, 0)
        start = self._take(size)
        while start is None:  # other threads may return and take memory meanwhile
            zeroed = self._recycle_batch()
            start = self._take(size)
            if not zeroed:
                break
        if start is None:
            raise ContextFull(self.kind, size, self._ranges.largest, _REMEDY)
        return self._context(start, size, size_bytes)

    def acquire_to_fill(self, size_bytes: int) -> Context:
        size = _pages(size_bytes)
        for _ in range(min(len(self._returned), _LOOKS)):
            try:
                found = self._returned.pop()  # the newest is still in the caches
            except IndexError:  # another thread zeroes it
                break
            if found[1] == size:
                return self._context(*found, size_bytes)
            self._returned.appendleft(found)
        return self.acquire(size_bytes)

    def acquire_clean(self, size_bytes: int) -> Context | None:
        """Allocate a context without zeroing memory first; None if too little is clean."""
        size = _pages(size_bytes)
        start = self._take(size)
        return None if start is None else self._context(start, size, size_bytes)

    def _context(self, start: int, size: int, size_bytes: int) -> Context:
        # It may be released inside the collector: one atomic append, no lock.
        release = partial(self._returned.append, (start, size))
        view = leased_view(self.map.view, start, size_bytes, release)
        return Context(self, start, size_bytes, view)

    def _take(self, size: int) -> int | None:
        with self._lock:
            start = self._ranges.take(size)
            if start is not None:
                self._leased += 1
            return start

    @property
    def largest_free_bytes(self) -> int:
        """Size of the largest context that needs no zeroing of other memory first."""
        return self._ranges.largest

    @property
    def dirty(self) -> bool:
        """Whether returned memory is not zeroed yet."""
        return bool(self._returned)

    def recycle(self) -> int:
        total = 0
        while zeroed := self._recycle_batch():
            total += zeroed
            if total >= self.map.size_bytes:  # others return memory as fast
                break
        return total

    def _recycle_batch(self) -> int:
        """Zero some returned memory; return how many bytes, 0 if there is none."""
        with self._zeroing:  # a thread that waits here finds the memory of another one afterwards
            return self._zero(_BATCH_BYTES, least=1)

    def recycle_some(self, budget_bytes: int = _WAITING_BYTES, keep: int = _LOOKS) -> None:
        """Zero some memory unless another thread does; for a thread that waits anyway.

        Args:
            budget_bytes: largest amount; a larger context is left to `recycle`.
            keep: how many of the newest slices are left, to be filled again.
        """
        if self._returned and self._zeroing.acquire(blocking=False):
            try:
                self._zero(budget_bytes, keep)
            finally:
                self._zeroing.release()

    def _zero(self, budget_bytes: int, keep: int = 0, least: int = 0) -> int:
        """Zero returned memory up to about a budget, and free it.

        Neighbours are zeroed together. Each write gives the interpreter away, and a thread gets it
        back from one that is busy only after milliseconds.

        Args:
            budget_bytes: how much at most.
            keep: how many slices are left as they are.
            least: how many slices are zeroed whatever their size.

        Returns:
            The number of zeroed bytes.
        """
        slices: list[tuple[int, int]] = []
        total = 0
        while len(self._returned) > keep:
            try:
                start, size = self._returned.popleft()
            except IndexError:  # another thread took it to fill it
                break
            if size > budget_bytes - total and len(slices) >= least:
                self._returned.appendleft((start, size))
                break
            slices.append((start, size))
            total += size
        with self._lock:
            self._leased -= len(slices)
            self._in_zeroing_bytes = total
        runs = _runs(slices)
        for start, size in runs:
            ctypes.memset(self.map.address + start, 0, size)
        with self._lock:
            self._in_zeroing_bytes = 0
            for start, size in runs:
                self._ranges.give(start, size)
        return total

    def locate(self, data: Bytes) -> int | None:
        return self.map.locate(data)

    def stats(self) -> DomainStats:
        with self._lock:
            returned = [size for _, size in tuple(self._returned)]
            taken = self.map.size_bytes - self._ranges.free - self._in_zeroing_bytes
            contexts = self._leased - len(returned)
        return DomainStats(self.map.size_bytes, max(0, taken - sum(returned)), max(0, contexts))

    def close(self) -> None:
        self.map.close()


def _pages(size_bytes: int) -> int:
    return -(-size_bytes // PAGE_BYTES) * PAGE_BYTES


def _runs(slices: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Join slices of memory, given by start and size, that follow each other."""
    runs: list[tuple[int, int]] = []
    for start, size in sorted(slices):
        if runs and sum(runs[-1]) == start:
            runs[-1] = runs[-1][0], runs[-1][1] + size
        else:
            runs.append((start, size))
    return runs
