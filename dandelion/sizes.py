"""Numbers of bytes as text: ``512MiB`` of a user, ``1.5 MiB`` for one."""

from __future__ import annotations

import re

from dandelion.errors import InvalidInput

_UNITS = {"": 1, "B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}
_SIZE = re.compile(r"(\d{1,20})\s*([A-Za-z]*)", re.ASCII)


def parse_size(where: str, text: str) -> int:
    """Return the bytes of a size that a user wrote, such as ``1048576``, ``512MiB`` or ``2GiB``.

    Raises:
        InvalidInput: at `where`: it is not one.
    """
    match = _SIZE.fullmatch(text.strip())
    if match is None or match[2] not in _UNITS:
        raise InvalidInput(where, f"'{text}' is not a size", "such as 1048576, 512MiB or 2GiB")
    return int(match[1]) * _UNITS[match[2]]


def exact_size_text(size_bytes: int) -> str:
    """Write a positive number of bytes as `parse_size` reads it, in the largest unit that fits."""
    unit = max((u for u in _UNITS.items() if size_bytes % u[1] == 0), key=lambda u: u[1])
    return f"{size_bytes // unit[1]}{unit[0]}"


def size_text(size_bytes: int) -> str:
    """Write a number of bytes, rounded, for example ``1.5 MiB``."""
    size, units = float(size_bytes), ["bytes", "KiB", "MiB", "GiB", "TiB"]
    while size >= 1024 and len(units) > 1:
        size /= 1024
        units.pop(0)
    return f"{size:.0f} {units[0]}" if units[0] == "bytes" else f"{size:.1f} {units[0]}"
