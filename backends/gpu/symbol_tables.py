"""The tables by which PoCL's libraries find functions of others; ours are put into them here.

A library that calls the same functions, but is no part of PoCL, is the interpreter's or libc
itself, and is left alone.

Source: ``dl_iterate_phdr(3)``, ``elf(5)``.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import struct
from collections.abc import Callable, Container, Iterator, Mapping

_SYMBOL = struct.Struct("<IBBHQQ")
_RELOCATION = struct.Struct("<QQq")
_DT_STRTAB, _DT_SYMTAB, _DT_RELA, _DT_RELASZ = 5, 6, 7, 8
_DT_PLTRELSZ, _DT_JMPREL = 2, 23
_R_GLOB_DAT, _R_JUMP_SLOT = 6, 7
_LOADER_ENTRY = struct.Struct("<QQQQQ")  # struct link_map: base, name, dynamic section, next, prev
_PARTS = (b"libpocl", b"libLLVM", b"libclang")


def replace(functions: Mapping[bytes, int]) -> dict[bytes, list[tuple[int, int]]]:
    """Have PoCL's libraries call other functions.

    Args:
        functions: addresses of the new ones by the names of those in whose place they are called.

    Returns:
        By name, each place that was written, and the address that was there.
    """
    replaced: dict[bytes, list[tuple[int, int]]] = {}
    for base, dynamic in _libraries():
        for name, place in _slots(base, dynamic, functions.keys()):
            before = ctypes.c_uint64.from_address(place).value
            write_word(place, functions[name])
            replaced.setdefault(name, []).append((place, before))
    return replaced


def _libraries() -> Iterator[tuple[int, int]]:
    """Give base address and dynamic section of each library of PoCL and its compiler."""
    handle: int | None = ctypes.CDLL(None)._handle
    while handle:
        base, name_at, dynamic, handle, _ = _LOADER_ENTRY.unpack(
            ctypes.string_at(handle, _LOADER_ENTRY.size)
        )
        name = os.path.basename(ctypes.string_at(name_at)) if name_at else b""
        if any(part in name for part in _PARTS):
            yield base, dynamic


def _slots(base: int, dynamic: int, wanted: Container[bytes]) -> Iterator[tuple[bytes, int]]:
    """Give the places in which a library keeps the addresses of the wanted functions."""
    tags: dict[int, int] = {}
    while True:
        tag, value = struct.unpack("<qQ", ctypes.string_at(dynamic, 16))
        if not tag:
            break
        tags[tag] = value
        dynamic += 16
    absolute: Callable[[int], int] = lambda at: at if at >= base else at + base  # noqa: E731
    symbols, names = absolute(tags[_DT_SYMTAB]), absolute(tags[_DT_STRTAB])
    found = False
    for table, size in ((_DT_JMPREL, _DT_PLTRELSZ), (_DT_RELA, _DT_RELASZ)):
        if table not in tags or found:  # the second is long, and only used without lazy binding
            continue
        whole = ctypes.string_at(absolute(tags[table]), tags[size])
        for place, info, _ in _RELOCATION.iter_unpack(whole):
            if info & 0xFFFFFFFF not in (_R_JUMP_SLOT, _R_GLOB_DAT):
                continue
            entry = ctypes.string_at(symbols + (info >> 32) * _SYMBOL.size, _SYMBOL.size)
            name = ctypes.string_at(names + _SYMBOL.unpack(entry)[0])
            if name in wanted:
                found = True
                yield name, base + place


def write_word(address: int, value: int) -> None:
    """Write into a table that may be read-only by now."""
    page = address & -mmap.PAGESIZE
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    if libc.mprotect(page, mmap.PAGESIZE, mmap.PROT_READ | mmap.PROT_WRITE):
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))
    ctypes.c_uint64.from_address(address).value = value
