"""Memory of `.cudalike` in mappings of its own, made with the virtual memory functions.

Addresses are reserved, physical memory is created and mapped to them, and access is set for the
whole mapping at once. If a step fails, the steps before it are undone.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from dandelion.errors import DandelionError

from .calls import Calls
from .device import Protection


@dataclass(slots=True, eq=False)
class ProtectedMapping:
    """Device memory with access rights of its own.

    Attributes:
        address: where it is mapped.
        size_bytes: of it, in whole granules of the device.
        memory: the physical memory.
        mapped: whether it is mapped.
    """

    address: int
    size_bytes: int
    memory: Any = None
    mapped: bool = False


class ProtectedMemory:
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
        self._mappings: list[ProtectedMapping] = []
        self.stream: Any = None

    def allocate(self, size_bytes: int) -> ProtectedMapping:
        """Make a mapping that is zeroed and open for writing.

        Raises:
            DeviceFull, DeviceFault: it cannot be made; nothing is left.
        """
        calls, do = self._calls, self._do
        granule = int(do("allocate_protected", calls.granularity(self._ordinal)))
        size = -(-size_bytes // granule) * granule
        mapping = ProtectedMapping(int(do("allocate_protected", calls.reserve(size))), size)
        self._mappings.append(mapping)
        try:
            mapping.memory = do("allocate_protected", calls.create(size, self._ordinal))
            address = calls.pointer(mapping.address)
            do("allocate_protected", calls.map(address, size, mapping.memory))
            mapping.mapped = True
            self.protect(mapping, Protection.WRITE)
            do("allocate_protected", calls.fill(address, 0, size, self.stream))
        except DandelionError:
            self.free(mapping)
            raise
        return mapping

    def protect(self, mapping: ProtectedMapping, protection: Protection) -> None:
        """Set what kernels and copies may do with a mapping."""
        address = self._calls.pointer(mapping.address)
        answer = self._calls.protect(address, mapping.size_bytes, self._ordinal, protection)
        self._do("protect", answer)

    def free(self, mapping: ProtectedMapping) -> None:
        """Undo a mapping and release its memory."""
        self._mappings.remove(mapping)
        address = self._calls.pointer(mapping.address)
        if mapping.mapped:
            self._undo(self._calls.unmap, address, mapping.size_bytes)
        if mapping.memory is not None:
            self._undo(self._calls.destroy, mapping.memory)
        self._undo(self._calls.unreserve, address, mapping.size_bytes)

    def close(self) -> None:
        """Free all mappings."""
        for mapping in list(self._mappings):
            self.free(mapping)
