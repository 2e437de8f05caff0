"""Requests as multipart/form-data, as sent by a form or ``curl -F``. Each part is an item.

The name of a part is the name of the set. Its file name is the name of the item (``"0"``, ``"1"``,
... in the set if there is none). The header ``Dandelion-Key`` is the key. ``Dandelion-Dtype`` and
``Dandelion-Shape`` are the type of an array. Names are never used as paths.

Parts are received into one context of the arena. Only the framing is buffered.

Source: RFC 7578, Returning Values from Forms.
"""

from __future__ import annotations

import asyncio
import logging
import time

import msgspec
from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header

from dandelion.data import Bytes, Item
from dandelion.errors import InvalidInput, TooMany
from dandelion.frontend.asgi import clipped
from dandelion.frontend.body import Body
from dandelion.frontend.codecs import SetMap, Specs, header_type
from dandelion.set_values import checked

PIECE_BYTES = 16 * 1024
TURN_S = 0.002
_FEW_PARTS = 256
HEADER_LIMIT_BYTES = 4096

logging.getLogger("python_multipart").setLevel(
    logging.ERROR
)  # it logs a warning for each bad request


class _Part(msgspec.Struct, gc=False):
    headers: dict[str, str]
    start: int
    end: int = 0


class _Sink:
    """Memory for the parts: a context if the total size is known, else the heap."""

    def __init__(self, view: memoryview | None) -> None:
        self.size = 0
        self._view = view
        self._heap = bytearray()

    def write(self, data: bytes, start: int, end: int) -> None:
        piece = memoryview(data)[start:end]
        if self._view is None:
            self._heap += piece
        else:
            self._view[self.size : self.size + len(piece)] = piece
        self.size += len(piece)

    async def done(self, body: Body) -> memoryview:
        if self._view is not None:
            return self._view.toreadonly()
        if not self.size:
            return memoryview(b"")
        view = (await body.acquire(self.size)).view
        view[: self.size] = self._heap
        return view.toreadonly()

    def let_go(self) -> None:
        """Release the memory. This and the parser's callbacks refer to each other."""
        self._view = None
        self._heap = bytearray()


class _Parts:
    """Handles the parser's callbacks and records where the parts are."""

    def __init__(self, boundary: bytes, sink: _Sink, limit: int) -> None:
        self._limit = limit
        self.parts: list[_Part] = []
        self.complete = False
        self._sink = sink
        self._field = bytearray()
        self._value = bytearray()
        self._parser = MultipartParser(
            boundary,
            {
                "on_part_begin": self._begin,
                "on_part_data": sink.write,
                "on_part_end": self._end,
                "on_header_field": self._on_field,
                "on_header_value": self._on_value,
                "on_header_end": self._on_header,
                "on_end": self._complete,
            },
            max_header_size=HEADER_LIMIT_BYTES,
        )

    def feed(self, chunk: bytes) -> None:
        try:
            self._parser.write(chunk)
        except FormParserError as error:
            raise InvalidInput("body", f"not valid multipart/form-data: {error}") from None

    def _begin(self) -> None:
        if len(self.parts) >= self._limit:
            raise TooMany("body", "parts", len(self.parts) + 1, self._limit)
        self.parts.append(_Part({}, self._sink.size))

    def _end(self) -> None:
        self.parts[-1].end = self._sink.size

    def _on_field(self, data: bytes, start: int, end: int) -> None:
        self._field += data[start:end]

    def _on_value(self, data: bytes, start: int, end: int) -> None:
        self._value += data[start:end]

    def _on_header(self) -> None:
        name = self._field.decode("latin-1").lower()
        self.parts[-1].headers[name] = self._value.decode("latin-1")
        self._field.clear()
        self._value.clear()

    def _complete(self) -> None:
        self.complete = True


async def decode_multipart(body: Body, content_type: str, specs: Specs, parts_limit: int) -> SetMap:
    """Read a request of multipart/form-data.

    Declared sets without a part are absent.

    Raises:
        InvalidInput: the framing is broken, or a part has no name, a bad key, or does not fit.
        TooMany: there are more parts than the limit.
        TooLarge, ContextFull, Cancelled: as `Body.read`.
    """
    _, options = parse_options_header(content_type)
    boundary = options.get(b"boundary", b"")
    if not 0 < len(boundary) <= 70:
        raise InvalidInput("header.content-type", "multipart needs a boundary of 1 to 70 bytes")
    chunks = body.chunks()
    sink: _Sink | None = None
    try:
        async for chunk in chunks:
            if sink is None:  # only after the size was checked
                known = body.size_bytes
                sink = _Sink((await body.acquire(known)).view if known else None)
                parts = _Parts(boundary, sink, parts_limit)
            await _feed(parts, chunk)
        if sink is None or not parts.complete:
            raise InvalidInput("body", "this multipart body ends before its last boundary")
        view = await sink.done(body)
        if len(parts.parts) > _FEW_PARTS:
            return await asyncio.to_thread(_sets, parts.parts, view, specs)
        return _sets(parts.parts, view, specs)
    finally:
        if sink is not None:
            sink.let_go()


async def _feed(parts: _Parts, chunk: bytes) -> None:
    """Parse a chunk. Yield to the event loop, since many small parts take long."""
    end_s = time.monotonic() + TURN_S
    for start in range(0, len(chunk), PIECE_BYTES):
        parts.feed(chunk[start : start + PIECE_BYTES])
        if time.monotonic() > end_s:
            await asyncio.sleep(0)
            end_s = time.monotonic() + TURN_S


def _sets(parts: list[_Part], view: memoryview, specs: Specs) -> SetMap:
    items: dict[str, list[Item]] = {}
    for index, part in enumerate(parts):
        name, file_name = _names(index, part)
        found = items.setdefault(name, [])
        item_name = str(len(found)) if file_name is None else file_name
        data: Bytes = view[part.start : part.end]
        headers = part.headers
        dtype, shape = headers.get("dandelion-dtype"), headers.get("dandelion-shape")
        where = f"sets.{clipped(name)}"
        kind = header_type(where, dtype, shape, len(data), specs.get(name))
        found.append(Item(item_name, _key(name, part), data, *kind))
    sets: SetMap = dict.fromkeys(specs)
    for name, found in items.items():
        sets[name] = checked(name, found, specs.get(name))
    return sets


def _names(index: int, part: _Part) -> tuple[str, str | None]:
    where = f"body.parts[{index}]"
    disposition, options = parse_options_header(part.headers.get("content-disposition"))
    if disposition != b"form-data" or not options.get(b"name"):
        raise InvalidInput(where, 'it needs Content-Disposition: form-data; name="SET"')
    try:
        name = options[b"name"].decode()
        file_name = options[b"filename"].decode() if b"filename" in options else None
    except UnicodeDecodeError:
        raise InvalidInput(where, "its names are not valid UTF-8") from None
    return name, file_name


def _key(name: str, part: _Part) -> int:
    text = part.headers.get("dandelion-key", "0").strip()
    if not (text.isascii() and text.isdigit() and len(text) < 20):
        where = f"sets.{clipped(name)}.key"
        raise InvalidInput(where, f"'{clipped(text)}' is not an unsigned integer")
    return int(text)
