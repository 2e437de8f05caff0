"""Let PoCL link its kernels in this process, instead of starting a linker.

PoCL, through the compiler that is linked into it, calls ``posix_spawn`` with the command line of
``ld`` and then ``wait4``. `replace_linker` puts functions of ours in their place
(`.symbol_tables`): the one links with `.pocl_link`, the other reports the result. No process is
started any more, so a system call filter can deny that for good. It also means that no ``ld`` needs
to be installed; but the compiler looks whether there is a file of that name.

Source: ``posix_spawn(3)``, ``wait4(2)``.
"""

from __future__ import annotations

import ctypes
import errno
import os
from pathlib import Path
from typing import Any

from .pocl_link import LinkError, link
from .symbol_tables import replace

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
    return linker if replace(wanted).keys() == wanted.keys() else None
