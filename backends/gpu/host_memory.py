"""The file of memory that a broker shares with one kernel host.

It begins with the constants of the host's function, which stay; behind them lie the inputs of the
call that runs, then its outputs. Its size is sealed, so nothing that the host does can make the
broker's mapping fault. It is sparse: only what was touched takes memory.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
from dataclasses import dataclass

import numpy as np

from dandelion.data import Bytes, ItemSet
from dandelion.driver import Call
from dandelion.engine_process.messages import WireItem, WireSet, WireSets
from dandelion.errors import DeviceFull
from dandelion.function import Function
from dandelion.memory import ArenaMap
from dandelion.memory.context import PAGE_BYTES

from .layout import aligned

POOL_BYTES = 512 << 20
"""What a device that uses the host's memory has for a call, unless it is set."""
ROOM_BYTES = 64 << 20
"""Room for inputs that no kernel reads, beside what the device can hold."""
_KEPT_BYTES = 16 << 20  # what calls leave is zeroed by writing; what is beyond goes back
_F_ADD_SEALS = 1033
_SEALS = 0x1 | 0x2 | 0x4  # seal, shrink, grow: linux/fcntl.h
_KEEP_SIZE, _PUNCH_HOLE = 1, 2  # linux/falloc.h
_libc = ctypes.CDLL(None, use_errno=True)
_libc.fallocate.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_long, ctypes.c_long]


@dataclass(frozen=True, slots=True)
class Place:
    """Where a call lies in the file.

    Attributes:
        inputs: as they are named to the host.
        result_offset, result_bytes: where outputs go, in bytes.
    """

    inputs: WireSets
    result_offset: int
    result_bytes: int


class HostMemory:
    """The broker's mapping.

    Args:
        owner: of the host, for errors.
        size_bytes: of the file.
    """

    def __init__(self, owner: str, size_bytes: int) -> None:
        self._owner = owner
        self.size_bytes = -(-size_bytes // PAGE_BYTES) * PAGE_BYTES
        fd = os.memfd_create("dandelion-kernels", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.ftruncate(fd, self.size_bytes)
            fcntl.fcntl(fd, _F_ADD_SEALS, _SEALS)
            self.map = ArenaMap(fd, self.size_bytes)
        except BaseException:
            os.close(fd)
            raise
        self._start = 0
        self._end = 0

    def place_static(self, function: Function) -> dict[str, WireSet]:
        """Copy the static sets of the host's function in, and keep them; done once.

        Raises:
            DeviceFull: there is no room.
        """
        self._end = self._start
        placed = {name: self._placed(found) for name, found in function.static.items()}
        self._start = self._end = -(-self._end // PAGE_BYTES) * PAGE_BYTES
        return placed

    def place_call(self, call: Call, result_bytes: int) -> Place:
        """Copy the inputs of a call in, behind what is static.

        Raises:
            DeviceFull: there is no room.
        """
        self._end = self._start
        wire = []
        for position in call.function.given:
            found = call.inputs[position]
            wire.append(None if found is None else self._placed(found))
        size = max(result_bytes, 1)
        return Place(tuple(wire), self._room(size), size)

    def copy_out(self, offset_bytes: int, target: memoryview) -> None:
        """Copy from the file; the host may write there at the same time."""
        source = self.map.view[offset_bytes : offset_bytes + len(target)]
        np.copyto(np.frombuffer(target, np.uint8), np.frombuffer(source, np.uint8))

    def clean(self) -> None:
        """Zero what the last call used, and what else is there behind the constants."""
        used = self._end - self._start
        if used <= _KEPT_BYTES and self._present() <= self._end + _KEPT_BYTES:
            ctypes.memset(self.map.address + self._start, 0, used)
        else:
            rest = self.size_bytes - self._start
            if _libc.fallocate(self.map.fd, _KEEP_SIZE | _PUNCH_HOLE, self._start, rest):
                error = ctypes.get_errno()
                raise OSError(error, os.strerror(error))
        self._end = self._start

    def close(self) -> None:
        """Give the memory back."""
        self.map.close()

    def _present(self) -> int:
        return os.fstat(self.map.fd).st_blocks * 512

    def _placed(self, found: ItemSet) -> WireSet:
        items = []
        for item in found.items:
            offset = self._copied(item.data) if item.size_bytes else 0
            items.append(WireItem(item.name, item.key, offset, item.size_bytes))
        return WireSet(found.name, tuple(items), found.dtype, found.shape)

    def _copied(self, data: Bytes) -> int:
        size = data.nbytes if isinstance(data, memoryview) else len(data)
        start = self._room(size)
        target = np.frombuffer(self.map.view[start : start + size], np.uint8)
        np.copyto(target, np.frombuffer(data, np.uint8))
        return start

    def _room(self, size: int) -> int:
        start = self._end
        end = start + aligned(size)
        if end > self.size_bytes:
            raise DeviceFull(self._owner, end, self.size_bytes)
        self._end = end
        return start
