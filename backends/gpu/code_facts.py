"""What the bytes of a module tell before a device sees them: architecture, variables, parameters.

A module's **variables** would keep their values from one call to the next, also from one tenant's
to another's, so the engine loads such a module afresh for each call (see `.modules`). Where the
bytes do not tell, variables are assumed.

Memory that kernels **allocate** lies in a heap that nobody zeroes, and outlives them. CUDA's cannot
be made smaller than 4 MiB, so modules that refer to it are refused.

Read are ELF objects for NVIDIA (cubin) and AMD (code object), bundles of the latter, NVIDIA's
fat binaries and PTX. Nothing here trusts the bytes: whatever cannot be read is unknown.

Source: the ELF-64 format; LLVM's "User Guide for AMDGPU Backend" (code object metadata) and "Clang
Offload Bundler"; sections and flags of cubins as nvcc 12 and 13 write them.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

_ELF = b"\x7fELF"
_NVIDIA, _AMD = 190, 224
_NOTE_SECTION, _ALLOCATED_WRITABLE = 7, 3
_METADATA_NOTE = 32
_BUNDLE = b"__CLANG_OFFLOAD_BUNDLE__"
_FATBIN = 0xBA55ED50
_FATBIN_ELF = 2
_PTX_POINTER = re.compile(rb"\.ptr\s+\.global")  # says of a parameter where it points to
_PTX_MALLOC = re.compile(rb"\.func\b[^;{]*\bmalloc\b")
_PTX_VARIABLE = re.compile(rb"(?<![\w.])\.global\b")


@dataclass(frozen=True, slots=True)
class CodeFacts:
    """Facts about a module.

    Attributes:
        arch: which it was built for, empty if unknown or not one alone.
        variables: it has, or may have, variables that outlive a launch.
        allocates: its kernels ask for memory of the device's heap.
        parameters: sizes of kernels' parameters in bytes, by symbol, as far as they are known.
    """

    arch: str = ""
    variables: bool = True
    allocates: bool = False
    parameters: Mapping[str, tuple[int, ...]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Section:
    name: bytes
    kind: int
    flags: int
    data: bytes
    size_bytes: int


def facts_of(data: bytes, archs: Sequence[str] = ()) -> CodeFacts:
    """Read the facts of a module.

    Args:
        data: its bytes.
        archs: which of a bundle's objects counts: the first that is there.
    """
    try:
        if data.startswith(_ELF):
            return _elf_facts(data)
        if data.startswith(_BUNDLE):
            return _bundle_facts(data, archs)
        if len(data) >= 16 and struct.unpack_from("<I", data)[0] == _FATBIN:
            parts = [_elf_facts(p) if p else CodeFacts() for p in _fatbin_parts(data)]
            variables = not parts or any(p.variables for p in parts)
            return CodeFacts("", variables, any(p.allocates for p in parts))
        text = _PTX_POINTER.sub(b"", data)
        variables = b".version" not in text or _PTX_VARIABLE.search(text) is not None
        return CodeFacts("", variables, _PTX_MALLOC.search(text) is not None)
    except (struct.error, ValueError, LookupError, TypeError, msgspec.MsgspecError):
        return CodeFacts()


def _elf_facts(data: bytes) -> CodeFacts:
    machine = struct.unpack_from("<H", data, 18)[0]
    sections = list(_sections(data))
    if machine == _NVIDIA:
        flags = struct.unpack_from("<I", data, 48)[0]
        version = flags >> 8 & 0xFF if data[8] >= 8 else flags & 0xFF
        return CodeFacts(f"sm_{version}", _stateful(sections), _allocates(sections))
    if machine == _AMD:
        return _amd_facts(sections)
    return CodeFacts("", _stateful(sections))


def _sections(data: bytes) -> Iterator[_Section]:
    table = struct.unpack_from("<Q", data, 40)[0]
    entry, count, names_at = struct.unpack_from("<HHH", data, 58)
    headers = [struct.unpack_from("<IIQQQQ", data, table + i * entry) for i in range(count)]
    names = headers[names_at][4]
    for name, kind, flags, _, offset, size in headers:
        start = names + name
        text = data[start : data.index(b"\0", start)]
        content = b"" if kind == 8 else data[offset : offset + size]  # 8: takes no room in the file
        yield _Section(text, kind, flags, content, size)


def _stateful(sections: Sequence[_Section]) -> bool:
    """Variables lie in writable sections; NVIDIA has constants of printf and assert there too."""
    return any(
        s.size_bytes
        and s.flags & _ALLOCATED_WRITABLE == _ALLOCATED_WRITABLE
        and (s.name.startswith(b".nv.global") or s.name in (b".data", b".bss"))
        for s in sections
    )


def _allocates(sections: Sequence[_Section]) -> bool:
    """Whether a cubin refers to the heap; the names of what it refers to are among its strings."""
    return any(s.name == b".strtab" and b"malloc" in s.data.split(b"\0") for s in sections)


def _amd_facts(sections: Sequence[_Section]) -> CodeFacts:
    variables = _stateful(sections)
    for section in sections:
        if section.kind == _NOTE_SECTION:
            metadata = _note(section.data)
            if metadata is not None:
                arch = str(metadata.get("amdhsa.target", "")).rpartition("--")[2]
                parameters = _amd_parameters(metadata)
                return CodeFacts(arch.partition(":")[0], variables, parameters=parameters)
    return CodeFacts("", variables)


def _note(data: bytes) -> dict[str, Any] | None:
    """Give the metadata of the first note that is one."""
    at = 0
    while at + 12 <= len(data):
        name_size, size, kind = struct.unpack_from("<III", data, at)
        start = at + 12 + -(-name_size // 4) * 4
        if kind == _METADATA_NOTE and data[at + 12 : at + 18] == b"AMDGPU":
            return msgspec.msgpack.decode(data[start : start + size], type=dict[str, Any])
        at = start + -(-size // 4) * 4
    return None


def _amd_parameters(metadata: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    found = {}
    for kernel in metadata.get("amdhsa.kernels", ()):
        arguments = [
            a for a in kernel.get(".args", ()) if not a[".value_kind"].startswith("hidden_")
        ]
        found[str(kernel[".name"])] = tuple(int(a[".size"]) for a in arguments)
    return found


def _bundle_facts(data: bytes, archs: Sequence[str]) -> CodeFacts:
    """Facts of that of a bundle's objects which the device will take."""
    objects: dict[str, bytes] = {}
    at = len(_BUNDLE)
    (count,) = struct.unpack_from("<Q", data, at)
    at += 8
    for _ in range(count):
        offset, size, length = struct.unpack_from("<QQQ", data, at)
        at += 24
        target = data[at : at + length].decode().rpartition("--")[2]
        at += length
        objects[target.partition(":")[0]] = data[offset : offset + size]
    for arch in archs:
        if arch in objects:
            return _elf_facts(objects[arch])
    return CodeFacts(" ".join(sorted(filter(None, objects))))


def _fatbin_parts(data: bytes) -> Iterator[bytes]:
    """Give the contents of a fat binary; what is compressed is no ELF and so unknown."""
    header, size = struct.unpack_from("<HQ", data, 6)
    at, end = header, min(header + size, len(data))
    while at < end:
        kind, _, header, size = struct.unpack_from("<HHIQ", data, at)
        if not header:
            return
        content = data[at + header : at + header + size]
        yield content if kind == _FATBIN_ELF and content.startswith(_ELF) else b""
        at += header + size
