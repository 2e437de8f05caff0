"""The kernels of a cubin and the sizes of their parameters.

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

from .elf_sections import SYMBOLS, Names, Section

_SYMBOL = struct.Struct("<IBBHQQ")
_FUNCTION, _ENTRY = 2, 0x10
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


def _entries(sections: Sequence[Section]) -> Iterator[str]:
    table = next((s for s in sections if s.kind == SYMBOLS), None)
    if table is None:
        return
    strings = sections[table.link].data
    names = Names(strings, 2 * len(strings))  # some symbols share a name
    whole = len(table.data) // _SYMBOL.size * _SYMBOL.size
    for name, kind, other, section, _, _ in _SYMBOL.iter_unpack(table.data[:whole]):
        if kind & 0xF == _FUNCTION and other & _ENTRY and section:
            yield names.at(name).decode()


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
