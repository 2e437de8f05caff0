"""The kernels of a cubin, the sizes of their parameters, and its variables.

A kernel is a function whose symbol says that it is an entry. A section ``.nv.info.NAME`` lists what
the driver must know of a function, as records: format, attribute and two bytes, behind which one
format has as many bytes more as these two say. A parameter is a record with its number, its offset
and its size, in one of two layouts; all parameters together have the size that another record says.

Source: files that the compilers of CUDA 11.8, 12.3 and 13 and NVRTC 13.5 write, for sm_52 to
sm_120, beside the sources that they were made from.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from .elf_sections import SYMBOLS, Names, Section

_SYMBOL = struct.Struct("<IBBHQQ")
_OBJECT, _FUNCTION, _SECTION, _ENTRY = 1, 2, 3, 0x10
_TABLE, _STRINGS = b".symtab", b".strtab"
_RESERVED, _ABSOLUTE = 0xFF00, 0xFFF1  # numbers that are not those of sections, and one of them
_ALLOCATED = 2
_VARIABLES = b".nv.global"
_SECOND = b".nv.merc"
_NO_VARIABLES = (b".text", b".nv.constant", b".nv.shared", b".nv.local")
_MOST_SECTIONS, _MOST_VARIABLES = 16, 1024
_GAP_BYTES = 16  # less lies between two variables only to align the second
_INFO = b".nv.info."
_WITH_CONTENT = 4
_PARAMETER, _LONG_PARAMETER, _ALL_PARAMETERS = 0x17, 0x45, 0x19
_LAYOUT = struct.Struct("<IHHI")  # index, ordinal, offset; size in the upper 14 bits
_LONG_LAYOUT = struct.Struct("<IHHH")  # the same; size, and further bits


def kernels(sections: Sequence[Section]) -> dict[str, tuple[int, ...] | None]:
    """Give the sizes of each kernel's parameters in bytes; None where they are not told.

    Raises:
        struct.error, ValueError, LookupError: the file is broken.
    """
    info = {s.name: s.data for s in sections if s.name.startswith(_INFO)}
    return {name: _sizes(info.get(_INFO + name.encode())) for name in _entries(sections)}


class Variable(NamedTuple):
    """A variable of a module.

    Attributes:
        size_bytes: its size.
        held_bytes: the same with the unused bytes behind it, which kernels can write to as well.
    """

    size_bytes: int
    held_bytes: int


def places_of_variables(sections: Sequence[Section]) -> frozenset[int]:
    """Give the indices of the sections with variables: of all memory that is nothing else.

    Constants of printf and assert, and tables of mathematical functions, are such variables, too.
    From sm_100 on a file has its code twice, and so also the sections that belong to it.
    """
    sizes = {s.name: s.size_bytes for s in sections}
    found = []
    for i, section in enumerate(sections):
        name, size = section.name, section.size_bytes
        if name.startswith(_SECOND):
            name = name.removeprefix(_SECOND)
            size = 0 if sizes.get(name) == size else size
        if (
            size
            and (section.flags & _ALLOCATED or name.startswith(_VARIABLES))
            and not name.startswith(_NO_VARIABLES)
        ):
            found.append(i)
    return frozenset(found)


def variables(sections: Sequence[Section], places: frozenset[int]) -> dict[str, Variable]:
    """List the variables in some sections, by symbol.

    Args:
        sections: of the file.
        places: indices of those with variables.

    Raises:
        struct.error, ValueError, LookupError: the file is broken, or there is more in these
            sections than variables whose symbols differ from all others.
    """
    if len(places) > _MOST_SECTIONS:
        raise ValueError("too many sections with variables")
    for wanted in (_TABLE, _STRINGS):
        if sum(s.name == wanted for s in sections) != 1:
            raise ValueError(f"not one section {wanted!r}")
    if sum(s.kind == SYMBOLS for s in sections) != 1:
        raise ValueError("not one table of symbols")
    table = _table(sections)
    if table is None or (table.name, sections[table.link].name) != (_TABLE, _STRINGS):
        raise ValueError("the table of symbols has another name")
    names = _names(sections)
    mine: list[_Symbol] = []
    for symbol in _symbols(sections):
        if symbol.section >= _RESERVED and symbol.section != _ABSOLUTE:
            raise ValueError("a symbol outside of all sections")
        if symbol.section in places and symbol.kind != _SECTION:
            mine.append(symbol)
            if len(mine) > _MOST_VARIABLES:
                raise ValueError("too many variables")
    mine.sort(key=lambda one: (one.section, one.offset))
    found: dict[str, Variable] = {}
    for place in places:
        inside = [symbol for symbol in mine if symbol.section == place]
        starts = [symbol.offset for symbol in inside] + [sections[place].size_bytes]
        if starts[0]:
            raise ValueError("memory before the first variable")
        for symbol, end in zip(inside, starts[1:], strict=True):
            name, held = names.at(symbol.name_at).decode(), end - symbol.offset
            if symbol.kind != _OBJECT or name in found or not 0 < symbol.size_bytes <= held:
                raise ValueError(f"{name!r} is not a variable of its own")
            if held >= symbol.size_bytes + _GAP_BYTES:
                raise ValueError(f"memory of no variable behind {name!r}")
            found[name] = Variable(symbol.size_bytes, held)
    for symbol in _symbols(sections):
        if symbol.section not in places and names.at(symbol.name_at).decode() in found:
            raise ValueError("a variable shares its name")
    return found


class _Symbol(NamedTuple):
    name_at: int
    kind: int
    is_entry: bool
    section: int
    offset: int
    size_bytes: int


def _table(sections: Sequence[Section]) -> Section | None:
    return next((s for s in sections if s.kind == SYMBOLS), None)


def _names(sections: Sequence[Section]) -> Names:
    table = _table(sections)
    if table is None:
        return Names(memoryview(b""), 0)
    strings = sections[table.link].data
    return Names(strings, 2 * len(strings))  # some symbols share a name


def _symbols(sections: Sequence[Section]) -> Iterator[_Symbol]:
    table = _table(sections)
    if table is None:
        return
    whole = len(table.data) // _SYMBOL.size * _SYMBOL.size
    for name_at, kind, other, section, offset, size in _SYMBOL.iter_unpack(table.data[:whole]):
        yield _Symbol(name_at, kind & 0xF, bool(other & _ENTRY), section, offset, size)


def _entries(sections: Sequence[Section]) -> Iterator[str]:
    names = _names(sections)
    for symbol in _symbols(sections):
        if symbol.kind == _FUNCTION and symbol.is_entry and symbol.section:
            yield names.at(symbol.name_at).decode()


def _sizes(info: memoryview | None) -> tuple[int, ...] | None:
    if info is None:
        return None
    found: dict[int, tuple[int, int]] = {}
    total = 0
    for kind, number, content in _records(info):
        if kind == _ALL_PARAMETERS:
            total = number
        elif kind == _PARAMETER:
            _, ordinal, offset, packed = _LAYOUT.unpack_from(content)
            found[ordinal] = (offset, packed >> 18)
        elif kind == _LONG_PARAMETER:
            _, ordinal, offset, size = _LONG_LAYOUT.unpack_from(content)
            found[ordinal] = (offset, size)
    if sorted(found) != list(range(len(found))):
        return None
    if max((offset + size for offset, size in found.values()), default=0) != total:
        return None
    return tuple(found[ordinal][1] for ordinal in range(len(found)))


def _records(info: memoryview) -> Iterator[tuple[int, int, memoryview]]:
    at = 0
    while at + 4 <= len(info):
        layout, kind, number = struct.unpack_from("<BBH", info, at)
        at += 4
        content = info[:0]
        if layout == _WITH_CONTENT:
            content = info[at : at + number]
            at += number
        yield kind, number, content
