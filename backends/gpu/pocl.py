"""What PoCL, OpenCL on the CPU, needs to be told before and after it is loaded.

PoCL asks the LLVM that it was built with for the name of the CPU. An LLVM that is older than the
CPU answers ``generic``, which its own compiler then refuses, so that every program fails to build.
The name is a C string that the device's record points to, directly behind the target triple;
`repair_cpu` puts a name there that every x86-64 LLVM knows.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import struct
from collections.abc import Iterator
from pathlib import Path

_RECORD_WORDS = 256
_TRIPLE = b"x86_64-"
_UNKNOWN = b"generic\0"


def prepare_environment(threads: int = 0) -> None:
    """Bound PoCL's threads to the cores that this process may use; what is set already stays.

    Args:
        threads: how many; 0 for one for each core.
    """
    cores = len(os.sched_getaffinity(0))
    os.environ.setdefault("POCL_MAX_PTHREAD_COUNT", str(threads or cores))
    os.environ.setdefault("PYOPENCL_NO_CACHE", "1")  # PoCL has a cache of its own, without pickle


def repair_cpu(device_address: int, device_version: str) -> bool:
    """Give PoCL a CPU name that its compiler knows, if it has not got one.

    Args:
        device_address: of the OpenCL device.
        device_version: its version string, which ends with the CPU's name.

    Returns:
        Whether something was changed.
    """
    if not device_version.endswith("x86_64-unknown-linux-gnu-generic"):
        return False
    with _own_memory() as memory:
        field = _find_cpu_field(memory, device_address)
    if field is None:
        return False
    strdup = ctypes.CDLL(None).strdup
    strdup.restype = ctypes.c_void_p
    strdup.argtypes = [ctypes.c_char_p]
    ctypes.c_void_p.from_address(field).value = strdup(_cpu_name().encode())
    return True


@contextlib.contextmanager
def _own_memory() -> Iterator[int]:
    """Open this process's memory: reading there what is not mapped is an error, not a crash."""
    fd = os.open("/proc/self/mem", os.O_RDONLY | os.O_CLOEXEC)
    try:
        yield fd
    finally:
        os.close(fd)


def _find_cpu_field(memory: int, record: int) -> int | None:
    words = struct.unpack(f"={_RECORD_WORDS}Q", os.pread(memory, _RECORD_WORDS * 8, record))
    for index in range(_RECORD_WORDS - 1):
        if (
            _string(memory, words[index], len(_TRIPLE)) == _TRIPLE
            and _string(memory, words[index + 1], len(_UNKNOWN)) == _UNKNOWN
        ):
            return record + 8 * (index + 1)
    return None


def _string(memory: int, address: int, size: int) -> bytes:
    if not 4096 <= address < 2**47:
        return b""
    try:
        return os.pread(memory, size, address)
    except OSError:
        return b""


def _cpu_name() -> str:
    """Name a CPU with no more abilities than this one has."""
    try:
        flags = set(
            Path("/proc/cpuinfo").read_text().partition("flags")[2].partition("\n")[0].split()
        )
    except OSError:
        flags = set()
    return "haswell" if {"avx2", "fma", "bmi2", "movbe"} <= flags else "x86-64"
