"""Sections and names of an ELF-64 file whose bytes are not trusted.

Sections of a file that a linker wrote do not overlap. A file made to waste time or memory has many
that do, each as large as the file. So all contents together, and all names together, may have as
many bytes as the file; beyond that the file is refused.

Source: ``elf(5)``.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

_HEADER = struct.Struct("<IIQQQQIIQQ")
_NO_CONTENT = 8
SYMBOLS, NOTE = 2, 7
"""Kinds of sections."""


@dataclass(frozen=True, slots=True)
class Section:
    """A section.

    Attributes:
        name: as the file spells it.
        kind, flags, link: of its header; `link` is the index of a section that belongs to it.
        data: what of its content is in the file.
        size_bytes: how long it is in memory.
    """

    name: bytes
    kind: int
    flags: int
    link: int
    data: memoryview
    size_bytes: int


class Names:
    """Reads names out of a table of strings, up to a number of bytes in all."""

    def __init__(self, table: memoryview, left_bytes: int) -> None:
        self._table = bytes(table)
        self._left_bytes = left_bytes

    def at(self, offset: int) -> bytes:
        """Give the name that begins at an offset.

        Raises:
            ValueError: it has no end, or they are too long all together.
        """
        name = self._table[offset : self._table.index(b"\0", offset, offset + self._left_bytes)]
        self._left_bytes -= len(name) + 1
        return name


def sections(data: bytes) -> list[Section]:
    """List the sections of a file.

    Raises:
        struct.error, ValueError, LookupError, OverflowError: it is broken.
    """
    view = memoryview(data)
    table = struct.unpack_from("<Q", data, 40)[0]
    entry, count, names_at = struct.unpack_from("<HHH", data, 58)
    if count and entry != _HEADER.size:
        raise ValueError(f"headers of sections have {entry} bytes")
    headers = [_HEADER.unpack_from(data, table + i * entry) for i in range(count)]
    if not headers:
        return []
    start, size = headers[names_at][4:6]
    names = Names(view[start : start + size], len(data))
    left_bytes = len(data)
    found = []
    for name, kind, flags, _, offset, size, link, *_ in headers:
        content = view[:0] if kind == _NO_CONTENT else view[offset : offset + size]
        left_bytes -= len(content)
        if left_bytes < 0:
            raise ValueError("sections overlap")
        found.append(Section(names.at(name), kind, flags, link, content, size))
    return found
