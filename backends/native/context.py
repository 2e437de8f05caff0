"""The context of one call: a memory file whose offsets are the function's addresses.

::

    0x10000      segments of the program, at their addresses
                 inputs, their names and arrays
    heap_begin   heap, up to heap_end
    heap_end     guard: not mapped, so that stack and heap cannot overlap
    stack        down from size - 32
    size         end of the function's addresses; its report follows in the same file

The original has no guard: there, stack and heap share one range. Functions that keep within their
bounds do not notice the difference.
"""

from __future__ import annotations

import mmap
import os
from dataclasses import dataclass

from dandelion.data import Bytes
from dandelion.driver import Call
from dandelion.errors import OutOfMemory

from . import launcher
from .elf import LOWEST, page_up
from .names import input_names, output_names
from .programs import NativeProgram, Shared, bounds, context_bytes
from .structures import NATIVE, Inputs, align, lay_out, system_data

_VECTOR_LIMIT = 1000  # below UIO_MAXIOV
_STACK_OFFSET = 32
_READ_WRITE = mmap.PROT_READ | mmap.PROT_WRITE
_MAP_FIXED = 0x10
_CONTEXT_FD, _PROGRAM_FD = 0, 1


@dataclass(frozen=True, slots=True)
class ContextLayout:
    """The addresses of a call's memory.

    Attributes:
        size: end of the addresses.
        limit_bytes: memory that the function may use, for errors.
        guard, stack: start addresses of guard and stack.
        inputs_at: start address of the inputs.
        inputs: the data written there.
    """

    size: int
    limit_bytes: int
    guard: int
    stack: int
    inputs_at: int
    inputs: Inputs


def lay_out_context(call: Call, program: NativeProgram) -> ContextLayout:
    """Place a call's inputs, heap and stack.

    Raises:
        OutOfMemory: the inputs leave no room for heap and stack.
    """
    spec = call.function.spec
    start = align(program.executable.end)
    names = input_names(call.function), output_names(call.function)
    inputs = lay_out(NATIVE, start, call.inputs, *names)
    size = limit = context_bytes(call.function)
    if "context_bytes" not in call.function.code.options:
        size += page_up(inputs.size_bytes)
    guard, stack = bounds(size)
    if start + inputs.size_bytes > guard:
        raise OutOfMemory(spec.name, limit)
    return ContextLayout(size, limit, guard, stack, start, inputs)


class NativeContext:
    """The memory file of a call. Implements `outputs.Memory`.

    Args:
        call: its inputs are written into the file.
        program: the executable that will run in it.

    Raises:
        OutOfMemory: the inputs do not fit.
        OSError: the machine is out of memory.
    """

    def __init__(self, call: Call, program: NativeProgram) -> None:
        self.layout = lay_out_context(call, program)
        self.lowest = LOWEST
        self.end = self.layout.size
        self._program = program
        self.file = os.memfd_create("dandelion-context", os.MFD_CLOEXEC)
        try:
            os.ftruncate(self.file, self.layout.size + launcher.REPORT_BYTES)
            self._write(call)
        except BaseException:
            self.close()
            raise

    def _write(self, call: Call) -> None:
        place, inputs, executable = self.layout, self.layout.inputs, self._program.executable
        for address, content in self._program.copies:
            _write_all(self.file, [content], address)
        _write_all(self.file, inputs.parts, place.inputs_at)
        heap = (align(place.inputs_at + inputs.size_bytes), place.guard)
        counts = (len(call.inputs), len(call.function.spec.outputs))
        os.pwrite(self.file, system_data(NATIVE, inputs, heap, *counts), executable.system_data)

    def rows(self) -> bytes:
        """Return the rows for a sandbox: map this file and the program's, and start."""
        place = self.layout
        shared = mmap.MAP_SHARED | _MAP_FIXED
        mapped = [
            (LOWEST, place.guard, LOWEST),
            (place.stack, place.size, place.stack),
            (launcher.REPORT, launcher.REPORT + launcher.REPORT_BYTES, place.size),
        ]
        calls = [
            launcher.mmap_row(start, end - start, _READ_WRITE, shared, _CONTEXT_FD, offset)
            for start, end, offset in mapped
        ]
        calls += [_program_row(shared_pages) for shared_pages in self._program.shared]
        entry = self._program.executable.entry
        return launcher.rows(*calls, then=(entry, place.size - _STACK_OFFSET))

    def report(self, size_bytes: int) -> bytes:
        """Read the report."""
        return os.pread(self.file, size_bytes, self.layout.size)

    def code(self, address: int, size_bytes: int) -> bytes:
        """Read instructions; fewer bytes at the end of the code."""
        for pages in self._program.shared:
            if pages.executable and pages.start <= address < pages.end:
                size = min(size_bytes, pages.end - address)
                return os.pread(self._program.file, size, pages.offset + address - pages.start)
        return b""

    def read(self, address: int, size_bytes: int) -> bytes:
        end = address + size_bytes
        for pages in self._program.shared:
            if address < pages.end and pages.start < end:
                target = bytearray(size_bytes)
                self.read_into(address, memoryview(target))
                return bytes(target)
        return os.pread(self.file, size_bytes, address)

    def read_into(self, address: int, target: memoryview) -> None:
        end = address + len(target)
        at = address
        for pages in self._program.shared:
            low, high = max(at, pages.start), min(end, pages.end)
            if low >= high:
                continue
            _read_all(self.file, target[at - address : low - address], at)
            offset = pages.offset + low - pages.start
            _read_all(self._program.file, target[low - address : high - address], offset)
            at = high
        _read_all(self.file, target[at - address :], at)

    def close(self) -> None:
        """Release the memory. May be called twice."""
        if self.file >= 0:
            os.close(self.file)
            self.file = -1


def _program_row(pages: Shared) -> tuple[int, ...]:
    protection = mmap.PROT_READ | (mmap.PROT_EXEC if pages.executable else 0)
    flags = mmap.MAP_PRIVATE | _MAP_FIXED
    size = pages.end - pages.start
    return launcher.mmap_row(pages.start, size, protection, flags, _PROGRAM_FD, pages.offset)


def _write_all(file: int, parts: list[Bytes], offset: int) -> None:
    for first in range(0, len(parts), _VECTOR_LIMIT):
        vector = parts[first : first + _VECTOR_LIMIT]
        total = sum(map(len, vector))
        if os.pwritev(file, vector, offset) != total:  # one call writes at most 2 GiB
            at = offset
            for part in vector:
                _write_one(file, part, at)
                at += len(part)
        offset += total


def _write_one(file: int, part: Bytes, offset: int) -> None:
    view = memoryview(part)
    while view:
        written = os.pwrite(file, view, offset)
        view = view[written:]
        offset += written


def _read_all(file: int, target: memoryview, offset: int) -> None:
    while target:
        count = os.preadv(file, [target], offset)
        assert count, "the file has its full size from the start"
        target = target[count:]
        offset += count
