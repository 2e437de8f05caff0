"""The compiler's settings.

The settings make results depend on the inputs alone: one form of NaN, no threads, deterministic
relaxed SIMD. Compiled code depends on them, so all engines have the same.
"""

from __future__ import annotations

import importlib
import importlib.util
from typing import TYPE_CHECKING

from dandelion.errors import BackendUnavailable

from . import library

if TYPE_CHECKING:
    import wasmtime

_STACK_BYTES = 512 * 1024
_REMEDY = "pip install 'dandelion-engine[wasm]'"


def require_installed() -> None:
    """Look for the compiler's library without loading it.

    Raises:
        BackendUnavailable: it is not installed.
    """
    if importlib.util.find_spec("wasmtime") is None:
        raise BackendUnavailable("wasm", "wasmtime is not installed", _REMEDY)


def require() -> None:
    """Load the compiler's library.

    Raises:
        BackendUnavailable: it is not installed.
    """
    try:
        importlib.import_module("wasmtime")
    except ImportError as error:
        raise BackendUnavailable("wasm", f"wasmtime cannot be loaded: {error}", _REMEDY) from None
    library.keep_interpreter()


def new_engine() -> wasmtime.Engine:
    """Make a wasmtime engine with our settings."""
    import wasmtime

    config = wasmtime.Config()
    config.consume_fuel = True
    config.epoch_interruption = True
    config.cranelift_nan_canonicalization = True
    config.wasm_threads = False
    config.wasm_memory64 = False
    config.wasm_multi_memory = False
    config.wasm_relaxed_simd_deterministic = True
    config.max_wasm_stack = _STACK_BYTES
    config.memory_init_cow = False  # needs files in memory, which confined engines cannot make
    config.parallel_compilation = False  # registering must not take all cores from calls
    return wasmtime.Engine(config)
