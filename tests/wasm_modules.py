"""WebAssembly modules for tests."""

from __future__ import annotations

from typing import Any

import pytest

from dandelion.function import Function

from .native_functions import function

wasmtime = pytest.importorskip("wasmtime")
HEAD = """(module
    (memory (export "memory") 1)
    (global (export "__dandelion_system_data") i32 (i32.const 1024))
    (func $exit (param i32) (i32.store (i32.const 1024) (local.get 0)))
"""


PASS_ON = """
    (i32.store (i32.const 1056) (i32.load (i32.const 1052)))
    (i32.store offset=8 (i32.load (i32.const 1048)) (i32.const 0))
    (i32.store offset=20 (i32.load (i32.const 1048))
        (i32.load offset=20 (i32.load (i32.const 1040))))
    (call $exit (i32.const 0))
"""
"""Output buffers and the first set's indices are those of the inputs."""


def assembled(body: str, fields: str = "", head: str = HEAD) -> bytes:
    """Make a module whose `run` has this body."""
    return bytes(wasmtime.wat2wasm(f'{head}{fields}(func (export "run") {body}))'))


def made(body: str, fields: str = "", **how: Any) -> Function:
    """Make a function of a module."""
    return function(assembled(body, fields), kind="wasm", inputs=("x",), **how)


ECHO = made(PASS_ON)
