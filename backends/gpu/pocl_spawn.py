"""Let PoCL link its kernels in this process, instead of starting a linker.

PoCL, through the compiler that is linked into it, calls ``posix_spawn`` with the command line of
``ld`` and then ``wait4``. `replace_linker` puts functions of ours into the tables by which the
loaded libraries find these two: the one links with `.pocl_link`, the other reports the result. No
process is started any more, so a system call filter can deny that for good. It also means that no
``ld`` needs to be installed; but the compiler looks whether there is a file of that name.

Source: ``dl_iterate_phdr(3)``, ``elf(5)``, ``posix_spawn(3)``.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from .pocl_link import LinkError, link

_SYMBOL = struct.Struct("<IBBHQQ")
_RELOCATION = struct.Struct("<QQq")
_DT_STRTAB, _DT_SYMTAB, _DT_RELA, _DT_RELASZ = 5, 6, 7, 8
_DT_PLTRELSZ, _DT_JMPREL = 2, 23
_R_GLOB_DAT, _R_JUMP_SLOT = 6, 7
_LOADER_ENTRY = struct.Struct("<QQQQQ")  # struct link_map: base, name, dynamic section, next, prev
_NO_SUCH_PROCESS = 1 << 30  # beyond all process ids that Linux gives out
_USAGE_BYTES = 144

_Spawn = ctypes.CFUNCTYPE(
    ctypes.c_int,
    ctypes.POINTER(ctypes.c_int),
    ctypes.c_char_p,
    ctypes.c_void_p,
    ctypes.c_void_p,
    ctypes.POINTER(ctypes.c_char_p),
    ctypes.c_void_p,
)
_Wait = ctypes.CFUNCTYPE(
    ctypes.c_int,
    ctypes.c_int,
    ctypes.POINTER(ctypes.c_int),
    ctypes.c_int,
    ctypes.c_void_p,
    use_errno=True,
)


class Linker:
    """Answers for processes that are never started.

    Attributes:
        failure: why linking failed last, for people.
    """

    def __init__(self) -> None:
        self.failure = ""
        self._ended: dict[int, int] = {}
        self._next = _NO_SUCH_PROCESS
        self.spawn = _Spawn(self._spawn)
        self.wait = _Wait(self._wait)

    def _spawn(
        self, process: Any, program: bytes, actions: int, attributes: int, words: Any, _: int
    ) -> int:
        try:
            arguments = _words(words)
            if os.path.basename(program) != b"ld":
                return errno.EACCES
            process[0] = self._next = self._next + 1
            self._ended[self._next] = 0 if self._link(arguments) else 1
        except Exception as error:  # nothing may be raised into foreign code
            self.failure = f"{type(error).__name__}: {error}"
            return errno.EIO
        return 0

    def _link(self, arguments: list[bytes]) -> bool:
        output = Path(os.fsdecode(arguments[arguments.index(b"-o") + 1]))
        objects = [a for a in arguments if a.endswith(b".o") and not a.startswith(b"-")]
        objects = [a for a in objects if not os.path.basename(a).startswith(b"crt")]
        try:
            if len(objects) != 1:
                raise LinkError(f"{len(objects)} objects")
            output.write_bytes(link(Path(os.fsdecode(objects[0])).read_bytes()))
        except LinkError as error:
            self.failure = str(error)
            return False
        return True

    def _wait(self, process: int, status: Any, options: int, usage: int | None) -> int:
        if process not in self._ended:
            ctypes.set_errno(errno.ECHILD)
            return -1
        if status:
            status[0] = self._ended.pop(process) << 8
        if usage:
            ctypes.memset(usage, 0, _USAGE_BYTES)
        return process


def _words(array: Any) -> list[bytes]:
    words = []
    for index in range(10_000):
        if array[index] is None:
            break
        words.append(array[index])
    return words


def replace_linker() -> Linker | None:
    """Have every loaded library call `Linker` where it would start a program.

    Returns:
        What answers from now on, to be kept alive; None if no library starts programs.
    """
    linker = Linker()
    wanted = {
        b"posix_spawn": ctypes.cast(linker.spawn, ctypes.c_void_p).value or 0,
        b"wait4": ctypes.cast(linker.wait, ctypes.c_void_p).value or 0,
    }
    replaced = set()
    for base, dynamic in _libraries():
        for name, place in _slots(base, dynamic, wanted):
            _write_word(place, wanted[name])
            replaced.add(name)
    return linker if replaced == wanted.keys() else None


def _libraries() -> Iterator[tuple[int, int]]:
    """Give base address and dynamic section of each library that has the compiler in it.

    A library that can start programs, but is no part of PoCL, is the interpreter's or libc itself.
    """
    handle: int | None = ctypes.CDLL(None)._handle
    while handle:
        base, name_at, dynamic, handle, _ = _LOADER_ENTRY.unpack(
            ctypes.string_at(handle, _LOADER_ENTRY.size)
        )
        name = os.path.basename(ctypes.string_at(name_at)) if name_at else b""
        if any(part in name for part in _PARTS):
            yield base, dynamic


_PARTS = (b"libpocl", b"libLLVM", b"libclang")


def _slots(base: int, dynamic: int, wanted: dict[bytes, int]) -> Iterator[tuple[bytes, int]]:
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


def _write_word(address: int, value: int) -> None:
    """Write into a table that may be read-only by now."""
    page = address & -mmap.PAGESIZE
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    if libc.mprotect(page, mmap.PAGESIZE, mmap.PROT_READ | mmap.PROT_WRITE):
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))
    ctypes.c_uint64.from_address(address).value = value
