"""Kernel signatures, as far as the text of a source shows them.

The reader knows enough of C to find ``KERNEL void name(parameters)`` (or ``__kernel``, or
``__global__``) and to split the parameters: how many there are, which are pointers to const, and
which are numbers of a known type. A signature that macros hide is not found.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from dandelion.blueprint.records import Access, ScalarType

HEADER = "dandelion.h"
"""The header of portable sources, with the macros that every device defines."""

# A literal without an end goes on to the end of its line, as compilers read it. If it needed its
# closing quote, a text of escaped quotes would take hours to read. Escapes are limited, since each
# takes memory; sources with more in a literal are refused.
_COMMENT = re.compile(
    r"//[^\n]*|/\*.*?(?:\*/|\Z)"
    r"""|"[^"\\\n]*(?:\\.[^"\\\n]*){0,262143}"?|'[^'\\\n]*(?:\\.[^'\\\n]*){0,262143}'?""",
    re.DOTALL,
)
# The text between these words is bounded; otherwise a text of such words takes hours to read.
_KERNEL = re.compile(
    r"\b(?:KERNEL|__kernel|kernel|__global__)\b(?P<between>[\w\s(),]{0,256}?)"
    r"\bvoid\s+(?:__launch_bounds__\s*\([^)]{0,256}\)\s*)?(?P<name>[A-Za-z_]\w*)\s*\((?P<parameters>[^()]*)\)"
)
_INCLUDE = re.compile(
    r'^[ \t]*#[ \t]*include[ \t]*["<]' + re.escape(HEADER) + r'[">]', re.MULTILINE
)
_QUALIFIER = re.compile(r"\b(?:const|volatile|register|signed)\b")
_NAMED = re.compile(r"(?P<type>[A-Za-z_][\w ]*?)\s+[A-Za-z_]\w*")
_C_TYPES = {
    "char": "i8", "unsigned char": "u8", "uchar": "u8", "short": "i16", "unsigned short": "u16",
    "ushort": "u16", "int": "i32", "unsigned int": "u32", "unsigned": "u32", "uint": "u32",
    "long": "i64", "unsigned long": "u64", "ulong": "u64", "long long": "i64",
    "unsigned long long": "u64", "half": "f16", "float": "f32", "double": "f64",
    "int8_t": "i8", "uint8_t": "u8", "int16_t": "i16", "uint16_t": "u16", "int32_t": "i32",
    "uint32_t": "u32", "int64_t": "i64", "uint64_t": "u64", "size_t": "u64",
}  # fmt: skip
_TYPES = {kind.value: kind for kind in ScalarType} | {
    name: ScalarType(value) for name, value in _C_TYPES.items()
}


@dataclass(frozen=True, slots=True)
class KernelSignature:
    """The signature of a kernel in a source.

    Attributes:
        name: the kernel's symbol.
        access: for each parameter READ (pointer to const), BOTH (other pointer) or VALUE.
        types: for each parameter its type, if it is a number of a type that is known.
        dynamic_local: whether it ends in ``DYNAMIC_LOCAL``.
    """

    name: str
    access: tuple[Access, ...]
    types: tuple[ScalarType | None, ...] = ()
    dynamic_local: bool = False


def is_portable(text: str) -> bool:
    """Tell whether a source is written against ``dandelion.h``."""
    return _INCLUDE.search(text) is not None


def without_comments(text: str) -> str:
    """Replace comments by blanks and strings by empty ones; lines keep their numbers."""

    def blank(match: re.Match[str]) -> str:
        found = match.group()
        return found if found[0] in "\"'" else "\n" * found.count("\n") or " "

    return _COMMENT.sub(blank, text)


def signatures(text: str) -> dict[str, KernelSignature]:
    """Find the kernels of a source by name."""
    found = {}
    for match in _KERNEL.finditer(without_comments(text)):
        signature = _signature(match["name"], match["parameters"])
        found[signature.name] = signature
    return found


def _signature(name: str, parameters: str) -> KernelSignature:
    dynamic = bool(re.search(r"\bDYNAMIC_LOCAL\b", parameters))
    plain = re.sub(r"\bDYNAMIC_LOCAL\b", "", parameters)
    parts = [p.strip() for p in plain.split(",")]
    declared = [p for p in parts if p and p != "void"]
    ways = tuple(_access(p) for p in declared)
    return KernelSignature(name, ways, tuple(_type(p) for p in declared), dynamic)


def _type(parameter: str) -> ScalarType | None:
    match = _NAMED.fullmatch(" ".join(_QUALIFIER.sub(" ", parameter).split()))
    return None if match is None else _TYPES.get(match["type"])


def _access(parameter: str) -> Access:
    if "*" not in parameter and "[" not in parameter:
        return Access.VALUE
    pointee = parameter.rpartition("*")[0] or parameter
    return Access.READ if re.search(r"\bconst(ant)?\b|\bCONSTANT\b", pointee) else Access.BOTH
