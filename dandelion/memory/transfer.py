"""Moving data between domains, and counting the copies.

Data that is already in the destination domain is passed by reference; other data is copied.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, TypeAlias

from dandelion.data import Bytes, Item, ItemSet
from dandelion.memory.context import Context, MemoryDomain


@dataclass(slots=True)
class TransferCounts:
    """Counts of transfers. `copies` and `references` count items, `copied_bytes` bytes."""

    copies: int = 0
    copied_bytes: int = 0
    references: int = 0


class Transfers:
    """Copies data into domains, and counts the copies. Safe from any thread."""

    ALIGNMENT_BYTES: ClassVar[int] = 256

    def __init__(self) -> None:
        self._counts = TransferCounts()
        self._lock = threading.Lock()

    def counts(self) -> TransferCounts:
        """Return a snapshot of the counts."""
        with self._lock:
            return replace(self._counts)

    def count(self, copies: int, copied_bytes: int, references: int = 0) -> None:
        """Count items that were copied, and items that are passed by reference."""
        with self._lock:
            self._counts.copies += copies
            self._counts.copied_bytes += copied_bytes
            self._counts.references += references

    @classmethod
    def aligned(cls, size_bytes: int) -> int:
        """Return how much of a context a copy takes."""
        return -(-size_bytes // cls.ALIGNMENT_BYTES) * cls.ALIGNMENT_BYTES

    def fill(self, data: Bytes, destination: Context, offset_bytes: int) -> memoryview:
        """Copy `data` to an offset of a context, and zeros behind it up to the alignment.

        Returns:
            A read-only view of the copy, to be counted by the caller.

        Raises:
            ContextFull: it does not fit.
        """
        view = destination.write(offset_bytes, data)
        size = view.nbytes
        gap = -size % self.ALIGNMENT_BYTES
        if gap:
            destination.write(offset_bytes + size, _ZEROS[:gap])
        return view

    def join(self, pieces: Sequence[Bytes], domain: MemoryDomain) -> memoryview:
        """Copy several pieces to one new context, one directly after the other.

        Returns:
            A read-only view of all.

        Raises:
            ContextFull: the domain has too little free memory; nothing changed.
        """
        sizes = [p.nbytes if isinstance(p, memoryview) else len(p) for p in pieces]
        total = sum(sizes)
        context = domain.acquire_to_fill(total)
        end = 0
        for piece, size in zip(pieces, sizes, strict=True):
            context.write(end, piece)
            end += size
        self.count(len(sizes), total)
        return context.read(0, total)

    def place(self, sets: tuple[ItemSet | None, ...], domain: MemoryDomain) -> _Placed:
        """Move every item of `sets` to `domain`: by reference if it is there, else by one copy.

        All copies go to one new context. Empty items are not changed.

        Raises:
            ContextFull: the domain has too little free memory; nothing changed.
        """
        moving: list[tuple[int, int, Item]] = []
        total = kept = 0
        for at, item_set in enumerate(sets):
            for index, item in enumerate(item_set.items if item_set is not None else ()):
                size = item.size_bytes
                if not size:
                    continue
                if domain.locate(item.data) is not None:
                    kept += 1
                else:
                    moving.append((at, index, item))
                    total += self.aligned(size)
        context = domain.acquire_to_fill(total) if moving else None
        if context is None:
            self.count(0, 0, kept)
            return sets
        replaced: dict[int, list[Item]] = {}
        offset = copied_bytes = 0
        for at, index, item in moving:
            view = self.fill(item.data, context, offset)
            source = sets[at]
            assert source is not None
            items = replaced.setdefault(at, list(source.items))
            items[index] = Item(item.name, item.key, view, item.dtype, item.shape)
            offset += self.aligned(view.nbytes)
            copied_bytes += view.nbytes
        self.count(len(moving), copied_bytes, kept)
        return tuple(
            s
            if s is None or at not in replaced
            else ItemSet(s.name, tuple(replaced[at]), s.dtype, s.shape)
            for at, s in enumerate(sets)
        )


_Placed: TypeAlias = tuple[ItemSet | None, ...]
_ZEROS = bytes(Transfers.ALIGNMENT_BYTES)
