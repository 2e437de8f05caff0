"""Constants that stay on the device: each function's in protected memory of their own.

The node's scheduler decides which functions' constants stay (`Call.keep_constants`) and when they
are dropped (`Engine.evict`); here that is carried out. Constants are known by their content: the
digests of the static sets that no kernel writes to. Functions with equal constants, such as
versions of one function, share them, and they stay until the last of these functions is evicted.

**Outside of the calls of these functions no kernel can read them, and none can ever write to
them**: access is granted to the constants of one call at a time, for reading, and is taken back
before a call of any other function begins. That costs tens of microseconds, so access lasts until
a function with other constants comes.

Constants are copied to the device from the inputs of the first call that keeps them. Where the
device has no protected memory, or no room for them, they are copied with each call.

Engines that share a device share constants: one copies them and exports their memory, the others
map it (`Call.shared_constants`). Each grants and takes back access in its own address space, and
only the one that copies ever has access for writing.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from dandelion.data import Item
from dandelion.driver import Call, SharedConstants
from dandelion.errors import CapacityError, DandelionError, DeviceFault, DeviceFull

from .device import Device, Handle, Protection
from .layout import Slot, aligned
from .program import ConstantsKey, Program

LEAST_BYTES = 64 * 1024
"""Constants of a function that are less than this together are copied with each call."""
UNIT_BYTES = 2**21
"""Protected memory is given out in multiples of this."""
_ROOM_LIMIT_S = 0.05
"""How long to wait until other engines have freed the memory of evicted constants."""
_ROOM_LOOK_S = 0.002


@dataclass(frozen=True, slots=True)
class WeightsLimit:
    """How much device memory constants may take: so many bytes, or a share of it."""

    size_bytes: int = 0
    share: float = 0.0

    def of(self, memory_bytes: int) -> int:
        """Give the limit in bytes for a device with that much memory to give out."""
        return self.size_bytes or int(memory_bytes * self.share) // UNIT_BYTES * UNIT_BYTES

    def beside(self, pool_bytes: int) -> WeightsLimit:
        """Give the limit where a pool of that size is what this limit had left of all memory."""
        whole = int(pool_bytes / max(1.0 - self.share, 0.01))
        return WeightsLimit(self.of(whole))


@dataclass(frozen=True, slots=True, eq=False)
class ResidentConstants:
    """The constants of one or more functions on the device.

    Attributes:
        key: of the content.
        slots: where each set lies.
        size_bytes: device memory that they take.
        memory: the device's handle of it.
        owners: identities of the functions that keep them.
    """

    key: ConstantsKey
    slots: Mapping[str, Slot]
    size_bytes: int
    memory: Handle
    owners: set[str] = field(default_factory=set)


def constant_slots(program: Program, items: Mapping[str, Item]) -> tuple[dict[str, Slot], int]:
    """Lay out the constants of a function; gives where each lies, and the size of all."""
    slots: dict[str, Slot] = {}
    end = 0
    for name in program.constants:
        slots[name] = Slot(end, items[name].size_bytes)
        end += aligned(items[name].size_bytes)
    return slots, end


class DeviceConstants:
    """All resident constants of one device; see the module's text.

    Args:
        device: open.
        limit_bytes: what they may take together; 0 for none.
        dropped: called with constants before they are dropped; nothing may use them afterwards.
        shares: other engines map what is copied here, and the limit is for all together; the memory
            of the device can be shared.

    Attributes:
        uploads: how often constants were copied to the device to stay.
    """

    def __init__(
        self,
        device: Device,
        limit_bytes: int,
        dropped: Callable[[ResidentConstants], None],
        shares: bool = False,
    ) -> None:
        self._device = device
        self._shares = shares
        self._limit_bytes = limit_bytes if device.abilities.protected_memory else 0
        self._dropped = dropped
        self._resident: dict[ConstantsKey, ResidentConstants] = {}
        self._accessible: ResidentConstants | None = None
        self._is_access_known = True
        self.uploads = 0

    @property
    def used_bytes(self) -> int:
        """Device memory that all take."""
        return sum(resident.size_bytes for resident in self._resident.values())

    def find(
        self, program: Program, items: Mapping[str, Item], call: Call
    ) -> ResidentConstants | None:
        """Give the resident constants of a function.

        Args:
            program: of the function.
            items: of the call.
            call: says whether they are copied to the device if they are not there, and kept for
                this function. Other engines may have copied them, or are offered them.

        Returns:
            None if they are to be copied with the call, or there are none.

        Raises:
            DeviceFault: the device failed; nothing changed.
        """
        if not program.constants:
            return None
        key = program.constants_key
        found = self._resident.get(key)
        if not call.keep_constants:
            return found
        if found is None:
            found = self._make(key, program, items, call)
        if found is not None:
            found.owners.add(program.identity)
        return found

    def _make(
        self, key: ConstantsKey, program: Program, items: Mapping[str, Item], call: Call
    ) -> ResidentConstants | None:
        slots, end = constant_slots(program, items)
        size = -(-end // UNIT_BYTES) * UNIT_BYTES
        if end < LEAST_BYTES or self.used_bytes + size > self._limit_bytes:
            return None
        memory = self._imported(key, end, call.shared_constants)
        if memory is None:
            memory = self._filled(slots, end, items)
            if memory is None:
                return None
            self.uploads += 1
            if self._shares:
                self._share(key, memory, call)
        made = self._resident[key] = ResidentConstants(key, slots, size, memory)
        return made

    def _filled(
        self, slots: Mapping[str, Slot], size_bytes: int, items: Mapping[str, Item]
    ) -> Handle | None:
        """Copy constants to the device; None if there is no room."""
        memory = self._allocated(size_bytes)
        if memory is None:
            return None
        try:
            for name, slot in slots.items():
                self._device.fill_protected(memory, slot.offset_bytes, items[name].data)
            self._device.synchronize()
            self._device.protect(memory, Protection.NONE)
        except DandelionError:
            self._device.free_protected(memory)
            raise
        return memory

    def _allocated(self, size_bytes: int) -> Handle | None:
        end_s = time.monotonic() + _ROOM_LIMIT_S * self._shares
        while True:
            try:
                return self._device.allocate_protected(size_bytes)
            except CapacityError:
                if time.monotonic() >= end_s:
                    return None
            time.sleep(_ROOM_LOOK_S)

    def _imported(
        self, key: ConstantsKey, size_bytes: int, shared: SharedConstants | None
    ) -> Handle | None:
        """Map constants that another engine has copied; None if there are none, or that fails."""
        if shared is None or not self._shares or shared.key != _text(key):
            return None
        try:
            return self._device.import_protected(shared.descriptor, size_bytes)
        except (DeviceFault, DeviceFull):
            if self._device.fault() is not None:
                raise
            return None  # they are copied once more

    def _share(self, key: ConstantsKey, memory: Handle, call: Call) -> None:
        """Offer constants to the other engines; without that, they copy them, too."""
        try:
            descriptor = self._device.export_protected(memory)
        except (DeviceFault, DeviceFull):
            if self._device.fault() is not None:
                self._device.free_protected(memory)
                raise
            return
        try:
            call.share_constants(SharedConstants(_text(key), descriptor))
        finally:
            os.close(descriptor)

    def grant_access(self, resident: ResidentConstants | None) -> None:
        """Let the call that begins now read these constants, or none, and no others.

        Raises:
            DeviceFault: the device failed; access is taken back before the next call.
        """
        if resident is self._accessible and self._is_access_known:
            return
        self._is_access_known = False  # until all of this has succeeded
        if self._accessible is not None:
            self._device.protect(self._accessible.memory, Protection.NONE)
            self._accessible = None
        if resident is not None:
            self._accessible = resident
            self._device.protect(resident.memory, Protection.READ)
        self._is_access_known = True

    def evict(self, identity: str) -> bool:
        """Keep no constants for a function any more; nothing is in flight.

        Returns:
            Whether memory of the device became free.
        """
        unused = []
        for resident in self._resident.values():
            resident.owners.discard(identity)
            if not resident.owners:
                unused.append(resident)
        for resident in unused:
            self._drop(resident)
        return bool(unused)

    def _drop(self, resident: ResidentConstants) -> None:
        del self._resident[resident.key]
        if self._accessible is resident:
            self._accessible = None
        self._dropped(resident)
        self._device.free_protected(resident.memory)

    def close(self) -> None:
        """Drop everything; nothing is in flight."""
        for resident in list(self._resident.values()):
            self._drop(resident)

    def __len__(self) -> int:
        return len(self._resident)


def _text(key: ConstantsKey) -> str:
    return hashlib.sha256(repr(key).encode()).hexdigest()
