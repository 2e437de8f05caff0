"""Compiling modules, once for each content, and keeping what came of it.

The settings make results depend on the inputs alone: one form of NaN, no threads, relaxed SIMD with
one meaning. They are part of what is kept, so all engines have the same.
"""

from __future__ import annotations

import importlib
import threading
from collections import OrderedDict
from typing import TYPE_CHECKING

from dandelion.data import Bytes
from dandelion.errors import BackendUnavailable, InvalidFunction, Problem
from dandelion.function import Digest, digest_of

if TYPE_CHECKING:
    import wasmtime

KEPT_BYTES = 128 * 1024 * 1024
_STACK_BYTES = 512 * 1024


def require() -> None:
    """Load the compiler's library.

    Raises:
        BackendUnavailable: it is not installed.
    """
    try:
        importlib.import_module("wasmtime")
    except ImportError as error:
        raise BackendUnavailable(
            "wasm", f"wasmtime cannot be loaded: {error}", "pip install 'dandelion-engine[wasm]'"
        ) from None


def new_engine() -> wasmtime.Engine:
    """Make an engine of the library, with our settings."""
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
    config.parallel_compilation = False  # registering must not take all cores from calls
    return wasmtime.Engine(config)


class Compiler:
    """Compiles, and keeps the results that were used last. Safe from any thread.

    Args:
        kept_bytes: how much may be kept.
    """

    def __init__(self, kept_bytes: int = KEPT_BYTES) -> None:
        self._kept_bytes = kept_bytes
        self._kept: OrderedDict[Digest, bytes] = OrderedDict()
        self._size_bytes = 0
        self._engine: wasmtime.Engine | None = None
        self._lock = threading.Lock()

    def compiled(self, main: Bytes) -> bytes:
        """Give the machine code of a module, serialized.

        Raises:
            BackendUnavailable: there is no compiler.
            InvalidFunction: it is not valid.
        """
        require()
        digest = digest_of(main)
        with self._lock:
            found = self._kept.get(digest)
            if found is not None:
                self._kept.move_to_end(digest)
                return found
            if self._engine is None:
                self._engine = new_engine()
        made = _compile(self._engine, bytes(main))
        with self._lock:
            self._keep(digest, made)
        return made

    def _keep(self, digest: Digest, made: bytes) -> None:
        if digest in self._kept:  # another thread was faster
            return
        self._kept[digest] = made
        self._size_bytes += len(made)
        while self._size_bytes > self._kept_bytes and len(self._kept) > 1:
            _, dropped = self._kept.popitem(last=False)
            self._size_bytes -= len(dropped)


def _compile(engine: wasmtime.Engine, main: bytes) -> bytes:
    import wasmtime

    try:
        return bytes(wasmtime.Module(engine, main).serialize())
    except wasmtime.WasmtimeError as error:
        reason = str(error).strip().splitlines()
        raise InvalidFunction(
            (Problem("invalid-code", f"it does not compile: {'; '.join(reason)[:500]}", "wasm"),)
        ) from None
