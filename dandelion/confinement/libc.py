"""C functions that Python's standard library does not bind."""

from __future__ import annotations

import ctypes
import mmap
import os
from collections.abc import Callable
from typing import Any

_LIBC = ctypes.CDLL(None, use_errno=True)
_LIBC.syscall.restype = ctypes.c_long
_LIBC.unshare.argtypes = [ctypes.c_int]

_LIBC.mount.argtypes = [*(ctypes.c_char_p,) * 3, ctypes.c_ulong, ctypes.c_char_p]

_LIBC.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *(ctypes.c_int,) * 3, ctypes.c_long]
_LIBC.mmap.restype = ctypes.c_void_p
_VIEW = ctypes.pythonapi.PyMemoryView_FromMemory
_VIEW.argtypes = [ctypes.c_void_p, ctypes.c_ssize_t, ctypes.c_int]
_VIEW.restype = ctypes.py_object
_MAP_FAILED = ctypes.c_void_p(-1).value
_FOR_READING = 0x100  # PyBUF_READ

_LOCKED = ctypes.PyDLL(None, use_errno=True)  # keeps the interpreter's lock during a call
_LOCKED.syscall.restype = ctypes.c_long
_LOCKED.prctl.argtypes = [ctypes.c_int] + [ctypes.c_ulong] * 4

PR_SET_PDEATHSIG = 1
PR_SET_DUMPABLE = 4
PR_SET_NO_NEW_PRIVS = 38


def syscall(number: int, *arguments: int | ctypes.Array[ctypes.c_char] | None) -> int:
    """Make a system call by number; integers are passed as 64-bit words, buffers by address.

    Raises:
        OSError: it failed.
    """
    return _checked(int(_LIBC.syscall(*_words(number, *arguments))))


def prepared(number: int, *arguments: int | ctypes.Array[ctypes.c_char]) -> Callable[[], int]:
    """Prepare a system call that a forked process makes later.

    A fork copies every page that it writes to, and creating or even reading an object is a write.
    So all objects are made here, before the fork.

    Returns:
        A function that makes the call, and raises OSError if it fails.
    """
    words = _words(number, *arguments)
    call = _LOCKED.syscall
    return lambda: _checked(int(call(*words)))


def _words(*arguments: int | ctypes.Array[ctypes.c_char] | None) -> list[Any]:
    return [ctypes.c_long(a) if isinstance(a, int) else a for a in arguments]


def mapped(file: int) -> memoryview:
    """Map a whole file for reading, to the end of the process; the file may be closed.

    `mmap.mmap` keeps a descriptor of the file.

    Raises:
        OSError: there is no room.
    """
    size = os.lseek(file, 0, os.SEEK_END)
    address = _LIBC.mmap(None, size, mmap.PROT_READ, mmap.MAP_PRIVATE, file, 0)
    if address == _MAP_FAILED:
        _checked(-1)
    view: memoryview = _VIEW(address, size, _FOR_READING)
    return view


def prctl(option: int, value: int) -> int:
    """Change a property of this process.

    Raises:
        OSError: it failed.
    """
    return _checked(int(_LOCKED.prctl(option, value, 0, 0, 0)))


def unshare(flags: int) -> None:
    """Leave namespaces that this process shares with its parent.

    Raises:
        OSError: it is not allowed, or there are no such namespaces.
    """
    _checked(int(_LIBC.unshare(flags)))


def mount(target: str, kind: str, flags: int, options: str = "", source: str = "none") -> None:
    """Mount a file system that has no device, or another path; or change how one propagates.

    Raises:
        OSError: it is not allowed.
    """
    words = (os.fsencode(source), os.fsencode(target), kind.encode())
    _checked(int(_LIBC.mount(*words, flags, options.encode())))


def fork() -> int:
    """Fork this process, which must have no other thread, without Python's preparations.

    ``os.fork`` rebuilds locks and thread records that other threads might have held, and reseeds
    `random`. With one thread this is not needed, and would cost each child 0.6 ms in copied pages.

    Raises:
        OSError: the system is out of memory or processes.
    """
    return _checked(int(_LOCKED.fork()))


def _checked(result: int) -> int:
    if result < 0:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))
    return result
