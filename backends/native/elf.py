"""A strict reader of static ELF executables: every value of the file is checked before its use.

It reads only the header, the PT_LOAD segments, and the address of one symbol. It refuses whatever
needs a loader: an interpreter, a dynamic section, relocations of a position-independent executable.
Every problem is listed, so that an author sees all of them at once.

Source: ``elf(5)``; the System V ABI, x86-64 supplement.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from dandelion.data import Bytes
from dandelion.errors import Problem

LOWEST = 0x10000
"""The first address that a function may use."""

SYSTEM_DATA = "__dandelion_system_data"
SYSTEM_DATA_BYTES = 72
PAGE = 4096

FILE_LIMIT_BYTES = 64 * 1024 * 1024
_SEGMENT_LIMIT = 32
_HEADER = struct.Struct("<4sBBBB8xHHIQQQIHHHHHH")
_PROGRAM_HEADER = struct.Struct("<IIQQQQQQ")
_SECTION_HEADER = struct.Struct("<IIQQQQIIQQ")
_SYMBOL = np.dtype(
    [
        ("name", "<u4"),
        ("info", "u1"),
        ("other", "u1"),
        ("section", "<u2"),
        ("value", "<u8"),
        ("size", "<u8"),
    ]
)
_EXECUTABLE, _SHARED = 2, 3
_X86_64 = 62
_LOAD, _DYNAMIC, _INTERPRETER = 1, 2, 3
_SYMBOL_TABLE = 2
_X, _W = 1, 2


@dataclass(frozen=True, slots=True)
class Segment:
    """A piece of the program in memory.

    Attributes:
        address: where it starts.
        size_bytes: its size in memory; zeros follow the file's bytes.
        offset, file_bytes: its bytes in the file.
        writable, executable: never both.
    """

    address: int
    size_bytes: int
    offset: int
    file_bytes: int
    writable: bool
    executable: bool

    @property
    def end(self) -> int:
        """First address after it."""
        return self.address + self.size_bytes


@dataclass(frozen=True, slots=True)
class Executable:
    """The checked content of a file.

    Attributes:
        segments: by address, not overlapping.
        entry: address of the first instruction.
        system_data: address of the structure that it shares with the host.
    """

    segments: tuple[Segment, ...]
    entry: int
    system_data: int

    @property
    def end(self) -> int:
        """First address after all segments, rounded up to a page."""
        return page_up(self.segments[-1].end)


def page_down(address: int) -> int:
    """Round down to a page."""
    return address & -PAGE


def page_up(address: int) -> int:
    """Round up to a page."""
    return -(-address // PAGE) * PAGE


def read(data: Bytes, size_bytes: int) -> tuple[Executable | None, list[Problem]]:
    """Read a file.

    Args:
        data: the file.
        size_bytes: end of the addresses that it may use.

    Returns:
        The executable, or None and at least one problem.
    """
    reader = _Reader(bytes(data), size_bytes)
    reader.read()
    if reader.problems:
        return None, reader.problems
    segments = tuple(sorted(reader.segments, key=lambda s: s.address))
    return Executable(segments, reader.entry, reader.system_data), []


class _Reader:
    def __init__(self, data: bytes, size_bytes: int) -> None:
        self.problems: list[Problem] = []
        self.segments: list[Segment] = []
        self.entry = 0
        self.system_data = 0
        self._data = data
        self._size_bytes = size_bytes

    def read(self) -> None:
        header = self._header()
        if header is None:
            return
        programs, sections = header
        self._programs(*programs)
        self._check_layout()
        self._symbol(*sections)

    def _refuse(
        self, code: str, message: str, where: str = "elf", expected: str = "", found: str = ""
    ) -> None:
        self.problems.append(Problem(code, message, where, expected=expected, found=found))

    def _inside(self, offset: int, size: int) -> bool:
        return offset + size <= len(self._data)

    def _header(self) -> tuple[tuple[int, int], tuple[int, int]] | None:
        data = self._data
        if len(data) > FILE_LIMIT_BYTES:
            self._refuse("too-large", "the file is too large",
                         expected=f"at most {FILE_LIMIT_BYTES}", found=f"{len(data)}")  # fmt: skip
            return None
        if len(data) < _HEADER.size or data[:4] != b"\x7fELF":
            self._refuse("no-elf", "this is not an ELF file", expected="a static x86-64 executable")
            return None
        fields = _HEADER.unpack_from(data)
        _, bits, order, version, _, kind, machine, _, entry, programs_at, sections_at = fields[:11]
        size, program_size, programs, section_size, sections, _ = fields[12:]
        if (bits, order, version, machine) != (2, 1, 1, _X86_64):
            self._refuse("wrong-machine", "it is built for another processor", "elf.header",
                         expected="64-bit little-endian x86-64",
                         found=f"class {bits}, order {order}, machine {machine}")  # fmt: skip
            return None
        if kind != _EXECUTABLE:
            found = "a position-independent or shared object" if kind == _SHARED else f"type {kind}"
            self._refuse("wrong-type", "it has no fixed addresses", "elf.header",
                         expected="link with -static -no-pie", found=found)  # fmt: skip
        for name, actual, wanted in (
            ("header", size, _HEADER.size),
            ("program header", program_size, _PROGRAM_HEADER.size),
        ):
            if actual != wanted:
                self._refuse("bad-size", f"its {name}s have an unknown size", "elf.header",
                             expected=f"{wanted}", found=f"{actual}")  # fmt: skip
        if sections and section_size != _SECTION_HEADER.size:
            self._refuse("bad-size", "its section headers have an unknown size", "elf.header")
            sections = 0
        self.entry = entry
        return (programs_at, programs), (sections_at, sections)

    def _programs(self, at: int, count: int) -> None:
        if not count or not self._inside(at, count * _PROGRAM_HEADER.size):
            self._refuse("bad-offset", "its program headers are not in the file", "elf.header")
            return
        for index in range(count):
            fields = _PROGRAM_HEADER.unpack_from(self._data, at + index * _PROGRAM_HEADER.size)
            self._program(f"elf.segments[{index}]", *fields)
        if not self.segments and not self.problems:
            self._refuse("no-segments", "it has no segments to load")
        if len(self.segments) > _SEGMENT_LIMIT:
            self._refuse("too-many", "it has too many segments", expected=f"{_SEGMENT_LIMIT}",
                         found=f"{len(self.segments)}")  # fmt: skip

    def _program(
        self, where: str, kind: int, flags: int, offset: int, address: int, _: int,
        file_bytes: int, memory_bytes: int, __: int,
    ) -> None:  # fmt: skip
        if kind in (_INTERPRETER, _DYNAMIC):
            self._refuse("not-static", "it needs a dynamic linker", where,
                         expected="link with -static -no-pie")  # fmt: skip
        if kind != _LOAD or not memory_bytes:
            return
        if file_bytes > memory_bytes:
            self._refuse("bad-size", "it has more bytes in the file than in memory", where)
        elif not self._inside(offset, file_bytes):
            self._refuse("bad-offset", "its bytes are not in the file", where)
        if address < LOWEST or address + memory_bytes > self._size_bytes:
            self._refuse("bad-address", "it is outside the context", where,
                         expected=f"{LOWEST:#x} to {self._size_bytes:#x}",
                         found=f"{address:#x} to {address + memory_bytes:#x}")  # fmt: skip
        elif flags & _W and flags & _X:
            self._refuse("writable-code", "it is both writable and executable", where)
        else:
            writable, executable = bool(flags & _W), bool(flags & _X)
            self.segments.append(
                Segment(address, memory_bytes, offset, file_bytes, writable, executable)
            )

    def _check_layout(self) -> None:
        ordered = sorted(self.segments, key=lambda s: s.address)
        for one, two in pairwise(ordered):
            if two.address < one.end:
                self._refuse("overlap", f"segments overlap at {two.address:#x}")
        constant = sum(s.size_bytes for s in ordered if not s.writable)
        if constant > FILE_LIMIT_BYTES:
            self._refuse("too-large", "its constant segments are too large in memory",
                         expected=f"at most {FILE_LIMIT_BYTES}", found=f"{constant}")  # fmt: skip
        for page in _mixed_pages(ordered):
            self._refuse("writable-code", f"the page at {page:#x} would be writable and executable")
        if not any(s.executable and s.address <= self.entry < s.end for s in ordered):
            self._refuse("bad-entry", f"its entry {self.entry:#x} is not in a code segment")

    def _symbol(self, at: int, count: int) -> None:
        if not count or not self._inside(at, count * _SECTION_HEADER.size):
            self._refuse("no-symbols", "it has no section headers", expected="do not strip it")
            return
        headers = [
            _SECTION_HEADER.unpack_from(self._data, at + index * _SECTION_HEADER.size)
            for index in range(count)
        ]
        table = next((h for h in headers if h[1] == _SYMBOL_TABLE), None)
        if table is None or table[6] >= count:
            self._refuse("no-symbols", "it has no symbol table", expected="do not strip it")
            return
        names = headers[table[6]]
        (symbols_at, symbols_size), (names_at, names_size) = table[4:6], names[4:6]
        if not self._inside(symbols_at, symbols_size) or not self._inside(names_at, names_size):
            self._refuse("bad-offset", "its symbol table is not in the file", "elf.sections")
            return
        symbols = np.frombuffer(self._data, _SYMBOL, symbols_size // _SYMBOL.itemsize, symbols_at)
        self._system_data(symbols, self._data[names_at : names_at + names_size])

    def _system_data(
        self, symbols: np.ndarray[tuple[int], np.dtype[np.void]], names: bytes
    ) -> None:
        offsets = list(_occurrences(names, SYSTEM_DATA.encode() + b"\0"))
        found = symbols[np.isin(symbols["name"], offsets) & (symbols["section"] != 0)]
        addresses = {int(value) for value in found["value"]}
        if len(addresses) != 1:
            what = "no symbol" if not addresses else "several symbols"
            self._refuse("system-data", f"there is {what} '{SYSTEM_DATA}'", "elf.symbols",
                         expected="one, in writable data")  # fmt: skip
            return
        self.system_data = address = addresses.pop()
        if any(0 < int(size) < SYSTEM_DATA_BYTES for size in found["size"]):
            self._refuse("system-data", f"'{SYSTEM_DATA}' is too small", "elf.symbols",
                         expected=f"{SYSTEM_DATA_BYTES} bytes")  # fmt: skip
        end = address + SYSTEM_DATA_BYTES
        if address % 8:
            self._refuse("system-data", f"'{SYSTEM_DATA}' is not aligned to 8", "elf.symbols")
        if not any(s.writable and s.address <= address and end <= s.end for s in self.segments):
            self._refuse("system-data", f"'{SYSTEM_DATA}' is not in writable data", "elf.symbols")


def _occurrences(text: bytes, word: bytes) -> Iterator[int]:
    """Yield the offsets of names equal to that word; linkers may store it as the end of another."""
    at = text.find(word)
    while at >= 0:
        yield at
        at = text.find(word, at + 1)


def _mixed_pages(segments: list[Segment]) -> Iterator[int]:
    """Yield pages shared by a writable and an executable segment; pages have one protection."""
    for code in segments:
        for data in segments:
            if code.executable and data.writable:
                start = max(page_down(code.address), page_down(data.address))
                if start < min(page_up(code.end), page_up(data.end)):
                    yield start
