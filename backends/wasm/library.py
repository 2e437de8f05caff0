"""Short calls of wasmtime's library keep the interpreter.

ctypes releases the interpreter in each call of a library. An invocation makes twenty such calls,
most of which take a microsecond. Where the event loop and other engines wait for the interpreter,
each release may cost a switch of threads, and an invocation took twice as long.

So the calls that always take a short time are bound once more, as functions that keep the
interpreter. Those that run code of the function, or whose time depends on the size of its memory,
release it as before.

Source: ``ctypes.PyDLL`` in the library reference of Python.
"""

from __future__ import annotations

import ctypes
import importlib
from typing import Any

SHORT = (
    "wasm_functype_delete",
    "wasm_functype_params",
    "wasm_functype_results",
    "wasmtime_context_set_epoch_deadline",
    "wasmtime_context_set_fuel",
    "wasmtime_func_type",
    "wasmtime_instance_export_nth",
    "wasmtime_memory_data",
    "wasmtime_memory_data_size",
    "wasmtime_store_context",
    "wasmtime_store_limiter",
    "wasmtime_store_new",
)


def keep_interpreter() -> None:
    """Bind the short calls so that they keep the interpreter. May be called repeatedly.

    wasmtime's modules for this are private. A name that they do not have is left out.
    """
    bindings: Any = importlib.import_module("wasmtime._bindings")
    library = ctypes.PyDLL(bindings.dll._name)
    for name in SHORT:
        before = getattr(bindings, f"_{name}", None)
        if before is not None:
            function = getattr(library, name)
            function.argtypes, function.restype = before.argtypes, before.restype
            setattr(bindings, f"_{name}", function)
