"""Constants that stay on the device: each function's in a block of held memory of its own.

A block is known by its content: the digests of the static sets that no kernel writes to. Functions
with the same constants, such as versions of one function, share it. **Outside of the calls of these
functions nobody can read a block, and nobody can ever write to it**: at most one block is open, for
reading, and it is closed before any other function's call begins. Opening and closing cost tens
of microseconds, so a block stays open until another function comes.

A block is filled once, from the inputs of the call that needs it first. Where blocks would come to
more than the limit, those go that are cheapest to miss: least used for what bringing them back
costs, and longest ago (the greedy-dual rule: what goes sets the level from which others must fall).
Small constants are not worth a mapping; they are copied with each call, as everything is where a
device holds no memory or has no room.

Source: greedy-dual-size with frequency, Cherkasova, HPL-98-69R1.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from dandelion.data import Item
from dandelion.errors import CapacityError, DandelionError
from dandelion.function import Digest

from .device import Device, Handle, Protection
from .layout import Slot, aligned
from .program import Program

SMALL_BYTES = 64 * 1024
"""Constants of a function that are not more than this together are copied with each call."""

_FIXED_US = 100.0
_BYTES_PER_US = 50_000.0
_GRANULE_BYTES = 2**21


@dataclass(frozen=True, slots=True)
class WeightsLimit:
    """How much device memory constants may take: so many bytes, or a share of it."""

    size_bytes: int = 0
    share: float = 0.0

    def of(self, memory_bytes: int) -> int:
        """Give the limit in bytes for a device with that much memory to give out."""
        return self.size_bytes or int(memory_bytes * self.share) // _GRANULE_BYTES * _GRANULE_BYTES

    def beside(self, pool_bytes: int) -> WeightsLimit:
        """Give the limit where a pool of that size is what this limit had left of all memory."""
        whole = int(pool_bytes / max(1.0 - self.share, 0.01))
        return WeightsLimit(self.of(whole))


@dataclass(slots=True, eq=False)
class Block:
    """The constants of one or more functions on the device.

    Attributes:
        key: digests of the content, by name.
        slots: where each set lies in it.
        size_bytes: what it counts for.
        held: the device's memory.
        owners: identities of the functions that used it.
        level: the lower, the sooner it goes.
        uses: how many calls opened it or found it open.
    """

    key: tuple[tuple[str, Digest], ...]
    slots: Mapping[str, Slot]
    size_bytes: int
    held: Handle
    owners: set[str] = field(default_factory=set)
    level: float = 0.0
    uses: int = 0


def constant_slots(program: Program, items: Mapping[str, Item]) -> tuple[dict[str, Slot], int]:
    """Lay out the constants of a function; gives where each lies, and the size of all."""
    slots: dict[str, Slot] = {}
    end = 0
    for name in program.constants:
        slots[name] = Slot(end, items[name].size_bytes)
        end += aligned(items[name].size_bytes)
    return slots, end


class Weights:
    """The blocks of one device; see the module's text.

    Args:
        device: open.
        limit_bytes: what all blocks together may take; 0 for none.
        dropped: called with a block before it goes; nothing may use it afterwards.
    """

    def __init__(self, device: Device, limit_bytes: int, dropped: Callable[[Block], None]) -> None:
        self._device = device
        self._limit_bytes = limit_bytes if device.abilities.holds else 0
        self._dropped = dropped
        self._blocks: dict[tuple[tuple[str, Digest], ...], Block] = {}
        self._open: Block | None = None
        self._sure = True
        self._level = 0.0
        self.uploads = 0

    @property
    def used_bytes(self) -> int:
        """What all blocks take."""
        return sum(block.size_bytes for block in self._blocks.values())

    def block(self, program: Program, items: Mapping[str, Item]) -> Block | None:
        """Give the block of a function's constants, filling it if it is new.

        Returns:
            None if the function has none, or they are better copied with each call.

        Raises:
            DeviceFault: the device failed; nothing changed.
        """
        if not self._limit_bytes or not program.constants:
            return None
        key = tuple(program.constants.items())
        found = self._blocks.get(key)
        if found is None:
            found = self._make(key, program, items)
        if found is not None:
            found.owners.add(program.identity)
        return found

    def _make(
        self,
        key: tuple[tuple[str, Digest], ...],
        program: Program,
        items: Mapping[str, Item],
    ) -> Block | None:
        slots, end = constant_slots(program, items)
        size = -(-end // _GRANULE_BYTES) * _GRANULE_BYTES
        if end <= SMALL_BYTES or size > self._limit_bytes:
            return None
        while self.used_bytes + size > self._limit_bytes:
            self._evict()
        held = self._hold(end)
        if held is None:
            return None
        try:
            for name, slot in slots.items():
                self._device.fill(held, slot.offset_bytes, items[name].data)
            self._device.synchronize()
            self._device.protect(held, Protection.NONE)
        except DandelionError:
            self._device.drop(held)
            raise
        self.uploads += 1
        made = Block(key, slots, size, held, level=self._level)
        self._blocks[key] = made
        return made

    def _hold(self, size_bytes: int) -> Handle | None:
        """Take memory; blocks go for it while there are any."""
        while True:
            try:
                return self._device.hold(size_bytes)
            except CapacityError:
                if not self._blocks:
                    return None
                self._evict()

    def enter(self, block: Block | None) -> None:
        """Open a block, or none, for the call that begins now, and close what was open.

        Raises:
            DeviceFault: the device failed; what was not closed is closed before the next call.
        """
        if block is not None:
            block.uses += 1
            cost_us = _FIXED_US + block.size_bytes / _BYTES_PER_US
            block.level = self._level + block.uses * cost_us / block.size_bytes
        if block is self._open and self._sure:
            return
        self._sure = False  # if this fails, what is open must be closed, whoever comes next
        if self._open is not None:
            self._device.protect(self._open.held, Protection.NONE)
            self._open = None
        if block is not None:
            self._open = block
            self._device.protect(block.held, Protection.READ)
        self._sure = True

    def _evict(self) -> None:
        self._drop(min(self._blocks.values(), key=lambda block: block.level))

    def _drop(self, block: Block) -> None:
        self._level = max(self._level, block.level)
        del self._blocks[block.key]
        if self._open is block:
            self._open = None
        self._dropped(block)
        self._device.drop(block.held)

    def forget(self, identity: str) -> None:
        """Drop the block of a function that is gone, if it was the last one that used it."""
        for block in list(self._blocks.values()):
            block.owners.discard(identity)
            if not block.owners:
                self._drop(block)

    def close(self) -> None:
        """Drop everything; nothing is in flight."""
        for block in list(self._blocks.values()):
            self._drop(block)

    def __len__(self) -> int:
        return len(self._blocks)
