"""The text of a request: a store, a path in it, and options.

A request item is text with lines that end with LF (CRLF will do)::

    pictures cats/1.png
    range: 0-1023

The first line has the name of a store, a space and the path. Spaces around the path are dropped.
The item that says where contents are written to may have ``{name}`` and ``{key}`` in its path; they
stand for name and key of the content.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from dandelion.data import Bytes, Item
from dandelion.errors import nearest

from .failures import ItemFailed, ItemRefused

CONTROL = re.compile(r"[\x00-\x1f\x7f]")
LIMIT_BYTES = 8 * 1024
_SHOWN = 80
_DIGITS = 12


@dataclass(frozen=True, slots=True)
class StoreRequest:
    """A request as it was read; nothing of it is checked but its form and the options' names."""

    store: str
    path: str
    options: Mapping[str, str] = field(default_factory=dict)

    def filled(self, item: Item) -> StoreRequest:
        """Return the request for one content. Spaces around its path are dropped, as in reading."""
        if "{" not in self.path:
            return self
        # One pass over the parts: a name that contains "{key}" is not filled again.
        parts = self.path.split("{name}")
        path = item.name.join(part.replace("{key}", str(item.key)) for part in parts)
        return replace(self, path=path.strip(" "))

    def number(self, option: str, default: int, most: int) -> int:
        """Return an option that is a number from 1 to `most`.

        Raises:
            ItemRefused: it is not.
        """
        text = self.options.get(option)
        if text is None:
            return min(default, most)
        is_number = text.isascii() and text.isdigit() and len(text) <= _DIGITS
        if not (is_number and 1 <= int(text) <= most):
            raise ItemRefused(f"option '{option}' is '{text[:_SHOWN]}', expected 1 to {most}")
        return int(text)


@dataclass(frozen=True, slots=True)
class ByteRange:
    """A part of an object, as in HTTP: bytes from first to last, both included.

    Attributes:
        first: None if the part is the last `last` bytes.
        last: None if the part ends with the object.
    """

    first: int | None
    last: int | None

    def within(self, size_bytes: int) -> tuple[int, int]:
        """Return start and end (not included) in an object.

        Raises:
            ItemFailed: it begins behind the end.
        """
        if self.first is None:
            return max(0, size_bytes - (self.last or 0)), size_bytes
        if self.first >= size_bytes:
            raise ItemFailed(f"the range begins at {self.first}, but there are {size_bytes} bytes")
        end = size_bytes if self.last is None else min(self.last + 1, size_bytes)
        return self.first, end


def read_request(data: Bytes, options: tuple[str, ...]) -> StoreRequest:
    """Read a request item.

    Args:
        data: of the item.
        options: names of the options that the function knows.

    Raises:
        ItemRefused: it does not have the form above; the text says what was expected.
    """
    if len(data) > LIMIT_BYTES:
        raise ItemRefused(f"the request has {len(data)} bytes, more than {LIMIT_BYTES}")
    try:
        text = bytes(data).decode()
    except UnicodeDecodeError:
        raise ItemRefused("the request is not UTF-8 text") from None
    first, *lines = text.split("\n")
    store, _, path = first.removesuffix("\r").strip(" ").partition(" ")
    if not store:
        raise ItemRefused("the first line is empty; expected STORE PATH")
    if not lines:  # as most are
        return StoreRequest(store, path.strip(" "))
    given: dict[str, str] = {}
    for line in lines:
        if line.strip(" \r"):
            name, value = _option(line, options)
            if name in given:
                raise ItemRefused(f"option '{name}' is given twice")
            given[name] = value
    return StoreRequest(store, path.strip(" "), given)


def read_range(text: str | None) -> ByteRange | None:
    """Read the option ``range``: ``0-99``, ``100-`` or ``-50`` (the last 50 bytes).

    Raises:
        ItemRefused: it is none of these.
    """
    if text is None:
        return None
    first, dash, last = text.partition("-")
    numbers = [part for part in (first, last) if part]
    valid = dash and numbers and all(p.isascii() and p.isdigit() and len(p) < 19 for p in numbers)
    made = ByteRange(int(first) if first else None, int(last) if last else None) if valid else None
    empty = made is not None and (
        made.last == 0 if made.first is None else made.last is not None and made.last < made.first
    )
    if made is None or empty:
        raise ItemRefused(f"range '{text[:_SHOWN]}' is not FIRST-LAST, FIRST- or -COUNT")
    return made


def _option(line: str, known: tuple[str, ...]) -> tuple[str, str]:
    name, colon, value = line.partition(":")
    name = name.strip().lower()
    if not colon:
        raise ItemRefused(f"line '{line[:_SHOWN]}' is not OPTION: VALUE")
    if name not in known:
        close = nearest(name, known)
        hint = f"did you mean '{close}'?" if close else f"it knows {', '.join(known) or 'none'}"
        raise ItemRefused(f"unknown option '{name[:_SHOWN]}'; {hint}")
    return name, value.strip(" \t\r")
