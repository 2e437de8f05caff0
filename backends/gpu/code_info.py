"""What the bytes of a module tell before a device sees them: architecture, variables, kernels.

A module's **variables** would keep their values from one call to the next, also from one tenant's
to another's, so the engine gives them their first values again. Where they cannot all be listed, it
loads the module afresh for each call (see `.modules`). Where the bytes do not tell, variables are
assumed.

Memory that kernels **allocate** lies in a heap that is not zeroed, and outlives them. CUDA's cannot
be made smaller than 4 MiB, so modules that refer to it are refused.

**Kernels** and the sizes of their parameters are held against the blueprint (see `.launch_sizes`).

Read are ELF objects for NVIDIA (cubin) and AMD (code object), bundles of the latter, NVIDIA's
fat binaries and PTX. Nothing here trusts the bytes: whatever cannot be read is unknown, and reading
takes no longer, and no more memory, than a file of that length may.

Source: LLVM's "Clang Offload Bundler"; fat binaries as nvcc 12 and 13 write them; for the rest see
the modules that this one imports.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

import msgspec

from . import code_object, cubin, ptx
from .elf_sections import Section, sections

_ELF = b"\x7fELF"
_NVIDIA, _AMD = 190, 224
_ALLOCATED_WRITABLE = 3
_BUNDLE = b"__CLANG_OFFLOAD_BUNDLE__"
_FATBIN = 0xBA55ED50
_FATBIN_PTX, _FATBIN_ELF = 1, 2
_MALLOC = b"\0malloc\0"
_BROKEN = (
    struct.error,
    ValueError,
    LookupError,
    OverflowError,
    RecursionError,
    msgspec.MsgspecError,
)
_PART_LIMIT = 256  # parts of a bundle or fat binary; there is one for each architecture

Kernels = Mapping[str, tuple[int, ...] | None]
_Given = TypeVar("_Given")
_Fact = TypeVar("_Fact")


@dataclass(frozen=True, slots=True)
class CodeInfo:
    """What is known of a module.

    Attributes:
        arch: which it was built for, empty if unknown or not one alone.
        variables: it has, or may have, variables that outlive a launch.
        listed: all its variables, by symbol; empty if they are not known.
        allocates: its kernels ask for memory of the device's heap.
        kernels: sizes of their parameters in bytes, by symbol; None where only the symbol is known.
        complete: there are no further kernels.
    """

    arch: str = ""
    variables: bool = True
    allocates: bool = False
    kernels: Kernels = field(default_factory=dict)
    complete: bool = False
    listed: Mapping[str, cubin.Variable] = field(default_factory=dict)


def info_of(data: bytes, archs: Sequence[str] = ()) -> CodeInfo:
    """Read what a module says about itself.

    Args:
        data: its bytes.
        archs: which of a bundle's objects counts: the first that is there. Without, all do: then
            the sizes of a kernel are known where all agree.
    """
    try:
        if data.startswith(_ELF):
            return _elf_info(data)
        if data.startswith(_BUNDLE):
            return _bundle_info(data, archs)
        if len(data) >= 16 and struct.unpack_from("<I", data)[0] == _FATBIN:
            return _merged([_part_info(*part) for part in _fatbin_parts(data)])
        return _ptx_info(data) if ptx.is_ptx(data) else CodeInfo()
    except _BROKEN:
        return CodeInfo(allocates=_MALLOC in data)


def part_for(data: bytes, archs: Sequence[str]) -> bytes:
    """Give the binary of a fat binary that a device takes, if that is certain, else all of it.

    By default nvcc 13 compresses the texts beside the binaries, which then cannot be read.

    Args:
        data: bytes of a module.
        archs: whose binaries the device loads, best first.
    """
    if len(data) < 16 or struct.unpack_from("<I", data)[0] != _FATBIN:
        return data
    try:
        binaries = [part for kind, part in _fatbin_parts(data) if kind == _FATBIN_ELF]
        if not all(part.startswith(_ELF) for part in binaries):
            return data
        known = [(_elf_info(part).arch, part) for part in binaries]
    except _BROKEN:
        return data
    for arch in archs:
        found = [part for name, part in known if name == arch]
        if found:
            return found[0] if len(found) == 1 else data
    return data


def _elf_info(data: bytes) -> CodeInfo:
    machine = struct.unpack_from("<H", data, 18)[0]
    found = sections(data)
    if machine == _NVIDIA:
        flags = struct.unpack_from("<I", data, 48)[0]
        version = flags >> 8 & 0xFF if data[8] >= 8 else flags & 0xFF
        kernels = _tried(cubin.kernels, found)
        places = cubin.places_of_variables(found)
        listed = _tried(lambda given: cubin.variables(given, places), found) if places else {}
        variables = bool(places) or not found
        return CodeInfo(
            f"sm_{version}", variables, _allocates(found), kernels, bool(kernels), listed
        )
    variables = _has_variables(found) or not found
    if machine == _AMD:
        metadata = code_object.metadata(found)
        if metadata is not None:
            kernels = metadata.kernels()
            return CodeInfo(metadata.arch, variables, False, kernels, bool(kernels))
    return CodeInfo("", variables)


def _tried(read: Callable[[_Given], Mapping[str, _Fact]], given: _Given) -> Mapping[str, _Fact]:
    """Read a part; where it cannot be read, whatever else was read still counts."""
    try:
        return read(given)
    except _BROKEN:
        return {}


def _ptx_info(text: bytes) -> CodeInfo:
    kernels = _tried(ptx.kernels, text)
    return CodeInfo("", ptx.has_variables(text), ptx.allocates(text), kernels, bool(kernels))


def _has_variables(sections: Sequence[Section]) -> bool:
    """Whether a code object has variables, which lie in writable sections."""
    return any(
        s.size_bytes
        and s.flags & _ALLOCATED_WRITABLE == _ALLOCATED_WRITABLE
        and s.name in (b".data", b".bss")
        for s in sections
    )


def _allocates(sections: Sequence[Section]) -> bool:
    """Whether a cubin refers to the heap; the names of what it refers to are among its strings."""
    return any(s.name == b".strtab" and _MALLOC in bytes(s.data) for s in sections)


def _merged(parts: Sequence[CodeInfo]) -> CodeInfo:
    """Join what is known of parts, of which a device takes one."""
    kernels: dict[str, tuple[int, ...] | None] = {}
    for part in parts:
        for name, sizes in part.kernels.items():
            kernels[name] = sizes if kernels.get(name, sizes) == sizes else None
    return CodeInfo(
        "",
        not parts or any(part.variables for part in parts),
        any(part.allocates for part in parts),
        kernels,
        bool(parts) and all(part.complete for part in parts),
    )


def _bundle_info(data: bytes, archs: Sequence[str]) -> CodeInfo:
    """Facts of that of a bundle's objects which the device will take."""
    objects: dict[str, bytes] = {}
    at, left_bytes = len(_BUNDLE), len(data)
    (count,) = struct.unpack_from("<Q", data, at)
    at += 8
    for _ in range(_bounded(count)):
        offset, size, length = struct.unpack_from("<QQQ", data, at)
        at += 24
        target = data[at : at + length].decode().rpartition("--")[2]
        at += length
        if target:  # the host's has no architecture
            objects[target.partition(":")[0]] = content = data[offset : offset + size]
            left_bytes -= len(content)
            if left_bytes < 0:
                raise ValueError("objects overlap")
    for arch in archs:
        if arch in objects:
            return _elf_info(objects[arch])
    parts = [_elf_info(o) if o.startswith(_ELF) else CodeInfo() for o in objects.values()]
    return replace(_merged(parts), arch=" ".join(sorted(objects)), variables=True)


def _fatbin_parts(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Give the contents of a fat binary, and what they are."""
    header, size = struct.unpack_from("<HQ", data, 6)
    at, end = header, min(header + size, len(data))
    count = 0
    while at < end:
        kind, _, header, size = struct.unpack_from("<HHIQ", data, at)
        if not header:
            return
        count = _bounded(count + 1)
        yield kind, data[at + header : at + header + size]
        at += header + size


def _part_info(kind: int, content: bytes) -> CodeInfo:
    """Facts of a part of a fat binary; what is compressed is neither of the two, so unknown."""
    if kind == _FATBIN_ELF and content.startswith(_ELF):
        return _elf_info(content)
    if kind == _FATBIN_PTX and ptx.is_ptx(content):
        return _ptx_info(content)
    return CodeInfo()


def _bounded(count: int) -> int:
    if count > _PART_LIMIT:
        raise ValueError(f"{count} parts")
    return count
