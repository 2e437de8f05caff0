"""WebAssembly functions: core modules without imports, each call in a fresh instance."""

from __future__ import annotations

from .driver import WasmDriver


def driver() -> WasmDriver:
    """Make the driver of this backend."""
    return WasmDriver()
