"""tinygrad's C in the dialect of ``dandelion.h``.

The renderer is a subclass of tinygrad's, made when tinygrad is there. It differs in names of types
and functions only. Numbers of 16 bits are storage: they are loaded as u16 and converted to f32, and
all arithmetic is done in f32. Booleans are u8.
"""

from __future__ import annotations

import functools
import importlib
import re
from collections.abc import Sequence
from typing import Any

import numpy as np

from dandelion.blueprint import Access

_TYPES = {
    "bool": "u8",
    "int8": "i8",
    "uint8": "u8",
    "int16": "i16",
    "uint16": "u16",
    "int32": "i32",
    "uint32": "u32",
    "int64": "i64",
    "uint64": "u64",
    "float16": "u16",
    "bfloat16": "u16",
    "float32": "f32",
    "float64": "f64",
}
_PLACES = {"g": "GROUP_ID", "l": "LOCAL_ID", "i": "GLOBAL_ID"}
_FUNCTIONS = {"SQRT": "sqrt", "EXP2": "exp2", "LOG2": "log2", "SIN": "sin", "TRUNC": "trunc"}
_SIGNATURE = re.compile(r"\A(?P<before>.*?)KERNEL void \w+\((?P<parameters>[^)]*)\) \{\n", re.S)


@functools.cache
def renderer(tinygrad: Any) -> Any:
    """Make the renderer, once; tinygrad keeps what it rendered."""
    cstyle = importlib.import_module("tinygrad.renderer.cstyle")
    target = importlib.import_module("tinygrad.helpers").Target.parse("NULL:OPENCL")
    return _class(tinygrad, cstyle)(target)


def _class(tinygrad: Any, cstyle: Any) -> Any:
    ops = importlib.import_module("tinygrad.uop.ops")
    dtypes, base = tinygrad.dtypes, cstyle.CStyleLanguage
    types = {getattr(dtypes, name): word for name, word in _TYPES.items()}
    code = {op: render for op, render in base.code_for_op.items() if op.name != "RECIPROCAL"}
    code |= {getattr(ops.Ops, op): _call(dtypes, name) for op, name in _FUNCTIONS.items()}
    code[ops.Ops.FDIV] = lambda a, b, dtype: f"({a}/{b})"

    def render_type(self: Any, dtype: Any, sz: int = 1, addrspace: Any = None, mutable: bool = True,
                    override_ptr: bool = False, shape: Any = None) -> str:  # fmt: skip
        spaces = tinygrad.dtype.AddrSpace
        word = types[dtype] + (f"x{sz}" if sz > 1 else "")
        if addrspace is spaces.GLOBAL:
            return f"GLOBAL {'' if mutable else 'const '}{word} *"
        if addrspace is spaces.LOCAL:
            return f"LOCAL {word} *"
        return f"{word} *" if override_ptr else word

    def render_buffer(self: Any, x: Any) -> str:
        local = x.addrspace is tinygrad.dtype.AddrSpace.LOCAL
        before = "__attribute__((aligned(16))) LOCAL " if local else ""
        return f"{before}{types[x.dtype]} {self[x]}[{x.max_numel()}];"

    members = {
        "kernel_typedef": "KERNEL void",
        "float4": "float4",
        "float4_style": ("(", ")"),
        "barrier": "BARRIER();",
        "code_for_workitem": {n: _place(w) for n, w in _PLACES.items()},
        "global_max": (2**31 - 1, 65535, 65535),
        "local_max": (1024, 1024, 64),
        "type_map": types,
        "code_for_op": code,
        "_render_dtype": render_type,
        "render_buffer": render_buffer,
        "extra_matcher": _halves(cstyle, ops, dtypes),
        "string_rewrite": _words(ops, dtypes) + cstyle.base_rewrite,
    }
    return type("Dialect", (base,), members)


def _call(dtypes: Any, name: str) -> Any:
    return lambda x, dtype: f"{name}({x})" if dtype == dtypes.float64 else f"{name}f({x})"


def _place(word: str) -> Any:
    return lambda dimension: f"(i32){word}({dimension})"


def _halves(cstyle: Any, ops: Any, dtypes: Any) -> Any:
    """Arithmetic of 16-bit types in f32, with bfloat16 converted by integer operations."""
    both = (dtypes.float16, dtypes.bfloat16)
    pattern, cast = ops.UPat, ops.Ops.CAST
    between = [
        (pattern(cast, both, (pattern.var("x", both),), name="y"), _through_f32),
        (pattern(cast, both, (pattern.var("x", dtypes.float64),), name="y"), _through_f32),
    ]
    found = cstyle.create_non_native_float_pats(both) + cstyle.pm_manual_bf16_cast
    return ops.PatternMatcher(between) + found


# tinygrad takes the functions of its patterns apart, so these have no closures. `ctx` is the
# renderer: `ctx[x]` is the text of a value.


def _through_f32(x: Any, y: Any) -> Any:
    return x.float().cast(y.dtype) if x.dtype != y.dtype else None


def _words(ops: Any, dtypes: Any) -> Any:
    """What differs from C: conversions and numbers."""
    pattern, kinds, half = ops.UPat, ops.Ops, dtypes.float16
    value = pattern.var("v")
    return ops.PatternMatcher(
        [
            (pattern(kinds.STACK, name="x"), _vector),
            (pattern(kinds.BITCAST, name="x"), _bits),
            (pattern.cvar("c").cast(dtypes.int64), _i64),
            (pattern.cvar("c").cast(dtypes.uint64), _u64),
            (pattern.cvar("c").cast(half), _f16),
            (pattern.cvar("c").cast(dtypes.bfloat16), _bf16),
            (pattern(kinds.CAST, dtypes.float32, (pattern.var("v", half),)), _from_f16),
            (pattern(kinds.CAST, half, (pattern.var("v", dtypes.float32),)), _to_f16),
            (pattern(kinds.CAST, dtypes.bool, (value,)), _truth),
        ]
    )


def _vector(ctx: Any, x: Any) -> str:
    name = f"{ctx.type_map[x.dtype].upper()}X{len(x.src)}"
    return f"{name}({', '.join(ctx[y] for y in x.src)})"


def _i64(ctx: Any, c: Any) -> str:
    return f"((i64){c.val})"


def _u64(ctx: Any, c: Any) -> str:
    return f"((u64){c.val % 2**64}u)"


def _f16(ctx: Any, c: Any) -> str:
    return f"F32_TO_F16({_number(c.val)})"


def _bf16(ctx: Any, c: Any) -> str:
    """The bits of a number, rounded to the nearest even."""
    with np.errstate(over="ignore"):
        bits = int(np.float32(c.val).view(np.uint32))
    rounded = 0x7FC0 if c.val != c.val else (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
    return f"((u16){rounded & 0xFFFF}u)"


def _from_f16(ctx: Any, v: Any) -> str:
    return f"F16_TO_F32({ctx[v]})"


def _to_f16(ctx: Any, v: Any) -> str:
    return f"F32_TO_F16({ctx[v]})"


def _truth(ctx: Any, v: Any) -> str | None:
    return None if v.op.name == "CONST" else f"((u8)({ctx[v]} != 0))"


def _number(value: float) -> str:
    if value != value:
        return "NAN"
    if value in (float("inf"), float("-inf")):
        return "INFINITY" if value > 0 else "(-INFINITY)"
    return f"{float(value)!r}f"


def _bits(ctx: Any, x: Any) -> str:
    """A value's bits as another type."""
    source, target = ctx.type_map[x.src[0].dtype], ctx.type_map[x.dtype]
    value = ctx[x.src[0]]
    if source.startswith("f"):
        value = f"AS_U{source[1:]}({value})"
    return f"AS_{target.upper()}({value})" if target.startswith("f") else f"(({target})({value}))"


def finished(text: str, name: str, access: Sequence[Access], offset: Sequence[bool]) -> str:
    """Give a rendered kernel its name, pointers to const, and offsets of constants."""
    match = _SIGNATURE.match(text)
    assert match is not None, text
    parameters, shifts = [], []
    for given, way, shifted in zip(match["parameters"].split(","), access, offset, strict=True):
        pointer, _, symbol = given.strip().rpartition("*")
        pointer = f"{pointer.strip()} *".replace("GLOBAL const ", "GLOBAL ")
        if way is Access.READ:
            pointer = pointer.replace("GLOBAL ", "GLOBAL const ")
        symbol = symbol.strip()
        if shifted:
            parameters.append(f"{pointer}{symbol}_all, u64 {symbol}_at")
            shifts.append(f"  {pointer}{symbol} = {symbol}_all + {symbol}_at;\n")
        else:
            parameters.append(f"{pointer}{symbol}")
    head = f"KERNEL void {name}({', '.join(parameters)})\n{{\n"
    return match["before"] + head + "".join(shifts) + text[match.end() :]
