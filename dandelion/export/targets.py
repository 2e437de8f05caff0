"""Architectures that kernels are compiled for, by the names that blueprints use."""

from __future__ import annotations

import re
from dataclasses import dataclass

from dandelion.errors import InvalidInput

_NVIDIA = re.compile(r"sm_(\d{2,3})")
_AMD = re.compile(r"gfx(\d{1,2})[0-9a-f]{2}")
_SHARED_LIMITS_BYTES = {
    "sm_80": 163 * 1024,
    "sm_86": 99 * 1024,
    "sm_87": 163 * 1024,
    "sm_89": 99 * 1024,
    "sm_90": 227 * 1024,
    "sm_100": 227 * 1024,
    "sm_103": 227 * 1024,
    "sm_120": 99 * 1024,
    "gfx908": 64 * 1024,
    "gfx90a": 64 * 1024,
    "gfx942": 64 * 1024,
    "gfx950": 160 * 1024,
    "gfx1100": 64 * 1024,
    "gfx1200": 64 * 1024,
    "gfx1201": 64 * 1024,
}


@dataclass(frozen=True, slots=True)
class Target:
    """An architecture.

    Attributes:
        arch: its name in blueprints: ``sm_90``, ``gfx942``.
        backend: the backend with devices of it: ``cuda`` or ``hip``.
        number: its name in the compiler: 90 for ``sm_90``; ``arch`` for AMD.
        warp_threads: threads that run in lockstep (a warp, a wavefront).
        suffix: of the names of its binaries: ``cubin`` or ``hsaco``.
    """

    arch: str
    backend: str
    number: int | str
    warp_threads: int
    suffix: str

    @property
    def shared_limit_bytes(self) -> int | None:
        """Most shared memory of a block; None if it is not known here.

        Source: CUDA C++ Programming Guide, "Compute Capabilities"; AMD's ISA guides (LDS).
        """
        return _SHARED_LIMITS_BYTES.get(self.arch)


def target_of(device: str) -> Target:
    """Find a target by a backend and the name of its architecture there: ``cuda:90``.

    Raises:
        InvalidInput: it is neither like ``cuda:90`` nor like ``hip:gfx942``.
    """
    backend, _, number = device.partition(":")
    arch = f"sm_{number}" if backend == "cuda" else number
    if _AMD.fullmatch(arch) if backend == "hip" else backend == "cuda" and _NVIDIA.fullmatch(arch):
        return target_named(arch)
    raise InvalidInput("target", f"no device '{device}'", "write it like cuda:90 or hip:gfx942")


def target_named(arch: str) -> Target:
    """Find a target by the name of its architecture.

    Raises:
        InvalidInput: it is neither like ``sm_90`` nor like ``gfx942``.
    """
    nvidia, amd = _NVIDIA.fullmatch(arch), _AMD.fullmatch(arch)
    if nvidia:
        return Target(arch, "cuda", int(nvidia[1]), 32, "cubin")
    if amd:
        return Target(arch, "hip", arch, 64 if int(amd[1]) < 10 else 32, "hsaco")
    raise InvalidInput(
        "targets", f"no architecture '{arch}'", "write it like sm_90 (NVIDIA) or gfx942 (AMD)"
    )
