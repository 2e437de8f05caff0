"""Sources become binaries once for each architecture; a folder keeps them.

A source is compiled when its function is registered, in a process of its own (`.compile_process`),
if an engine is up for whose device that is; else by the engine, when it is first called.

A file of the folder is named after everything that its content depends on: the source, the
architecture, the options. It begins with a digest of the rest, so a torn or damaged file is none.
Writers write beside and rename, so any number may write at once, and the last one wins with the
same bytes. The folder is a cache and nothing else: where it cannot be written to, nothing is kept.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any, ClassVar

from dandelion.errors import BackendUnavailable, DeviceFault, InvalidFunction, Problem

from .calls import Compiler
from .source import CodeFormat, LoadedCode
from .source_check import checked_source
from .source_compiler import SourceCompiler

_MAGIC = b"dandelion code 1\n"
_DIGEST_BYTES = 32
LIMIT_BYTES = 2**30
LOG_BYTES = 2**16
"""How much of a compiler's words is kept, from their beginning."""
SOURCES = frozenset({CodeFormat.PORTABLE, CodeFormat.CUDA, CodeFormat.HIP})


class CodeCache:
    """Keeps binaries in a folder.

    Args:
        folder: is made when something is first kept.
        limit_bytes: beyond it, what was not used for longest goes.
    """

    def __init__(self, folder: Path, limit_bytes: int = LIMIT_BYTES) -> None:
        self.folder = folder
        self._limit_bytes = limit_bytes

    def get(self, key: str) -> bytes | None:
        """Give what was kept, or None if it is not there or damaged."""
        path = self.folder / key
        try:
            whole = path.read_bytes()
        except OSError:
            return None
        start = len(_MAGIC) + _DIGEST_BYTES
        data = whole[start:]
        if whole[:start] != _MAGIC + hashlib.sha256(data).digest():
            return None
        with contextlib.suppress(OSError):
            os.utime(path)
        return data

    def put(self, key: str, data: bytes) -> None:
        """Keep something, if that is possible."""
        with contextlib.suppress(OSError):
            self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            descriptor, name = tempfile.mkstemp(dir=self.folder, prefix=".new-")
            try:
                with os.fdopen(descriptor, "wb") as file:
                    file.write(_MAGIC + hashlib.sha256(data).digest() + data)
                os.replace(name, self.folder / key)
            except BaseException:
                os.unlink(name)
                raise
            self._trim()

    def _trim(self) -> None:
        found = []
        with os.scandir(self.folder) as entries:
            for entry in entries:
                with contextlib.suppress(FileNotFoundError):  # another writer was done with it
                    found.append((entry.stat(), entry.path))
        total = sum(stat.st_size for stat, _ in found)
        for stat, path in sorted(found, key=lambda entry: entry[0].st_mtime_ns):
            if total <= self._limit_bytes:
                return
            with contextlib.suppress(OSError):
                os.unlink(path)
            total -= stat.st_size


def default_folder() -> Path | None:
    """The user's cache folder for compiled code, or None if this user has none."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    if not os.path.isabs(base):
        home = os.path.expanduser("~")
        if not os.path.isabs(home):
            return None
        base = os.path.join(home, ".cache")
    return Path(base) / "dandelion" / "code"


class RuntimeCompiler(SourceCompiler):
    """The vendor's compiler, in the compile process.

    Args:
        table: its functions.
    """

    formats: ClassVar[frozenset[str]] = SOURCES

    def __init__(self, table: Compiler) -> None:
        self._table = table

    def key(self, code: LoadedCode, arch: str) -> str:
        return key_of(self._table, code, arch)

    def load(self) -> Iterable[str]:
        loaded(self._table)
        words = [os.fsdecode(word) for word in self._table.headers()]
        return [os.path.realpath(word[2:]) for word in words if word.startswith("-I")]

    def compile(self, code: LoadedCode, arch: str) -> bytes:
        return compiled(self._table, code, arch, None)


def key_of(compiler: Compiler, code: LoadedCode, arch: str) -> str:
    """Give the name under which a cache keeps the binary of a source."""
    options = compiler.options(arch)
    depends = b"\0".join((compiler.prefix.encode(), arch.encode(), *options, b"", code.data))
    return f"{hashlib.sha256(depends).hexdigest()}.{arch}"


def compiled(compiler: Compiler, code: LoadedCode, arch: str, cache: CodeCache | None) -> bytes:
    """Give the binary of a source.

    Raises:
        InvalidFunction: it does not compile; the compiler's words are in it.
        BackendUnavailable: the compiler is missing.
    """
    checked_source(code)
    key = key_of(compiler, code, arch)
    found = cache.get(key) if cache is not None else None
    if found is None:
        found = _compile(compiler, code, compiler.options(arch))
        if cache is not None:
            cache.put(key, found)
    return found


def _compile(compiler: Compiler, code: LoadedCode, options: tuple[bytes, ...]) -> bytes:
    rtc = loaded(compiler)
    name = compiler.prefix

    def do(operation: str, *arguments: Any) -> Any:
        answer = getattr(rtc, name + operation)(*arguments)
        if answer[0]:
            raise DeviceFault(name, operation, str(answer[0]))
        return answer[1] if len(answer) > 1 else None

    source = code.data.replace(b"\0", b" ")
    program = do("CreateProgram", source, code.name.encode(), 0, [], [])
    try:
        words = [*options, *(compiler.headers() if b"#include" in source else ())]
        answer = getattr(rtc, name + "CompileProgram")(program, len(words), words)
        if answer[0]:
            log = bytearray(int(do("GetProgramLogSize", program)) + 1)
            do("GetProgramLog", program, log)
            text = log[:LOG_BYTES].rstrip(b"\0").decode(errors="replace")
            message = "it does not compile"
            problem = Problem("compile", message, code.name, found=str(answer[0]), excerpt=text)
            raise InvalidFunction((problem,))
        binary = bytearray(int(do(f"Get{compiler.code}Size", program)))
        do(f"Get{compiler.code}", program, binary)
        return bytes(binary)
    finally:
        getattr(rtc, name + "DestroyProgram")(compiler.reference(program))


def loaded(compiler: Compiler) -> Any:
    """Give a compiler's binding, with its library loaded.

    Raises:
        BackendUnavailable: the library is missing.
    """
    rtc = compiler.load()
    try:
        getattr(rtc, compiler.prefix + "Version")()
    except Exception as error:  # whatever a binding raises where its library is missing
        raise BackendUnavailable(compiler.prefix, str(error)) from None
    return rtc
