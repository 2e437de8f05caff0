"""Previews of values in notebooks: arrays, JSON, texts, pictures, bytes. They read little data."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Protocol, TypeAlias

import msgspec
import numpy as np

from dandelion.arrays import Shape
from dandelion.markup import (
    ROWS_LIMIT,
    Element,
    clipped,
    code,
    dim,
    element,
    heading,
    table,
)
from dandelion.sizes import size_text

Bytes: TypeAlias = bytes | bytearray | memoryview

TEXT_BYTES = 2000
PICTURE_BYTES = 1 << 20
_HEX_BYTES = 32
_PICTURES = (
    (b"\x89PNG\r\n\x1a\n", "image/png"),
    (b"\xff\xd8\xff", "image/jpeg"),
    (b"GIF87a", "image/gif"),
    (b"GIF89a", "image/gif"),
)
"""Formats without scripts, by their first bytes."""


class ShownItem(Protocol):
    """What of an item is shown; see `dandelion.data.Item`."""

    @property
    def name(self) -> str: ...
    @property
    def key(self) -> int: ...
    @property
    def data(self) -> Bytes: ...
    @property
    def size_bytes(self) -> int: ...
    @property
    def dtype(self) -> str | None: ...
    @property
    def shape(self) -> Shape | None: ...


def set_preview(name: str, items: Sequence[ShownItem], form: str) -> Element:
    """Show a set as a table of its items."""
    rows = [
        (item.name, item.key, size_text(item.size_bytes),
         preview(item.data, item.dtype, item.shape, form))
        for item in items[:ROWS_LIMIT]
    ]  # fmt: skip
    counted = "1 item" if len(items) == 1 else f"{len(items)} items"
    size_bytes = sum(item.size_bytes for item in items)
    shown = table(("item", "key", "size", "data"), rows, len(items))
    return element("div", heading("set", name, counted, size_text(size_bytes)), shown)


def preview(data: Bytes, dtype: str | None, shape: Shape | None, form: str = "") -> Element:
    """Show an item's data.

    Args:
        data: its bytes.
        dtype, shape: of an array.
        form: what its set's declaration says, see `dandelion.data.SetSpec`.
    """
    data = memoryview(data).cast("B")
    size_bytes = len(data)
    if dtype is not None:
        return _array(data, dtype, shape)
    if size_bytes == 0:
        return dim("empty")
    head = bytes(data[:TEXT_BYTES])
    for first, kind in _PICTURES:
        if head.startswith(first) and size_bytes <= PICTURE_BYTES:
            return _picture(bytes(data), kind)
    try:
        text = head.decode()
    except UnicodeDecodeError as error:
        if size_bytes <= TEXT_BYTES or error.start < TEXT_BYTES - 4:  # not just cut within one
            more = " ..." if size_bytes > _HEX_BYTES else ""
            return code(f"{head[:_HEX_BYTES].hex(' ')}{more}")
        text = head[: error.start].decode()
    if form.startswith("json") and size_bytes <= TEXT_BYTES:
        text = _indented(head, text)
    return code(clipped(text))


def _indented(data: bytes, text: str) -> str:
    try:
        return msgspec.json.format(data, indent=1).decode()
    except (msgspec.DecodeError, RecursionError):
        return text


def _picture(data: bytes, kind: str) -> Element:
    source = f"data:{kind};base64,{base64.b64encode(data).decode()}"
    style = "max-width:320px;max-height:320px;display:block"
    return element("img", src=source, alt=f"{kind}, {size_text(len(data))}", style=style)


def _array(data: Bytes, dtype: str, shape: Shape | None) -> Element:
    try:
        flat = np.frombuffer(data, dtype=dtype)
        array = flat if shape is None else flat.reshape(shape)
    except (TypeError, ValueError):
        return dim(f"{size_text(len(data))} that are not {dtype}")
    kind = f"{array.dtype}{list(array.shape)}"
    text = np.array2string(
        array, max_line_width=90, precision=4, separator=", ", threshold=20, edgeitems=3
    )
    return element("div", dim(kind), element("br"), code(clipped(text)))
