"""The buffer pool: all device memory of an engine in one piece, given out by plans.

Nothing is allocated during a call: a plan's offsets are the allocation. After a call one zeroing of
the used range follows, before anything of the next call may be there. The pool remembers how far
it is dirty, so a call that failed leaves nothing behind either. Memory that no call used yet is
zeroed when a call first needs it, and not sooner, so that a large pool costs nothing at the start.

Variables of modules are memory of a call, too: they get their first values after it, and before it
if other calls ran meanwhile, whose kernels may have found them.
"""

from __future__ import annotations

from dandelion.errors import DeviceFault, DeviceFull, InternalError

from .device import Device, Handle
from .plan import Plan


class BufferPool:
    """The pool of one device; it is empty between calls, and zeroed as far as it was ever used.

    Args:
        device: open, without a pool.
        size_bytes: how much is taken.

    Raises:
        DeviceFault: the device has not got that much.
    """

    def __init__(self, device: Device, size_bytes: int) -> None:
        self._device = device
        self.size_bytes = size_bytes
        self.dirty_bytes = 0
        self._known_bytes = 0  # what lies behind is as the device gave it
        self._modules: tuple[Handle, ...] = ()  # of the last call, whose variables are restored
        self._is_used = False
        device.allocate(size_bytes)

    def enlarge(self, size_bytes: int) -> None:
        """Take a larger piece instead; no address of the old one is valid afterwards.

        Raises:
            DeviceFull, DeviceFault: the device has not got that much. The pool is as it was, if
                the device has a pool at all.
        """
        self._device.synchronize()
        self._device.free()
        self.dirty_bytes = self._known_bytes = 0
        self._modules = ()
        self._is_used = False
        try:
            self._device.allocate(size_bytes)
            self.size_bytes = size_bytes
        except (DeviceFull, DeviceFault):
            self._device.allocate(self.size_bytes)
            raise

    @property
    def is_clean(self) -> bool:
        """Whether nothing of the last call is left."""
        return not self._is_used

    def begin(self, plan: Plan, modules: tuple[Handle, ...] = ()) -> None:
        """Take the memory of a plan.

        Args:
            plan: what will run.
            modules: that it uses, of those with `Variables.RESTORED`.

        Raises:
            DeviceFull: the plan needs more than the pool has.
        """
        if plan.used_bytes > self.size_bytes:
            raise DeviceFull(self._device.name, plan.used_bytes, self.size_bytes)
        if self._is_used:
            raise InternalError(f"{self._device.name}: the last call was not cleaned up after")
        if plan.used_bytes > self._known_bytes:
            self._device.zero(self._known_bytes, plan.used_bytes - self._known_bytes)
            self._known_bytes = plan.used_bytes
        if modules != self._modules:
            self._modules = ()
            self._restore(modules)
            self._modules = modules
        self.dirty_bytes = plan.used_bytes
        self._is_used = True

    def clean(self) -> None:
        """Zero what was used, and restore variables, in the order of the device's work."""
        if not self._is_used:
            return
        self._restore(self._modules)
        if self.dirty_bytes:
            self._device.zero(0, self.dirty_bytes)
            self.dirty_bytes = 0
        self._is_used = False

    def _restore(self, modules: tuple[Handle, ...]) -> None:
        for module in modules:
            self._device.restore(module)

    def close(self) -> None:
        """Give the memory back to the device. May be called twice."""
        self._device.free()
