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
from collections.abc import Collection, Iterator, Sequence
from typing import NamedTuple

from .elf_sections import SYMBOLS, Names, Section

_SYMBOL = struct.Struct("<IBBHQQ")
_OBJECT, _FUNCTION, _SECTION, _ENTRY = 1, 2, 3, 0x10
_RESERVED = 0xFF00  # the first number that is not that of a section
_MOST_VARIABLES = 1024
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


def variables(sections: Sequence[Section], places: Collection[int]) -> dict[str, int]:
    """Give the sizes in bytes of the variables in some sections, by symbol.

    Args:
        sections: of the file.
        places: indices of the sections.

    Raises:
        struct.error, ValueError, LookupError: the file is broken, or there is more in these
            sections than variables whose symbols differ from all others.
    """
    if sum(section.kind == SYMBOLS for section in sections) != 1:
        raise ValueError("not one table of symbols")
    names = _names(sections)
    mine: list[_Symbol] = []
    for symbol in _symbols(sections):
        if symbol.section >= _RESERVED and symbol.kind == _OBJECT:
            raise ValueError("a variable outside of all sections")
        if symbol.section in places and symbol.kind != _SECTION:
            mine.append(symbol)
            if len(mine) > _MOST_VARIABLES:
                raise ValueError("too many variables")
    found: dict[str, int] = {}
    ends = dict.fromkeys(places, 0)
    for symbol in sorted(mine, key=lambda one: (one.section, one.offset)):
        name = names.at(symbol.name_at).decode()
        gap_bytes = symbol.offset - ends[symbol.section]
        if symbol.kind != _OBJECT or name in found or not 0 <= gap_bytes < _GAP_BYTES:
            raise ValueError(f"{name!r} is not a variable of its own")
        ends[symbol.section] = symbol.offset + symbol.size_bytes
        found[name] = symbol.size_bytes
    for place, end in ends.items():
        if not 0 <= sections[place].size_bytes - end < _GAP_BYTES:
            raise ValueError("not all memory belongs to variables")
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
    strings = memoryview(b"") if table is None else sections[table.link].data
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
