"""PoCL as the compiler of sources that run on the host's processors."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable
from pathlib import Path
from typing import ClassVar

from .opencl_device import OpenClDevice
from .pocl_runtime import PoclRuntime
from .source import CodeFormat, LoadedCode
from .source_compiler import SourceCompiler


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
        self._device.load(code)
        return b""
