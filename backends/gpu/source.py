"""Code of modules: which of its files a device takes, and how a portable source becomes whole."""

from __future__ import annotations

import functools
import importlib.resources
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from dandelion.blueprint import Code, GpuConfig, Module
from dandelion.blueprint.signatures import HEADER, is_portable
from dandelion.data import Bytes
from dandelion.errors import InvalidBlueprint, Problem
from dandelion.function import Digest, digest_of

from .templates import Template


class CodeFormat:
    """Words for what the bytes of a module are."""

    PORTABLE = "portable"  # a source against dandelion.h
    OPENCL = "opencl-c"
    CUDA = "cuda-c"
    HIP = "hip-c"
    SPIRV = "spirv"
    PTX = "ptx"
    CUBIN = "cubin"
    FATBIN = "fatbin"
    HSACO = "hsaco"
    HOST = "host"  # names of Python functions: the host device for tests
    UNKNOWN = "unknown"


_BY_ENDING = {
    "cl": CodeFormat.OPENCL,
    "cu": CodeFormat.CUDA,
    "hip": CodeFormat.HIP,
    "spv": CodeFormat.SPIRV,
    "ptx": CodeFormat.PTX,
    "cubin": CodeFormat.CUBIN,
    "fatbin": CodeFormat.FATBIN,
    "hsaco": CodeFormat.HSACO,
    "host": CodeFormat.HOST,
}
_BY_BACKEND = {"opencl": CodeFormat.OPENCL, "cuda": CodeFormat.CUDA, "hip": CodeFormat.HIP}
_BINARY = {
    CodeFormat.SPIRV,
    CodeFormat.PTX,
    CodeFormat.CUBIN,
    CodeFormat.FATBIN,
    CodeFormat.HSACO,
    CodeFormat.HOST,
}


@dataclass(frozen=True, slots=True)
class LoadedCode:
    """A module's bytes, as a device gets them.

    Attributes:
        name: of the file, for error messages.
        format: a word of `CodeFormat`.
        data: source text in UTF-8 with ``dandelion.h`` inlined, or a binary.
        digest: of the original bytes and the format; equal digests are equal modules.
        shared_mem_bytes: dynamic local memory of each launch of its kernels, instead of the
            launch's number; None if that counts.
    """

    name: str
    format: str
    data: bytes
    digest: Digest
    shared_mem_bytes: int | None = None

    @property
    def text(self) -> str:
        """The source as text."""
        return self.data.decode(errors="replace")


def format_of(code: Code, data: Bytes) -> str:
    """Tell what the bytes of a file are, by its name, its backend and its text."""
    by_ending = _BY_ENDING.get(code.path.rpartition(".")[2], CodeFormat.UNKNOWN)
    if by_ending in _BINARY:
        return by_ending
    if is_portable(bytes(data).decode(errors="replace")):
        return CodeFormat.PORTABLE
    return _BY_BACKEND.get(code.backend, by_ending)


def choose(
    module: Module,
    files: Mapping[str, Bytes],
    backend: str,
    formats: Sequence[str],
    archs: Sequence[str] = (),
) -> LoadedCode:
    """Choose the first file of a module that a device can load.

    Files made for exactly this architecture come first, then the others in their order.

    Args:
        module: with its alternatives.
        files: bytes by path.
        backend: name of the device's backend.
        formats: that it takes.
        archs: that it takes; alternatives without an architecture always fit.

    Raises:
        InvalidBlueprint: there is none.
    """
    candidates = [c for c in module.code if c.backend in ("", backend) and c.path in files]
    candidates = [c for c in candidates if not c.arch or c.arch in archs]
    candidates.sort(key=lambda c: archs.index(c.arch) if c.arch else len(archs))
    for code in candidates:
        data = files[code.path]
        found = format_of(code, data)
        if found in formats:
            digest = digest_of(found.encode() + b"\0" + bytes(data))
            whole = bytes(data)
            if found == CodeFormat.PORTABLE:
                whole = with_header(whole.decode(errors="replace"), code.path).encode()
            return LoadedCode(code.path, found, whole, digest, code.shared_mem_bytes)
    there = ", ".join(c.path for c in module.code) or "none"
    built = ", ".join(c.arch for c in module.code if c.backend in ("", backend) and c.arch)
    message = f"none of its files runs on {backend}"
    if built and archs:
        message = f"it has code for {built}, this device is {archs[0]}"
    elif any(format_of(c, files[c.path]) == CodeFormat.UNKNOWN for c in candidates):
        message += f'; a portable source begins with #include "{HEADER}"'
    problem = Problem("no-code", message, f"modules.{module.name}", found=there)
    raise InvalidBlueprint((problem,))


def code_of(template: Template) -> LoadedCode:
    """Give a kernel of the platform as code of a module."""
    name = f"{template.symbol}.c"
    digest = digest_of(b"template\0" + template.text.encode())
    data = with_header(template.text, name).encode()
    return LoadedCode(name, CodeFormat.PORTABLE, data, digest)


@functools.cache
def header() -> str:
    """Text of ``dandelion.h``."""
    return importlib.resources.files(__package__ or "").joinpath(HEADER).read_text()


_INCLUDE = re.compile(
    r'^[ \t]*#[ \t]*include[ \t]*["<]' + re.escape(HEADER) + r'[">][^\n]*\n?', re.M
)


def with_header(text: str, name: str) -> str:
    """Put ``dandelion.h`` in place of its include; the source's lines keep their numbers.

    Compilers' messages have the name with `_` for signs that a ``#line`` of users must not have.
    """
    match = _INCLUDE.search(text)
    if match is None:
        return text
    line = text.count("\n", 0, match.end()) + 1
    safe = re.sub(r"[^\w.+ -]", "_", name)
    rest = _INCLUDE.sub("\n", text[match.end() :])
    return f'{text[: match.start()]}{header()}\n#line {line} "{safe}"\n{rest}'


def sources(config: GpuConfig, files: Mapping[str, Bytes]) -> list[LoadedCode]:
    """Give all sources of a function's modules, as they were written."""
    found: dict[str, LoadedCode] = {}
    for module in config.modules:
        for code in module.code:
            data = files.get(code.path)
            if data is None or (kind := format_of(code, data)) in _BINARY:
                continue
            found[code.path] = LoadedCode(code.path, kind, bytes(data), Digest(""))
    return list(found.values())
