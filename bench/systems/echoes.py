"""Functions that pass one item on, in the format of each backend.

What a backend adds to a function is all that calling one of these costs. The native one is an
executable that is written here byte by byte, so measuring needs no compiler.
"""

from __future__ import annotations

import importlib
import struct

from dandelion.documents import (
    CodeDocument,
    Content,
    FunctionDocument,
    gpu_function,
    python_function,
)
from dandelion.errors import BackendUnavailable
from dandelion.function import Limits

MIB = 1024 * 1024
NULL, PYTHON, NATIVE, WASM, GPU = "null", "process", "native", "wasm", "gpu"
FORMATS = {NULL: "null", PYTHON: "python", NATIVE: "elf", WASM: "wasm", GPU: "blueprint"}
"""Format of the code of each backend's echo."""

_LARGE = Limits(memory_bytes=512 * MIB, output_bytes=256 * MIB)
_WASM_TEXT = """(module
    (memory (export "memory") 1)
    (global (export "__dandelion_system_data") i32 (i32.const 1024))
    {constant}(func (export "run")
        (i32.store (i32.const 1056) (i32.load (i32.const 1052)))
        (i32.store offset=8 (i32.load (i32.const 1048)) (i32.const 0))
        (i32.store offset=20 (i32.load (i32.const 1048))
            (i32.load offset=20 (i32.load (i32.const 1040))))
        (i32.store (i32.const 1024) (i32.const {exit_code}))))
"""
_KERNEL = """#include "dandelion.h"
#define NONCE {nonce}
KERNEL void touch(GLOBAL const u8 *a, GLOBAL u8 *b, i64 unused) {{
    if (GLOBAL_ID(0) == 0) {{ b[0] = a[0]; }}
}}
"""
_BLUEPRINT = """{
  "modules": {"touch": "touch.c"}, "kernels": {"touch": "touch"},
  "blueprint": {"inputs": ["x"], "buffers": {"y": {"Sizeof": "x"}}, "outputs": ["y"],
    "control_flow": [{"ExecKernel": ["touch", [{"Ptr": "x"}, {"Ptr": "y"}, {"Constant": NUMBER}],
      {"grid_dim_x": {"Absolute": 1}, "block_dim_x": {"Absolute": 1}}]}]}
}"""


def system_of(kind: str) -> str:
    """Name the system that runs the echo of a backend."""
    return "dandelion sequential" if kind == GPU else f"dandelion {kind}"


def echo(
    backend: str, name: str, nonce: int = 0, *, number: int = 0, fails: bool = False
) -> FunctionDocument:
    """Describe the function ``name(x) -> (y)``.

    The GPU function copies everything in and out, but its kernel touches the first byte only.

    Args:
        backend: one of `FORMATS`.
        name: under which it is registered.
        nonce: another one makes other code, which no cache has seen.
        number: another one makes another GPU function of the same source, compiled once for all.
        fails: every call ends with an error of the function; there is no such GPU function.

    Raises:
        BackendUnavailable: the assembler for WebAssembly is missing.
    """
    if backend == PYTHON:
        body = "raise ValueError('as asked')" if fails else "return x"
        text = f"def f(x):\n    {nonce}\n    {body}\n"
        return python_function(
            text, inputs=["x"], outputs=["y"], name=name, entry="f", limits=_LARGE
        )
    if backend == GPU:
        return gpu_function(
            name, _BLUEPRINT.replace("NUMBER", str(number)), inputs=["x"], outputs=["y"],
            files={"touch.c": _KERNEL.format(nonce=nonce)}, limits=_LARGE,
        )  # fmt: skip
    if backend == NULL:
        code = CodeDocument("null", options={"fail": "as asked"} if fails else {})
    else:
        main = native_code(int(fails), nonce) if backend == NATIVE else wasm_code(int(fails), nonce)
        code = CodeDocument(FORMATS[backend], Content(data=main))
    return FunctionDocument(name, ("x",), ("y",), limits=_LARGE, code=(code,))


def native_code(exit_code: int = 0, nonce: int = 0) -> bytes:
    """Write an executable by hand: its output is its input.

    The code copies the address of the input buffers to that of the output buffers, the last index
    of the input sets to that of the output sets, sets the exit code and exits.
    """
    base, system = 0x20000, 0x30000
    code = bytes.fromhex(
        "bb00000300"  # mov ebx, system
        "488b4338 48894340"  # output buffers = input buffers
        "488b4b20 488b5330"  # rcx = input sets, rdx = output sets
        "48c7421000000000"  # first of the first output set = 0
        "488b4128 48894228"  # first of the last = that of the last input set
        f"c703 {struct.pack('<I', exit_code).hex()}"  # exit code
        "31ff b8e7000000 0f05"  # exit_group(0)
    ) + struct.pack("<I", nonce)  # behind the end, never run
    names = b"\0__dandelion_system_data\0"
    pack = struct.pack
    symbols = bytes(24) + pack("<IBBHQQ", 1, 0x11, 0, 1, system, 72)
    at_code, at_names = 0x100, 0x100 + len(code)
    at_symbols = at_names + len(names)
    at_sections = at_symbols + len(symbols)
    header = pack("<4sBBBB8xHHIQQQIHHHHHH", b"\x7fELF", 2, 1, 1, 0, 2, 62, 1, base + at_code, 64,
                  at_sections, 0, 64, 56, 2, 64, 3, 0)  # fmt: skip
    segments = pack("<IIQQQQQQ", 1, 5, 0, base, base, at_names, at_names, 4096)
    segments += pack("<IIQQQQQQ", 1, 6, 0, system, system, 0, 4096, 4096)
    sections = bytes(64)
    sections += pack("<IIQQQQIIQQ", 0, 3, 0, 0, at_names, len(names), 0, 0, 1, 0)
    sections += pack("<IIQQQQIIQQ", 0, 2, 0, 0, at_symbols, len(symbols), 1, 1, 8, 24)
    return (header + segments).ljust(at_code, b"\0") + code + names + symbols + sections


def wasm_code(exit_code: int = 0, nonce: int = 0) -> bytes:
    """Assemble the same as a WebAssembly module.

    Raises:
        BackendUnavailable: the assembler is missing.
    """
    try:
        assembler = importlib.import_module("wasmtime")
    except ImportError as error:
        remedy = "pip install 'dandelion-engine[wasm]'"
        why = f"wasmtime cannot be loaded: {error}"
        raise BackendUnavailable("wasm", why, remedy) from None
    constant = f"(global i32 (i32.const {nonce})) " if nonce else ""
    return bytes(assembler.wat2wasm(_WASM_TEXT.format(exit_code=exit_code, constant=constant)))
