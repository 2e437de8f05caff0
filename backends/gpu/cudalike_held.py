"""Memory of `.cudalike` in mappings of its own, made with the virtual memory functions.

Addresses are reserved, physical memory is made and mapped to them, and access is set for the whole
mapping at once. What broke off half way is unmade, so a mapping is whole or not there.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from dandelion.errors import DandelionError

from .calls import Calls
from .device import Protection


@dataclass(slots=True, eq=False)
class Held:
    """A mapping.

    Attributes:
        address: where it is.
        size_bytes: of it, in whole granules of the device.
        memory: the physical memory.
        mapped: whether it is mapped.
    """

    address: int
    size_bytes: int
    memory: Any = None
    mapped: bool = False


class HeldMemory:
    """The mappings of one device.

    Args:
        calls: of the driver.
        ordinal: number of the device.
        do: gives the result of a call, or raises.
        undo: calls, and once more if it failed.

    Attributes:
        stream: where work is queued.
    """

    def __init__(
        self,
        calls: Calls,
        ordinal: int,
        do: Callable[[str, tuple[Any, ...]], Any],
        undo: Callable[..., None],
    ) -> None:
        self._calls = calls
        self._ordinal = ordinal
        self._do = do
        self._undo = undo
        self._held: list[Held] = []
        self.stream: Any = None

    def hold(self, size_bytes: int) -> Held:
        """Make a mapping that is zeroed and open for writing.

        Raises:
            DeviceFull, DeviceFault: it cannot be made; nothing is left.
        """
        calls, do = self._calls, self._do
        granule = int(do("hold", calls.granularity(self._ordinal)))
        size = -(-size_bytes // granule) * granule
        held = Held(int(do("hold", calls.reserve(size))), size)
        self._held.append(held)
        try:
            held.memory = do("hold", calls.create(size, self._ordinal))
            address = calls.pointer(held.address)
            do("hold", calls.map(address, size, held.memory))
            held.mapped = True
            self.protect(held, Protection.WRITE)
            do("hold", calls.fill(address, 0, size, self.stream))
        except DandelionError:
            self.drop(held)
            raise
        return held

    def protect(self, held: Held, protection: Protection) -> None:
        """Set what kernels and copies may do with a mapping."""
        address = self._calls.pointer(held.address)
        answer = self._calls.protect(address, held.size_bytes, self._ordinal, protection)
        self._do("protect", answer)

    def drop(self, held: Held) -> None:
        """Unmake a mapping."""
        self._held.remove(held)
        address = self._calls.pointer(held.address)
        if held.mapped:
            self._undo(self._calls.unmap, address, held.size_bytes)
        if held.memory is not None:
            self._undo(self._calls.destroy, held.memory)
        self._undo(self._calls.unreserve, address, held.size_bytes)

    def close(self) -> None:
        """Unmake all."""
        for held in list(self._held):
            self.drop(held)
