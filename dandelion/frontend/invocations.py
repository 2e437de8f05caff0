"""``POST /v1/invoke/{name}``: the one route that has to be fast.

What depends on the function alone (its declared sets) is kept in a `_Shape` until the catalogue
changes. A client that leaves cancels its invocation, see `Departure`.
"""

from __future__ import annotations

import asyncio
import math
import re
from dataclasses import dataclass

from dandelion.data import Bytes, Sets, SetSpec
from dandelion.errors import InvalidInput
from dandelion.frontend.asgi import Departure, Exchange, Reply, clipped, did_you_mean
from dandelion.frontend.body import Body
from dandelion.frontend.codecs import (
    SetMap,
    check_names,
    decode_json,
    decode_msgpack,
    decode_raw,
    encode_json,
    encode_msgpack,
)
from dandelion.frontend.multipart import decode_multipart
from dandelion.frontend.negotiation import Codec, reader, writers
from dandelion.frontend.problem import NotAcceptable
from dandelion.node import Node, Signature

PREFIX = "/v1/invoke/"
JSON_LIMIT_BYTES = 64 * 1024 * 1024
"""JSON grows by more than ten times when it is parsed; large data goes as MessagePack."""

QUERY = ("version", "deadline_s", "set")
_TRACEPARENT = re.compile(rb"[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}")
_MEDIA_TYPES = {codec: codec.value.encode() for codec in Codec}


@dataclass(frozen=True, slots=True)
class _Shape:
    """What callers give to a function: its sets without those that are fixed."""

    signature: Signature
    specs: dict[str, SetSpec]


class Invocations:
    """Carries out invocations that come over HTTP."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._shapes: dict[tuple[str, int | None], _Shape] = {}
        self._generation = node.catalog.generation
        self._loop: asyncio.AbstractEventLoop | None = None  # asking for it costs a system call
        self._limit_bytes = node.settings.body_limit_bytes

    async def __call__(self, exchange: Exchange) -> Reply:
        """Read the sets, run the function or composition, write its sets."""
        name = exchange.path[len(PREFIX) :]
        headers = exchange.headers
        codec = reader(headers.get(b"content-type", b""))
        answer = writers(headers.get(b"accept", b""), codec)
        exchange.expect_query(QUERY)
        version = exchange.version
        deadline_s = _deadline_s(exchange)
        shape = self._shape(name, version)
        sets = await self._read(exchange, codec, shape)
        check_names(sets, shape.specs, shape.signature.static)
        loop = self._loop = self._loop or asyncio.get_running_loop()
        departure = Departure(exchange.receive, loop)
        exchange.departure = departure
        try:
            outcome = await self._node.invoke_sets_async(
                name, sets, version=version, deadline_s=deadline_s
            )
        finally:
            departure.stop_watching()
        del sets  # the inputs' memory may go before the reply is written
        exchange.invocation = outcome.id
        return _reply(exchange, outcome.id, outcome.sets, answer)

    def _shape(self, name: str, version: int | None) -> _Shape:
        generation = self._node.catalog.generation
        if generation != self._generation:
            self._shapes.clear()
            self._generation = generation
        shape = self._shapes.get((name, version))
        if shape is None:
            signature = self._node.signature(name, version)
            shape = _Shape(signature, {s.name: s for s in signature.inputs})
            self._shapes[name, version] = shape
        return shape

    async def _read(self, exchange: Exchange, codec: Codec, shape: _Shape) -> SetMap:
        limit = self._limit_bytes
        if codec is Codec.JSON:
            limit = min(limit, JSON_LIMIT_BYTES)
        body = Body(exchange, self._node.acquire, limit)
        if codec is Codec.MULTIPART:
            content_type = exchange.header(b"content-type")
            return await decode_multipart(body, content_type, shape.specs)
        if codec is Codec.RAW:
            name = _raw_set(exchange, shape)
            return decode_raw(await body.read(), name, shape.specs)
        data = await body.read()
        decode = decode_json if codec is Codec.JSON else decode_msgpack
        return decode(data, shape.specs)


def _deadline_s(exchange: Exchange) -> float | None:
    where, text = "header.dandelion-deadline", exchange.headers.get(b"dandelion-deadline")
    value = text.decode("latin-1") if text is not None else None
    if exchange.raw_query and "deadline_s" in exchange.query:
        where, value = "query.deadline_s", exchange.query["deadline_s"]
    if value is None:
        return None
    try:
        seconds = float(value)
    except ValueError:
        seconds = math.nan
    if not 0 < seconds < math.inf:
        raise InvalidInput(where, f"'{clipped(value)}' is not a positive number of seconds")
    return seconds


def _raw_set(exchange: Exchange, shape: _Shape) -> str:
    specs = shape.specs
    name = exchange.query.get("set")
    if name is None:
        if len(specs) == 1:
            return next(iter(specs))
        names = ", ".join(specs) or "none"
        message = f"raw bytes go to one input set; '{shape.signature.name}' has {len(specs)}"
        raise InvalidInput("body", message, f"name it by ?set=, or send JSON; sets are: {names}")
    if name not in specs:
        hint = did_you_mean(name, specs)
        raise InvalidInput("query.set", f"there is no input set '{clipped(name)}'", hint)
    return name


def _reply(exchange: Exchange, id_: str, sets: Sets, answer: tuple[Codec, ...]) -> Reply:
    headers = [(b"dandelion-invocation", id_.encode())]
    trace = exchange.headers.get(b"traceparent")
    if trace is not None and _TRACEPARENT.fullmatch(trace):
        headers.append((b"traceparent", trace))
    for codec in answer:
        chunks = _encode(codec, id_, sets)
        if chunks is not None:
            return Reply(chunks, _MEDIA_TYPES[codec], 200, headers)
    count = sum(len(s.items) for s in sets.values() if s is not None)
    message = f"the result has {count} items, raw bytes are for exactly one"
    raise NotAcceptable(Codec.RAW.value, message)


def _encode(codec: Codec, id_: str, sets: Sets) -> list[Bytes] | None:
    if codec is Codec.JSON:
        return encode_json(id_, sets)
    if codec is Codec.MSGPACK:
        return encode_msgpack(id_, sets)
    items = [item for s in sets.values() if s is not None for item in s.items]
    return [items[0].data] if len(items) == 1 else None
