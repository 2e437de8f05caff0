"""Native functions: static x86-64 ELF executables, each call in an address space of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .cores import NativeDriver


def driver() -> NativeDriver:
    """Make the driver of this backend."""
    # Imported here: a zygote imports this package too, and needs no code of the node's side.
    from .cores import NativeDriver

    return NativeDriver()
