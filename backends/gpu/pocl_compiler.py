"""PoCL as the compiler of sources that run on the host's processors."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable
from pathlib import Path
from typing import ClassVar

from dandelion.errors import BackendUnavailable, InvalidFunction
from dandelion.function import digest_of

from .opencl_device import OpenClDevice
from .pocl_runtime import PoclRuntime
from .source import CodeFormat, LoadedCode
from .source_compiler import SourceCompiler

_OWN = b"__kernel void own(__global float *x) { x[get_global_id(0)] = 1.0f; }"


class PoclCompiler(SourceCompiler):
    """Finds out whether a source compiles.

    PoCL makes a kernel's machine code for the size of its blocks, at the first launch, so there is
    no binary that an engine could use.
    """

    formats: ClassVar[frozenset[str]] = frozenset({CodeFormat.PORTABLE, CodeFormat.OPENCL})

    def __init__(self) -> None:
        self._runtime = PoclRuntime(threads=1)
        self._device: OpenClDevice | None = None

    def key(self, code: LoadedCode, arch: str) -> str:
        digest = hashlib.sha256(arch.encode() + b"\0" + code.data)
        return f"{digest.hexdigest()}.pocl"

    def load(self) -> Iterable[str]:
        return self._runtime.load()

    def furnish(self, folder: Path) -> None:
        self._runtime.furnish(folder)
        os.environ.update(self._runtime.without_threads())

    def compile(self, code: LoadedCode, arch: str) -> bytes:
        if self._device is None:
            self._device = OpenClDevice()
            self._device.open()
        try:
            self._device.load(code)
        except InvalidFunction:
            self._try_own(self._device)
            raise
        return b""

    def _try_own(self, device: OpenClDevice) -> None:
        """Compile a source of our own: if that fails too, it is not a source's fault."""
        try:
            device.load(LoadedCode("own.cl", CodeFormat.OPENCL, _OWN, digest_of(_OWN)))
        except InvalidFunction as error:
            raise BackendUnavailable("opencl", f"no source compiles: {error}") from None
