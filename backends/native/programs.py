"""Loaded executables: which pages each call maps from a shared file, and which it copies.

Pages that a function cannot write (code, constants) are in one sealed memory file for each function
and are mapped into every sandbox; the kernel shares them. All other pages are in the context of the
call.
"""

from __future__ import annotations

import fcntl
import os
import threading
from collections import OrderedDict
from dataclasses import dataclass

from dandelion.errors import InvalidFunction
from dandelion.function import Digest, Function

from . import elf
from .elf import Executable, Segment, page_down, page_up

MIB = 1024 * 1024
LEAST_BYTES = MIB
STACK_LIMIT_BYTES = 8 * MIB
GUARD_BYTES = 64 * 1024
MOST_BYTES = 64 * 1024 * MIB

_ADD_SEALS = 1033
_SEALS = 0x1 | 0x2 | 0x4 | 0x8  # seal, shrink, grow, write: linux/fcntl.h


@dataclass(frozen=True, slots=True)
class Shared:
    """Pages of the shared file: `[start, end)` of the address space, from `offset` of the file."""

    start: int
    end: int
    offset: int
    executable: bool


class NativeProgram:
    """An executable that is ready to run. Owns its file.

    Args:
        executable: the checked content of the file.
        data: the file.

    Attributes:
        shared: pages that are mapped from `file`, by address.
        copies: data to copy into each context: address and bytes of every writable segment.
    """

    def __init__(self, executable: Executable, data: bytes) -> None:
        self.executable = executable
        self.shared: list[Shared] = []
        self.copies: list[tuple[int, bytes]] = []
        content = bytearray()
        writable = [s for s in executable.segments if s.writable]
        for start, end, executable_pages in _runs(executable.segments, writable):
            self.shared.append(Shared(start, end, len(content), executable_pages))
            content += _bytes_of(executable.segments, data, start, end)
        for segment in executable.segments:
            if not self._is_shared(segment) and segment.file_bytes:
                part = data[segment.offset : segment.offset + segment.file_bytes]
                self.copies.append((segment.address, part))
        self.file = os.memfd_create("dandelion-program", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.pwrite(self.file, content, 0)
        fcntl.fcntl(self.file, _ADD_SEALS, _SEALS)

    def _is_shared(self, segment: Segment) -> bool:
        return any(s.start <= segment.address and segment.end <= s.end for s in self.shared)

    def __del__(self) -> None:
        if hasattr(self, "file"):
            os.close(self.file)


def _runs(segments: tuple[Segment, ...], writable: list[Segment]) -> list[tuple[int, int, bool]]:
    """List runs of pages without writable segments; a page that contains code is executable."""
    private = {p for s in writable for p in (page_down(s.address), page_down(s.end - 1))}
    runs: list[tuple[int, int, bool]] = []
    for segment in segments:
        if segment.writable:
            continue
        start, end = page_down(segment.address), page_up(segment.end)
        if start in private:
            start += elf.PAGE
        if end - elf.PAGE in private:
            end -= elf.PAGE
        if start >= end:
            continue
        if runs and start < runs[-1][1]:  # both begin or end in one page
            before = runs.pop()
            runs.append((before[0], end, before[2] or segment.executable))
        else:
            runs.append((start, end, segment.executable))
    return runs


def _bytes_of(segments: tuple[Segment, ...], data: bytes, start: int, end: int) -> bytes:
    content = bytearray(end - start)
    for segment in segments:
        low = max(segment.address, start)
        high = min(segment.address + segment.file_bytes, end)
        if low < high:
            at = segment.offset + low - segment.address
            content[low - start : high - start] = data[at : at + high - low]
    return bytes(content)


def context_bytes(function: Function) -> int:
    """Return the size of a function's context: with inputs if an option sets it, else without.

    It is never above the memory limit, even if that is lower now than at registration.
    """
    option = function.code.options.get("context_bytes", "")
    limit = function.spec.limits.memory_bytes
    size = min(int(option), limit) if option.isdecimal() else limit
    return min(max(page_up(size), LEAST_BYTES), MOST_BYTES)


def bounds(size_bytes: int) -> tuple[int, int]:
    """Return the start addresses of guard and stack; everything else is below them."""
    stack = size_bytes - min(STACK_LIMIT_BYTES, size_bytes // 8 & -elf.PAGE)
    return stack - GUARD_BYTES, stack


class NativePrograms:
    """Caches the most recently used programs, until the last engine detaches. Safe from any thread.

    Args:
        limit: how many.
    """

    def __init__(self, limit: int = 256) -> None:
        self._limit = limit
        self._loaded: OrderedDict[Digest, NativeProgram] = OrderedDict()
        self._engines = 0
        self._lock = threading.Lock()

    def attach(self) -> None:
        """Add an engine."""
        with self._lock:
            self._engines += 1

    def detach(self) -> None:
        """Remove an engine."""
        with self._lock:
            self._engines -= 1
            if not self._engines:
                self._loaded.clear()

    def load(self, function: Function) -> NativeProgram:
        """Return the program of a function.

        Raises:
            InvalidFunction: it cannot be loaded; registration should have refused it.
        """
        with self._lock:
            found = self._loaded.get(function.identity)
            if found is not None:
                self._loaded.move_to_end(function.identity)
                return found
        data = bytes(function.main)
        executable, problems = elf.read(data, bounds(context_bytes(function))[0])
        if executable is None:
            raise InvalidFunction(tuple(problems))
        program = NativeProgram(executable, data)
        with self._lock:
            self._loaded[function.identity] = program
            while len(self._loaded) > self._limit:
                self._loaded.popitem(last=False)
        return program

    def forget(self, identity: Digest) -> None:
        """Remove the program of a function."""
        with self._lock:
            self._loaded.pop(identity, None)
