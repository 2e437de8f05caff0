"""Link one x86-64 object file into a shared library, in this process.

PoCL compiles a kernel to an object and starts the system's ``ld`` to make a library of it. A
process that runs code of users must not start programs, so `link` does that step. It knows what
LLVM writes for position-independent kernels and nothing more: one object, no thread-local
variables, no constructors. Names that the object leaves open are found by the loader, as with
``ld -shared``.

The library has three segments: headers, tables and constants (read only), code with a jump for each
function that the loader finds (executable), and variables with the table of addresses (writable).

Source: System V ABI (gABI, chapters 4 and 5), and its AMD64 supplement for relocations.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

PAGE_BYTES = 4096

_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_SECTION = struct.Struct("<IIQQQQIIQQ")
_SEGMENT = struct.Struct("<IIQQQQQQ")
_SYMBOL = struct.Struct("<IBBHQQ")
_RELOCATION = struct.Struct("<QQq")
_DYNAMIC = struct.Struct("<qQ")
_IDENT = b"\x7fELF\x02\x01\x01" + bytes(9)
_RELOCATABLE, _SHARED, _X86_64 = 1, 3, 62

_SYMTAB, _RELA, _NOBITS = 2, 4, 8
_WRITE, _ALLOC, _EXECUTE, _TLS = 1, 2, 4, 0x400
_UNDEFINED, _ABSOLUTE, _COMMON = 0, 0xFFF1, 0xFFF2
_LOCAL, _WEAK = 0, 2

_R_64, _R_PC32, _R_PLT32, _R_GOTPCREL, _R_PC64 = 1, 2, 4, 9, 24
_R_GLOB_DAT, _R_RELATIVE = 6, 8
_R_GOTPCRELX = (_R_GOTPCREL, 41, 42)

_PT_LOAD, _PT_DYNAMIC, _PT_STACK = 1, 2, 0x6474E551
_READABLE, _WRITABLE, _EXECUTABLE = 4, 2, 1
_DT_HASH, _DT_STRTAB, _DT_SYMTAB, _DT_RELA = 4, 5, 6, 7
_DT_RELASZ, _DT_RELAENT, _DT_STRSZ, _DT_SYMENT = 8, 9, 10, 11

_SEGMENTS = 5
_ALIGNMENT_LIMIT = 1 << 16
_JUMP_BYTES = 16


class LinkError(Exception):
    """An object that this linker does not know how to link; the text says why."""


@dataclass(slots=True)
class _Section:
    name_at: int
    kind: int
    flags: int
    data: bytes
    size: int
    link: int
    info: int
    alignment: int
    address: int = 0


@dataclass(slots=True)
class _Symbol:
    name: bytes
    binding: int
    kind: int
    hidden: bool
    section: int
    value: int
    size: int

    @property
    def defined(self) -> bool:
        return self.section != _UNDEFINED


@dataclass(slots=True)
class _Object:
    sections: list[_Section]
    symbols: list[_Symbol]

    def address_of(self, symbol: _Symbol) -> int:
        if symbol.section == _ABSOLUTE:
            return symbol.value
        return self.sections[symbol.section].address + symbol.value

    def relocations(self) -> Iterator[tuple[_Section, int, int, int, int]]:
        """Give target section, offset in it, type, index of the symbol, addend."""
        for section in self.sections:
            if section.kind != _RELA or not self.sections[section.info].flags & _ALLOC:
                continue
            for offset, info, addend in _RELOCATION.iter_unpack(section.data):
                yield self.sections[section.info], offset, info & 0xFFFFFFFF, info >> 32, addend


def link(data: bytes) -> bytes:
    """Make a shared library of an object file.

    Raises:
        LinkError: it is no such object, or needs what this linker does not do.
    """
    try:
        return _Linker(_read(data)).library()
    except (struct.error, IndexError, ValueError, OverflowError) as error:
        raise LinkError(f"not a well-formed object file: {error}") from None


def _read(data: bytes) -> _Object:
    ident, kind, machine, *_, at, _, _, _, _, size, count, _ = _HEADER.unpack_from(data)
    if ident[:7] != _IDENT[:7] or kind != _RELOCATABLE or machine != _X86_64:
        raise LinkError("not a relocatable object for x86-64")
    if size != _SECTION.size:
        raise LinkError(f"section headers of {size} bytes")
    sections = []
    for index in range(count):
        name, kind, flags, _, start, length, link_, info, alignment, _ = _SECTION.unpack_from(
            data, at + index * size
        )
        if flags & _ALLOC and flags & _TLS:
            raise LinkError("thread-local variables")
        body = b"" if kind == _NOBITS else data[start : start + length]
        if kind != _NOBITS and len(body) != length:
            raise LinkError("a section lies beyond the end of the file")
        if alignment > _ALIGNMENT_LIMIT:
            raise LinkError(f"a section aligned to {alignment} bytes")
        sections.append(_Section(name, kind, flags, body, length, link_, info, max(alignment, 1)))
    linked = _Object(sections, [])
    for section in sections:
        if section.kind == _SYMTAB:
            linked.symbols = list(_symbols(section.data, sections[section.link].data))
    _place_common(linked)
    return linked


def _symbols(table: bytes, names: bytes) -> Iterator[_Symbol]:
    for name, info, other, section, value, size in _SYMBOL.iter_unpack(table):
        text = names[name : names.index(b"\0", name)] if name else b""
        yield _Symbol(text, info >> 4, info & 15, bool(other & 3), section, value, size)


def _place_common(linked: _Object) -> None:
    """Give variables without a place one, in a section of their own."""
    end = 0
    for symbol in linked.symbols:
        if symbol.section == _COMMON:
            start = _aligned(end, max(symbol.value, 1))
            symbol.section, symbol.value = len(linked.sections), start
            end = start + symbol.size
    linked.sections.append(_Section(0, _NOBITS, _ALLOC | _WRITE, b"", end, 0, 0, 64))


@dataclass(slots=True)
class _Tables:
    """What the loader reads.

    Attributes:
        names: of `symbols`, one after the other.
        symbols: bytes of the dynamic symbol table, which begins with an empty one.
        index: in that table, by the index in the object.
        relocations: places to fill in when the library is loaded.
    """

    names: bytearray = field(default_factory=lambda: bytearray(1))
    order: list[int] = field(default_factory=list)
    index: dict[int, int] = field(default_factory=dict)
    relocations: list[tuple[int, int, int]] = field(default_factory=list)


class _Linker:
    """Places the sections of one object, then resolves what refers to them."""

    def __init__(self, linked: _Object) -> None:
        self._object = linked
        self._got: dict[int, int] = {}  # index of a symbol -> address of its address
        self._jumps: dict[int, int] = {}  # index of a function -> address of the jump to it
        self._tables = _Tables()

    def library(self) -> bytes:
        self._collect()
        constants, code, variables = (self._kept(_is_constant), self._kept(_is_code), [])
        variables = self._kept(_is_variable)
        filled = [s for s in variables if s.kind != _NOBITS]
        empty = [s for s in variables if s.kind == _NOBITS]
        tables_bytes = self._tables_bytes()
        ends = self._place(0, tables_bytes, constants)
        code_start = _aligned(ends, PAGE_BYTES)
        jumps_start = _aligned(self._place(code_start, 0, code), _JUMP_BYTES)
        for number, index in enumerate(self._jumps):
            self._jumps[index] = jumps_start + number * _JUMP_BYTES
        code_end = jumps_start + len(self._jumps) * _JUMP_BYTES
        data_start = _aligned(code_end, PAGE_BYTES)
        dynamic_bytes = 9 * _DYNAMIC.size
        got_start = data_start + dynamic_bytes
        for number, index in enumerate(self._got):
            self._got[index] = got_start + number * 8
        data_end = self._place(data_start, dynamic_bytes + len(self._got) * 8, filled)
        memory_end = self._place(data_end, 0, empty)
        image = bytearray(data_end)
        for section in (*constants, *code, *filled):
            image[section.address : section.address + section.size] = section.data
        self._resolve(image)
        self._write_jumps(image)
        starts = self._write_tables(image, tables_bytes)
        self._write_dynamic(image, data_start, starts)
        segments = (
            (_PT_LOAD, _READABLE, 0, ends, ends),
            (_PT_LOAD, _READABLE | _EXECUTABLE, code_start, code_end, code_end),
            (_PT_LOAD, _READABLE | _WRITABLE, data_start, data_end, memory_end),
            (_PT_DYNAMIC, _READABLE | _WRITABLE, data_start, got_start, got_start),
            (_PT_STACK, _READABLE | _WRITABLE, 0, 0, 0),
        )
        self._write_header(image, segments)
        return bytes(image)

    def _kept(self, wanted: object) -> list[_Section]:
        assert callable(wanted)
        return [s for s in self._object.sections if s.flags & _ALLOC and wanted(s)]

    def _place(self, start: int, before: int, sections: Iterable[_Section]) -> int:
        """Give sections their addresses behind `before` bytes; gives the end."""
        at = start + before
        for section in sections:
            section.address = at = _aligned(at, section.alignment)
            at += section.size
        return at

    # what is needed beside the sections

    def _collect(self) -> None:
        symbols = self._object.symbols
        for _, _, kind, index, _ in self._object.relocations():
            defined = symbols[index].defined
            if kind in _R_GOTPCRELX:
                self._got[index] = 0
            elif kind in (_R_PLT32, _R_PC32) and not defined:
                self._got[index] = self._jumps[index] = 0
            elif kind not in (_R_64, _R_PC32, _R_PLT32, _R_PC64) or (
                kind == _R_PC64 and not defined
            ):
                name = symbols[index].name.decode(errors="replace")
                raise LinkError(f"relocation {kind} to '{name}'")
            if not defined:
                self._name(index)
        for index, symbol in enumerate(symbols):
            if symbol.name and symbol.binding != _LOCAL and symbol.defined and not symbol.hidden:
                self._name(index)

    def _name(self, index: int) -> None:
        if index not in self._tables.index:
            self._tables.order.append(index)
            self._tables.index[index] = len(self._tables.order)
            self._tables.names += self._object.symbols[index].name + b"\0"

    def _dynamic_relocations(self) -> int:
        symbols = self._object.symbols
        in_data = sum(1 for _, _, kind, i, _ in self._object.relocations() if kind == _R_64)
        return in_data + sum(1 for i in self._got if symbols[i].section != _ABSOLUTE)

    def _tables_bytes(self) -> int:
        count = len(self._tables.order) + 1
        start = _HEADER.size + _SEGMENTS * _SEGMENT.size
        hashes = 4 * (2 + 1 + count)
        size = _aligned(start + hashes, 8) + count * _SYMBOL.size
        size += self._dynamic_relocations() * _RELOCATION.size
        return size + len(self._tables.names)

    # filling in

    def _resolve(self, image: bytearray) -> None:
        linked, tables = self._object, self._tables
        for index, at in self._got.items():
            symbol = linked.symbols[index]
            if not symbol.defined:
                tables.relocations.append((at, tables.index[index] << 32 | _R_GLOB_DAT, 0))
            elif symbol.section == _ABSOLUTE:
                struct.pack_into("<Q", image, at, symbol.value)
            else:
                tables.relocations.append((at, _R_RELATIVE, linked.address_of(symbol)))
        for target, offset, kind, index, addend in linked.relocations():
            symbol, at = linked.symbols[index], target.address + offset
            if kind == _R_64:
                if symbol.defined:
                    entry = (at, _R_RELATIVE, linked.address_of(symbol) + addend)
                else:
                    entry = (at, tables.index[index] << 32 | _R_64, addend)
                tables.relocations.append(entry)
                continue
            if kind in _R_GOTPCRELX:
                value = self._got[index]
            else:
                value = linked.address_of(symbol) if symbol.defined else self._jumps[index]
            struct.pack_into("<q" if kind == _R_PC64 else "<i", image, at, value + addend - at)

    def _write_jumps(self, image: bytearray) -> None:
        for index, at in self._jumps.items():
            image[at : at + 2] = b"\xff\x25"  # jmp *distance(%rip)
            struct.pack_into("<i", image, at + 2, self._got[index] - (at + 6))

    def _write_tables(self, image: bytearray, end: int) -> dict[int, int]:
        linked, tables = self._object, self._tables
        count = len(tables.order) + 1
        hash_at = _HEADER.size + _SEGMENTS * _SEGMENT.size
        chain = [0, *range(2, count), 0][:count]  # one bucket: all symbols, one after the other
        struct.pack_into(f"<{3 + count}I", image, hash_at, 1, count, 1 if count > 1 else 0, *chain)
        symbols_at = _aligned(hash_at + 4 * (3 + count), 8)
        name = 1
        for number, index in enumerate(tables.order, 1):
            symbol = linked.symbols[index]
            value = linked.address_of(symbol) if symbol.defined else 0
            section = 1 if symbol.defined else _UNDEFINED  # any that is not the undefined one
            info = symbol.binding << 4 | symbol.kind
            at = symbols_at + number * _SYMBOL.size
            _SYMBOL.pack_into(image, at, name, info, 0, section, value, symbol.size)
            name += len(symbol.name) + 1
        relocations_at = symbols_at + count * _SYMBOL.size
        for number, entry in enumerate(tables.relocations):
            _RELOCATION.pack_into(image, relocations_at + number * _RELOCATION.size, *entry)
        names_at = end - len(tables.names)
        image[names_at:end] = tables.names
        return {
            _DT_HASH: hash_at,
            _DT_STRTAB: names_at,
            _DT_SYMTAB: symbols_at,
            _DT_RELA: relocations_at,
            _DT_RELASZ: len(tables.relocations) * _RELOCATION.size,
            _DT_RELAENT: _RELOCATION.size,
            _DT_STRSZ: len(tables.names),
            _DT_SYMENT: _SYMBOL.size,
        }

    def _write_dynamic(self, image: bytearray, at: int, entries: dict[int, int]) -> None:
        for number, (tag, value) in enumerate((*entries.items(), (0, 0))):
            _DYNAMIC.pack_into(image, at + number * _DYNAMIC.size, tag, value)

    def _write_header(
        self, image: bytearray, segments: tuple[tuple[int, int, int, int, int], ...]
    ) -> None:
        size = _HEADER.size
        _HEADER.pack_into(
            image, 0, _IDENT, _SHARED, _X86_64, 1, 0, size, 0, 0, size, _SEGMENT.size,
            len(segments), _SECTION.size, 0, 0,
        )  # fmt: skip
        for number, (kind, flags, start, end, memory_end) in enumerate(segments):
            alignment = PAGE_BYTES if kind == _PT_LOAD else 16
            _SEGMENT.pack_into(
                image, size + number * _SEGMENT.size,
                kind, flags, start, start, start, end - start, memory_end - start, alignment,
            )  # fmt: skip


def _is_code(section: _Section) -> bool:
    return bool(section.flags & _EXECUTE)


def _is_variable(section: _Section) -> bool:
    return bool(section.flags & _WRITE) and not _is_code(section)


def _is_constant(section: _Section) -> bool:
    return not section.flags & (_WRITE | _EXECUTE)


def _aligned(value: int, alignment: int) -> int:
    return -(-value // alignment) * alignment
