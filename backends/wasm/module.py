"""Checks of a WebAssembly module before it is compiled.

A function is a core module with no imports and no start function that exports

- ``memory``: its only memory, 32-bit and not shared,
- ``run``: a function without parameters and results,
- ``__dandelion_system_data``: an immutable global of type i32, the address of its system data
  (see `..native.structures`), as linkers export the address of a variable.

This reader checks that, and the framing of the file. The compiler validates the code.

Source: WebAssembly core specification, binary format.
"""

from __future__ import annotations

from dataclasses import dataclass

from dandelion.data import Bytes
from dandelion.errors import Problem

from ..native.structures import WASM

PAGE = 65536
MEMORY, ENTRY, SYSTEM_DATA = "memory", "run", "__dandelion_system_data"
FILE_LIMIT_BYTES = 16 * 1024 * 1024

_TYPES, _IMPORTS, _FUNCTIONS, _MEMORIES, _GLOBALS, _EXPORTS, _START = 1, 2, 3, 5, 6, 7, 8
_LAST_SECTION = 13
_CUSTOM = 0
_KINDS = {0: "function", 1: "table", 2: "memory", 3: "global", 4: "tag"}
_I32 = 0x7F
_I32_CONST, _END = 0x41, 0x0B
_COUNT_LIMIT = 1_000_000
_VALUE_TYPES = frozenset((0x7F, 0x7E, 0x7D, 0x7C, 0x7B, 0x70, 0x6F))


@dataclass(frozen=True, slots=True)
class WasmModule:
    """The checked content of a file.

    Attributes:
        system_data: address of the system data.
        memory_bytes: size of the memory at the start.
    """

    system_data: int
    memory_bytes: int


class _Malformed(Exception):
    """The file does not follow the format."""


class _Bytes:
    """Reads numbers and names in order, never beyond the end."""

    def __init__(self, data: bytes, at: int, end: int) -> None:
        self.data = data
        self.at = at
        self.end = end

    def byte(self) -> int:
        if self.at >= self.end:
            raise _Malformed(f"it ends too early, at offset {self.at:#x}")
        self.at += 1
        return self.data[self.at - 1]

    def number(self, bits: int = 32) -> int:
        """Read an unsigned LEB128."""
        value = 0
        for shift in range(0, bits, 7):
            byte = self.byte()
            value |= (byte & 0x7F) << shift
            if not byte & 0x80:
                if value >> bits:
                    break
                return value
        raise _Malformed(f"a number is too long, at offset {self.at:#x}")

    def signed(self) -> int:
        """Read a signed LEB128 of 32 bits."""
        value = 0
        for shift in range(0, 35, 7):
            byte = self.byte()
            value |= (byte & 0x7F) << shift
            if not byte & 0x80:
                if byte & 0x40:
                    value -= 1 << (shift + 7)
                return value
        raise _Malformed(f"a number is too long, at offset {self.at:#x}")

    def count(self) -> int:
        number = self.number()
        if number > _COUNT_LIMIT:
            raise _Malformed(f"a count of {number} is too large, at offset {self.at:#x}")
        return number

    def part(self, size: int) -> _Bytes:
        """Return a reader of the next bytes."""
        if size > self.end - self.at:
            raise _Malformed(f"it ends too early, at offset {self.at:#x}")
        start = self.at
        self.at += size
        return _Bytes(self.data, start, self.at)

    def name(self) -> str:
        part = self.part(self.number())
        try:
            return self.data[part.at : part.end].decode()
        except UnicodeDecodeError:
            raise _Malformed(f"a name is not valid UTF-8, at offset {part.at:#x}") from None

    def done(self) -> bool:
        return self.at >= self.end


def read(data: Bytes, limit_bytes: int) -> tuple[WasmModule | None, list[Problem]]:
    """Read a module.

    Args:
        data: the file.
        limit_bytes: memory that its instances may have.

    Returns:
        Its checked content, or None and at least one problem.
    """
    reader = _Reader(bytes(data), limit_bytes)
    try:
        reader.sections()
        module = reader.module()
    except _Malformed as error:
        reader.refuse("malformed", str(error))
        module = None
    return (None if reader.problems else module), reader.problems


class _Reader:
    def __init__(self, data: bytes, limit_bytes: int) -> None:
        self.problems: list[Problem] = []
        self._data = data
        self._limit_bytes = limit_bytes
        self._plain: list[bool] = []  # types that have neither parameters nor results
        self._functions: list[int] = []
        self._memories: list[tuple[int, int]] = []
        self._globals: list[int | None] = []  # values of constants of type i32
        self._exports: dict[str, tuple[int, int]] = {}

    def refuse(self, code: str, message: str, expected: str = "", found: str = "") -> None:
        self.problems.append(Problem(code, message, "wasm", expected=expected, found=found))

    def sections(self) -> None:
        data = self._data
        if len(data) > FILE_LIMIT_BYTES:
            raise _Malformed(f"its {len(data)} bytes are more than {FILE_LIMIT_BYTES}")
        if data[:8] != b"\0asm\x01\0\0\0":
            raise _Malformed("this is not a core module of version 1")
        file = _Bytes(data, 8, len(data))
        readers = {
            _TYPES: self._read_types,
            _IMPORTS: self._read_imports,
            _FUNCTIONS: self._read_functions,
            _MEMORIES: self._read_memories,
            _GLOBALS: self._read_globals,
            _EXPORTS: self._read_exports,
        }
        seen: set[int] = set()
        while not file.done():
            kind = file.byte()
            section = file.part(file.number())
            if kind > _LAST_SECTION or (kind != _CUSTOM and kind in seen):
                raise _Malformed(f"an unknown or second section {kind}, at {section.at:#x}")
            seen.add(kind)
            if kind in readers:
                readers[kind](section)
        if _START in seen:
            self.refuse("start", "it has a start function", "a module that starts in 'run'")

    def _read_types(self, section: _Bytes) -> None:
        """Read types up to the first that is not a plain function type."""
        for _ in range(section.count()):
            if section.byte() != 0x60:
                return
            counts = []
            for _ in range(2):
                counts.append(section.count())
                for _ in range(counts[-1]):
                    if section.byte() not in _VALUE_TYPES:
                        return
            self._plain.append(counts == [0, 0])

    def _read_imports(self, section: _Bytes) -> None:
        for _ in range(section.count()):
            name = f"{section.name()}.{section.name()}"
            self.refuse("import", f"it imports '{name[:200]}'", "a module without imports")
            return

    def _read_functions(self, section: _Bytes) -> None:
        self._functions = [section.number() for _ in range(section.count())]

    def _read_memories(self, section: _Bytes) -> None:
        for _ in range(section.count()):
            flags = section.byte()
            pages = section.number(64)
            if flags & 1:
                section.number(64)
            self._memories.append((flags, pages))

    def _read_globals(self, section: _Bytes) -> None:
        """Read constants of type i32; stop at anything else, whose encoding is unknown here."""
        for _ in range(section.count()):
            kind, mutable = section.byte(), section.byte()
            if kind != _I32 or section.byte() != _I32_CONST:
                return
            value = section.signed() & 0xFFFFFFFF
            if section.byte() != _END:
                return
            self._globals.append(None if mutable else value)

    def _read_exports(self, section: _Bytes) -> None:
        for _ in range(section.count()):
            name = section.name()
            self._exports[name] = (section.byte(), section.number())

    def module(self) -> WasmModule:
        memory = self._memory()
        self._entry()
        return WasmModule(self._system_data(memory), memory)

    def _exported(self, name: str, kind: str) -> int | None:
        found = self._exports.get(name)
        if found is None or _KINDS.get(found[0]) != kind:
            what = "nothing" if found is None else f"a {_KINDS.get(found[0], 'thing')}"
            self.refuse("export", f"it does not export its {kind} '{name}'", found=what)
            return None
        return found[1]

    def _memory(self) -> int:
        index = self._exported(MEMORY, "memory")
        if index is None:
            return 0
        if len(self._memories) != 1 or index != 0 or self._memories[0][0] & ~1:
            self.refuse("memory", "it has several memories, or a 64-bit or shared one")
            return 0
        size = self._memories[0][1] * PAGE
        if size > self._limit_bytes:
            self.refuse("memory", "its memory is larger than its limit",
                        f"at most {self._limit_bytes} bytes", f"{size}")  # fmt: skip
        return size

    def _entry(self) -> None:
        index = self._exported(ENTRY, "function")
        if index is None:
            return
        kind = self._functions[index] if index < len(self._functions) else -1
        if not 0 <= kind < len(self._plain) or not self._plain[kind]:
            self.refuse("entry", f"'{ENTRY}' has parameters or results")

    def _system_data(self, memory_bytes: int) -> int:
        index = self._exported(SYSTEM_DATA, "global")
        if index is None:
            return 0
        address = self._globals[index] if index < len(self._globals) else None
        if address is None:
            self.refuse("system-data", f"'{SYSTEM_DATA}' is not a constant of type i32")
            return 0
        if address % 4 or address + WASM.system.size > memory_bytes:
            self.refuse("system-data", f"'{SYSTEM_DATA}' is not in its memory",
                        f"a multiple of 4 below {memory_bytes:#x}", f"{address:#x}")  # fmt: skip
        return address
