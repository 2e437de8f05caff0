"""What PoCL, OpenCL on the CPU, needs to be told before and after it is loaded.

PoCL asks the LLVM that it was built with for the name of the CPU. An LLVM that is older than the
CPU answers ``generic``, which its own compiler then refuses, so that every program fails to build.
The name is a C string that the device's record points to, directly behind the target triple;
`repair_cpu` puts a name there that every x86-64 LLVM since version 4 knows. Vectors that this CPU
has and the named one has not are unknown to the compiler, so the width that PoCL prefers for them
does not count then: LLVM 14 aborts at a few operations on vectors of 64 bytes for `haswell`.
"""

from __future__ import annotations

import ctypes
import importlib
import os
import struct
from collections.abc import Set
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dandelion.errors import BackendUnavailable

REMEDY = "pip install 'dandelion-engine[opencl]'"

DEVICES = "POCL_DEVICES"
"""The environment variable that names the kinds of devices that PoCL has."""

_RECORD_WORDS = 256
_TRIPLE = b"x86_64-"
_UNKNOWN = b"generic\0"


@dataclass(frozen=True, slots=True)
class KnownCpu:
    """A CPU that the compiler can be told.

    Attributes:
        name: as LLVM names it.
        flags: what it has, as `/proc/cpuinfo` names it.
        vector_bytes: length of its vectors.
    """

    name: str
    flags: frozenset[str]
    vector_bytes: int


_AVX2 = frozenset({"avx2", "fma", "bmi1", "bmi2", "movbe", "f16c"})
_AVX512 = _AVX2 | {"avx512f", "avx512cd", "avx512bw", "avx512dq", "avx512vl", "adx", "clwb"}
_KNOWN_CPUS = (
    KnownCpu("skylake-avx512", _AVX512, 64),
    KnownCpu("haswell", _AVX2, 32),
    KnownCpu("x86-64", frozenset(), 16),
)


def binding() -> Any:  # pyopencl's names are only known once it is loaded
    """Load pyopencl.

    Raises:
        BackendUnavailable: it is missing.
    """
    try:
        return importlib.import_module("pyopencl")
    except ImportError as error:
        raise BackendUnavailable("opencl", f"pyopencl: {error}", REMEDY) from None


def prepare_environment(threads: int = 0) -> None:
    """Say what OpenCL reads from the environment; what is set already stays.

    PoCL's threads are bounded by the cores that this process may use. Platforms are not put in
    order: where there are several, that would open their devices, which start threads.

    Args:
        threads: how many; 0 for one for each core.
    """
    cores = len(os.sched_getaffinity(0))
    os.environ.setdefault("POCL_MAX_PTHREAD_COUNT", str(threads or cores))
    os.environ.setdefault("OCL_ICD_PLATFORM_SORT", "none")
    os.environ.setdefault("PYOPENCL_NO_CACHE", "1")  # PoCL has a cache of its own, without pickle


def repair_cpu(device_address: int, device_version: str) -> KnownCpu | None:
    """Give PoCL a CPU name that its compiler knows, if it has not got one.

    Args:
        device_address: of the OpenCL device.
        device_version: its version string, which ends with the CPU's name.

    Returns:
        The CPU that the compiler was told; None if nothing was changed.
    """
    if not device_version.endswith("x86_64-unknown-linux-gnu-generic"):
        return None
    field = _find_cpu_field(device_address)
    if field is None:
        return None
    cpu = known_cpu(_flags())
    strdup = ctypes.CDLL(None).strdup
    strdup.restype = ctypes.c_void_p
    strdup.argtypes = [ctypes.c_char_p]
    ctypes.c_void_p.from_address(field).value = strdup(cpu.name.encode())
    return cpu


def known_cpu(flags: Set[str]) -> KnownCpu:
    """Give the best CPU that has no more abilities than one with these flags."""
    return next(cpu for cpu in _KNOWN_CPUS if cpu.flags <= flags)


class _Range(ctypes.Structure):
    _fields_ = (("start", ctypes.c_void_p), ("size", ctypes.c_size_t))


def _own_memory(address: int, size: int) -> bytes:
    """Read memory of this process; empty, and not a crash, if it is not mapped."""
    read = ctypes.CDLL(None, use_errno=True).process_vm_readv
    read.restype = ctypes.c_ssize_t
    buffer = ctypes.create_string_buffer(size)
    here, there = _Range(ctypes.addressof(buffer), size), _Range(address, size)
    count = read(
        os.getpid(),
        ctypes.byref(here),
        ctypes.c_ulong(1),
        ctypes.byref(there),
        ctypes.c_ulong(1),
        ctypes.c_ulong(0),
    )
    return buffer.raw[:count] if count > 0 else b""


def _find_cpu_field(record: int) -> int | None:
    whole = _own_memory(record, _RECORD_WORDS * 8)
    words = struct.unpack(f"={len(whole) // 8}Q", whole[: len(whole) // 8 * 8])
    for index in range(len(words) - 1):
        if (
            _string(words[index], len(_TRIPLE)) == _TRIPLE
            and _string(words[index + 1], len(_UNKNOWN)) == _UNKNOWN
        ):
            return record + 8 * (index + 1)
    return None


def _string(address: int, size: int) -> bytes:
    return _own_memory(address, size) if 4096 <= address < 2**47 else b""


def _flags() -> frozenset[str]:
    """Give the abilities of this machine's CPU; none if the system does not tell."""
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return frozenset()
    return frozenset(text.partition("flags")[2].partition("\n")[0].split())


def _remedy() -> str:
    """How to get a device; one may be there that is not to be used."""
    if DEVICES in os.environ:
        return f"unset {DEVICES} (now '{os.environ[DEVICES]}') or set it to a device of PoCL"
    return REMEDY


def opencl_devices(cl: Any) -> dict[str, Any]:
    """All devices by the names that resources have, GPUs first: gpu, gpu1, cpu."""
    try:
        found = [device for platform in cl.get_platforms() for device in platform.get_devices()]
    except cl.Error as error:
        raise BackendUnavailable("opencl", f"no OpenCL platform ({error})", _remedy()) from None
    if not found and DEVICES in os.environ:
        raise BackendUnavailable("opencl", "no OpenCL device", _remedy())
    if not found:
        remedy = f"{REMEDY}, and a cache folder that this user can write (XDG_CACHE_HOME)"
        raise BackendUnavailable("opencl", "no OpenCL device", remedy)
    kinds = {cl.device_type.GPU: "gpu", cl.device_type.CPU: "cpu"}
    named: dict[str, Any] = {}
    for wanted in ("gpu", "cpu", "other"):
        same = [d for d in found if kinds.get(d.type & ~cl.device_type.DEFAULT, "other") == wanted]
        named |= {f"{wanted}{i or ''}": device for i, device in enumerate(same)}
    return named
