"""Moving data between domains, and counting the copies.

A transfer is read-then-write unless a pair of kinds registered something better. Data that lies in
the destination domain already is passed by reference.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TypeAlias

from dandelion.data import Bytes, Item, ItemSet
from dandelion.memory.context import Context, MemoryDomain

Way: TypeAlias = Callable[[Bytes, Context, int], memoryview]
"""Moves data into a context at an offset in bytes and gives a read-only view of it there."""


@dataclass(slots=True)
class TransferCounts:
    """How much was moved. `copies` and `references` count items, `copied_bytes` bytes."""

    copies: int = 0
    copied_bytes: int = 0
    references: int = 0


class Transfers:
    """The ways between kinds of memory, with counts of what was copied. Safe from any thread."""

    ALIGNMENT_BYTES = 256

    def __init__(self) -> None:
        self._ways: dict[tuple[str, str], Way] = {}
        self._counts = TransferCounts()
        self._lock = threading.Lock()

    def register(self, source_kind: str, destination_kind: str, way: Way) -> None:
        """Use `way` for data of one kind of domain that goes to another."""
        self._ways[source_kind, destination_kind] = way

    def counts(self) -> TransferCounts:
        """Give a snapshot of the counts."""
        with self._lock:
            return replace(self._counts)

    def kept(self, items: int) -> None:
        """Count items that lie where they are needed already."""
        with self._lock:
            self._counts.references += items

    def transfer(
        self, data: Bytes, destination: Context, offset_bytes: int, source_kind: str = "heap"
    ) -> memoryview:
        """Copy `data` to an offset of a context.

        Returns:
            A read-only view of the copy.

        Raises:
            ContextFull: it does not fit.
        """
        way = self._ways.get((source_kind, destination.domain.kind))
        view = (
            way(data, destination, offset_bytes) if way else destination.write(offset_bytes, data)
        )
        with self._lock:
            self._counts.copies += 1
            self._counts.copied_bytes += view.nbytes
        return view

    def place(self, sets: tuple[ItemSet | None, ...], domain: MemoryDomain) -> _Placed:
        """Make every item of `sets` lie in `domain`: by reference if it does, else by one copy.

        All copies go to one fresh context. Empty items stay as they are.

        Raises:
            ContextFull: the domain has no room; nothing changed.
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
                    total += -(-size // self.ALIGNMENT_BYTES) * self.ALIGNMENT_BYTES
        context = domain.acquire(total) if moving else None
        self.kept(kept)
        if context is None:
            return sets
        replaced: dict[int, list[Item]] = {}
        offset = 0
        for at, index, item in moving:
            view = self.transfer(item.data, context, offset)
            source = sets[at]
            assert source is not None
            items = replaced.setdefault(at, list(source.items))
            items[index] = Item(item.name, item.key, view, item.dtype, item.shape)
            offset += -(-view.nbytes // self.ALIGNMENT_BYTES) * self.ALIGNMENT_BYTES
        return tuple(
            s
            if s is None or at not in replaced
            else ItemSet(s.name, tuple(replaced[at]), s.dtype, s.shape)
            for at, s in enumerate(sets)
        )


_Placed: TypeAlias = tuple[ItemSet | None, ...]
