"""Contents in documents: bytes, text, arrays.

In JSON, ``{"data": "..."}`` is base64 and ``{"text": "..."}`` or a bare string is UTF-8 text; in
MessagePack ``data`` is binary.
"""

from __future__ import annotations

from pathlib import Path
from typing import TypeAlias, TypeVar

import msgspec
import numpy as np

from dandelion.arrays import Array, Shape, checked_type
from dandelion.data import Bytes, Item
from dandelion.errors import InvalidInput
from dandelion.errors.misfits import named_type

_Binary: TypeAlias = bytes  # in the class below, ``bytes`` is the method
_Other = TypeVar("_Other")


class Content(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """Bytes in a document: exactly one of `text` (UTF-8) and `data` (binary, base64 in JSON)."""

    text: str | None = None
    data: _Binary | None = None

    def __post_init__(self) -> None:
        if (self.text is None) == (self.data is None):
            raise ValueError("give exactly one of 'text' and 'data'")

    def bytes(self) -> bytes:
        """Return the content as bytes."""
        return self.data if self.data is not None else (self.text or "").encode()


class ItemContent(Content, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """The content of an item; of an array with `dtype` and `shape`, see `dandelion.data.Item`."""

    dtype: str | None = None
    shape: Shape | None = None

    def item(self, name: str) -> Item:
        """Make the item.

        Raises:
            InvalidInput: the content is not of that type.
        """
        data = self.bytes()
        kind = checked_type(f"item '{name}'", self.dtype, self.shape, len(data))
        return Item(name, 0, data, *kind)


ContentLike: TypeAlias = Content | str
ItemContentLike: TypeAlias = ItemContent | str
StaticValue: TypeAlias = ContentLike | bytes | Array


def content(value: ContentLike | Bytes | bytearray) -> Content:
    """Wrap text or bytes as `Content`."""
    if isinstance(value, Content):
        return value
    return Content(text=value) if isinstance(value, str) else Content(data=bytes(value))


def item_content(value: StaticValue) -> ItemContent:
    """Wrap text, bytes or an array as `ItemContent`.

    Raises:
        InvalidInput: the elements of the array are neither numbers nor booleans.
    """
    if isinstance(value, ItemContent):
        return value
    if isinstance(value, np.ndarray | np.generic):
        item = Item.of("", value)
        return ItemContent(data=item.bytes(), dtype=item.dtype, shape=item.shape)
    made = content(value)
    return ItemContent(made.text, made.data)


def read_if_path(where: str, given: Path | _Other) -> _Binary | _Other:
    """Read the file of a path; return anything else as it is.

    Raises:
        InvalidInput: at `where`: the file cannot be read.
    """
    if not isinstance(given, Path):
        return given
    try:
        return given.read_bytes()
    except OSError as error:
        hint = "" if given.is_absolute() else f"write Path(__file__).parent / '{given}'"
        shown = f"{given} in {Path.cwd()}" if hint else str(given)
        raise InvalidInput(where, f"{shown}: {error.strerror}", hint) from None


def file_bytes(where: str, given: Path | Bytes) -> _Binary:
    """Return bytes, or those of the file of a path.

    Raises:
        InvalidInput: at `where`: it is neither, or the file cannot be read.
    """
    found: object = read_if_path(where, given)
    if isinstance(found, str):
        hint = f"give Path({found[:60]!r}), or the content as bytes"
        raise InvalidInput(where, "a text could be a path or a content", hint)
    if not isinstance(found, _Binary | bytearray | memoryview):
        message = f"{named_type(found)} is not the content of a file"
        raise InvalidInput(where, message, "give bytes, or the Path of a file")
    return _Binary(found)
