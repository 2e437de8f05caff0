"""Memory of `.cudalike` in mappings of its own, made with the virtual memory functions.

Addresses are reserved, physical memory is created and mapped to them, and access is set for the
whole mapping at once. If a step fails, the steps before it are undone.

Other processes can map the same physical memory (`export`, `allocate_from`), each with access
rights of its own. It is freed when no process maps it and no descriptor of it is open.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from dandelion.errors import DandelionError, DeviceFault

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
        name: of the device, for errors.
        calls: of the driver.
        ordinal: number of the device.
        do: gives the result of a call, or raises.
        undo: calls, and once more if it failed.

    Attributes:
        stream: where work is queued.
        exports: other processes can map the memory.
    """

    def __init__(
        self,
        name: str,
        calls: Calls,
        ordinal: int,
        do: Callable[[str, tuple[Any, ...]], Any],
        undo: Callable[..., None],
    ) -> None:
        self._name = name
        self._calls = calls
        self._ordinal = ordinal
        self._do = do
        self._undo = undo
        self._mappings: list[ProtectedMapping] = []
        self.stream: Any = None
        self.exports = False

    def allocate(self, size_bytes: int) -> ProtectedMapping:
        """Make a mapping that is zeroed and open for writing.

        Raises:
            DeviceFull, DeviceFault: it cannot be made; nothing is left.
        """
        calls, operation = self._calls, "allocate_protected"
        mapping = self._mapped(
            operation,
            size_bytes,
            lambda size: self._do(operation, calls.create(size, self._ordinal, self.exports)),
        )
        try:
            self.protect(mapping, Protection.WRITE)
            address = calls.pointer(mapping.address)
            self._do(operation, calls.fill(address, 0, mapping.size_bytes, self.stream))
        except DandelionError:
            self.free(mapping)
            raise
        return mapping

    def allocate_from(self, descriptor: int, size_bytes: int) -> ProtectedMapping:
        """Map memory that another process has exported; nothing may access it yet.

        Args:
            descriptor: of the memory; it stays the caller's.
            size_bytes: that it was allocated with.

        Raises:
            DeviceFault: it cannot be mapped; nothing is left.
        """
        operation = "import_protected"

        def imported(_: int) -> Any:
            error, *found = self._calls.imported(descriptor)
            if error:  # of the descriptor; codes that mean a broken device elsewhere do not here
                raise DeviceFault(self._name, operation, self._calls.describe(error))
            return found[0]

        return self._mapped(operation, size_bytes, imported)

    def _mapped(
        self, operation: str, size_bytes: int, memory: Callable[[int], Any]
    ) -> ProtectedMapping:
        calls, do = self._calls, self._do
        granule = int(do(operation, calls.granularity(self._ordinal)))
        size = -(-size_bytes // granule) * granule
        mapping = ProtectedMapping(int(do(operation, calls.reserve(size))), size)
        self._mappings.append(mapping)
        try:
            mapping.memory = memory(size)
            do(operation, calls.map(calls.pointer(mapping.address), size, mapping.memory))
            mapping.mapped = True
        except DandelionError:
            self.free(mapping)
            raise
        return mapping

    def export(self, mapping: ProtectedMapping) -> int:
        """Return a new descriptor of a mapping's memory, for another process.

        Raises:
            DeviceFault: that failed.
        """
        return int(self._do("export_protected", self._calls.exported(mapping.memory)))

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
