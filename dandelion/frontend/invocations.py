"""``POST /v1/invoke/{name}``: the one route that has to be fast.

What follows from the head of a request and the catalogue alone is worked out once and kept as a
`_Plan`, until the catalogue changes. A client that leaves cancels its invocation, see `Departure`.
"""

from __future__ import annotations

import asyncio
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias

from dandelion.data import Bytes, Sets, SetSpec
from dandelion.errors import InvalidInput
from dandelion.frontend.asgi import Exchange, Header, Reply, clipped, did_you_mean
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
from dandelion.frontend.conversion.converter import Converter
from dandelion.frontend.conversion.costs import (
    costs_json,
    costs_json_reply,
    costs_msgpack,
    many_items,
)
from dandelion.frontend.multipart import decode_multipart
from dandelion.frontend.negotiation import Codec, reader, writers
from dandelion.frontend.problem import NotAcceptable
from dandelion.frontend.service import Service

PREFIX = "/v1/invoke/"
JSON_LIMIT_BYTES = 64 * 1024 * 1024
"""JSON grows by more than ten times when it is parsed; large data goes as MessagePack."""

PLAN_LIMIT = 4096
QUERY = ("version", "deadline_s", "set")
_TRACEPARENT = re.compile(rb"[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}")
_MEDIA_TYPES = {codec: codec.value.encode() for codec in Codec}


_Head: TypeAlias = tuple[str, bytes, bytes, bytes]
"""Of a request: path, query, Content-Type, Accept."""


@dataclass(frozen=True, slots=True)
class _Plan:
    """What follows from the head of a request and the catalogue alone.

    Attributes:
        name, version: what is invoked.
        specs: the sets that callers give.
        static: the sets that they may not give.
        codec: how the body is written.
        answer: how the reply may be written, best first.
        raw_set: which set raw bytes go to.
        deadline_s: of the query.
        limit_bytes: of the body.
    """

    name: str
    version: int | None
    specs: dict[str, SetSpec]
    static: tuple[str, ...]
    codec: Codec
    answer: tuple[Codec, ...]
    raw_set: str
    deadline_s: float | None
    limit_bytes: int


class Invocations:
    """Carries out invocations that come over HTTP.

    Args:
        node: invokes.
        converter: reads and writes what takes too long for the event loop.
    """

    def __init__(self, node: Service, converter: Converter) -> None:
        self._node = node
        self._converter = converter
        self._plans: dict[_Head, _Plan] = {}
        self._generation = node.generation

    async def __call__(self, exchange: Exchange) -> Reply:
        """Read the sets, run the function or composition, write its sets."""
        plan = self._kept_plan(exchange) or await self._made_plan(exchange)
        deadline_s = plan.deadline_s
        if b"dandelion-deadline" in exchange.headers:
            given = exchange.header(b"dandelion-deadline")
            deadline_s = _deadline_s("header.dandelion-deadline", given)
        try:
            sets = await self._read(exchange, plan)
            if sets.keys() != plan.specs.keys():
                check_names(sets, plan.specs, plan.static)
            outcome = await self._node.invoke_sets_async(
                plan.name,
                sets,
                version=plan.version,
                deadline_s=deadline_s,
                on_wait=exchange.watch,
            )
            del sets  # the inputs' memory may go before the reply is written
            exchange.invocation = outcome.id
            codec = _writer(plan.answer, outcome.sets)
            if costs_json_reply(outcome.sets) if codec is Codec.JSON else many_items(outcome.sets):
                return await self._long_reply(exchange, outcome.id, outcome.sets, codec)
            return _reply(exchange, outcome.id, outcome.sets, codec)
        finally:
            exchange.stop_watching()

    def _kept_plan(self, exchange: Exchange) -> _Plan | None:
        generation = self._node.generation
        if generation != self._generation or len(self._plans) > PLAN_LIMIT:
            self._plans.clear()
            self._generation = generation
        return self._plans.get(_head(exchange))

    async def _made_plan(self, exchange: Exchange) -> _Plan:
        """Make a plan in a thread: a composition is compiled, or the nearest name is looked for."""
        generation = self._node.generation
        plan = await asyncio.to_thread(self._new_plan, exchange)
        if generation == self._generation:
            self._plans[_head(exchange)] = plan
        return plan

    def _new_plan(self, exchange: Exchange) -> _Plan:
        _, _, content_type, accept = _head(exchange)
        name = exchange.path[len(PREFIX) :]
        codec = reader(content_type)
        answer = writers(accept, codec)
        exchange.expect_query(QUERY)
        version = exchange.version
        deadline = exchange.query.get("deadline_s")
        signature = self._node.signature(name, version)
        specs = {s.name: s for s in signature.inputs}
        limit = self._node.settings.body_limit_bytes
        return _Plan(
            name,
            version,
            specs,
            signature.static,
            codec,
            answer,
            _raw_set(exchange, name, specs) if codec is Codec.RAW else "",
            None if deadline is None else _deadline_s("query.deadline_s", deadline),
            min(limit, JSON_LIMIT_BYTES) if codec is Codec.JSON else limit,
        )

    async def _read(self, exchange: Exchange, plan: _Plan) -> SetMap:
        body = Body(exchange, self._node.acquire_async, plan.limit_bytes)
        if plan.codec is Codec.MULTIPART:
            content_type = exchange.header(b"content-type")
            return await decode_multipart(
                body, content_type, plan.specs, self._node.settings.items_limit
            )
        data = await body.read()
        if plan.codec is Codec.RAW:
            given = exchange.headers
            dtype = exchange.header(b"dandelion-dtype") if b"dandelion-dtype" in given else None
            shape = exchange.header(b"dandelion-shape") if b"dandelion-shape" in given else None
            return decode_raw(data, plan.raw_set, plan.specs, dtype, shape)
        is_json = plan.codec is Codec.JSON
        limit = self._node.settings.items_limit
        if costs_json(data) if is_json else costs_msgpack(data):
            exchange.watch()
            return await self._converter.sets(data, plan.codec.value, plan.specs, limit)
        return (decode_json if is_json else decode_msgpack)(data, plan.specs, limit)

    async def _long_reply(self, exchange: Exchange, id_: str, sets: Sets, codec: Codec) -> Reply:
        """Write a reply that takes long: JSON in the converter, the rest in a thread."""
        if codec is not Codec.JSON:
            return await self._converter.elsewhere(partial(_reply, exchange, id_, sets, codec))
        chunk = await self._converter.json_reply(id_, sets)
        return Reply([chunk], _MEDIA_TYPES[codec], 200, _headers(exchange, id_))


def _head(exchange: Exchange) -> _Head:
    headers = exchange.headers
    content_type = headers.get(b"content-type", b"")
    return exchange.path, exchange.raw_query, content_type, headers.get(b"accept", b"")


def _deadline_s(where: str, text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0 < seconds < math.inf:
        raise InvalidInput(where, f"'{clipped(text)}' is not a positive number of seconds")
    return seconds


def _raw_set(exchange: Exchange, function: str, specs: Mapping[str, SetSpec]) -> str:
    name = exchange.query.get("set")
    if name is None:
        if len(specs) == 1:
            return next(iter(specs))
        names = ", ".join(specs) or "none"
        message = f"raw bytes go to one input set; '{function}' has {len(specs)}"
        raise InvalidInput("body", message, f"name it by ?set=, or send JSON; sets are: {names}")
    if name not in specs:
        hint = did_you_mean(name, specs)
        raise InvalidInput("query.set", f"there is no input set '{clipped(name)}'", hint)
    return name


def _writer(answer: tuple[Codec, ...], sets: Sets) -> Codec:
    """Choose the codec of a reply: the first that can express it."""
    codec = answer[0]
    if codec is not Codec.RAW:
        return codec
    count = sum([len(s.items) for s in sets.values() if s is not None])
    if count == 1:
        return codec
    if len(answer) > 1:
        return answer[1]
    message = f"the result has {count} items, raw bytes are for exactly one"
    raise NotAcceptable(Codec.RAW.value, message)


def _reply(exchange: Exchange, id_: str, sets: Sets, codec: Codec) -> Reply:
    headers = _headers(exchange, id_)
    return Reply(_encode(codec, id_, sets, headers), _MEDIA_TYPES[codec], 200, headers)


def _headers(exchange: Exchange, id_: str) -> list[Header]:
    headers = [(b"dandelion-invocation", id_.encode())]
    trace = exchange.headers.get(b"traceparent")
    if trace is not None and _TRACEPARENT.fullmatch(trace):
        headers.append((b"traceparent", trace))
    return headers


def _encode(codec: Codec, id_: str, sets: Sets, headers: list[Header]) -> list[Bytes]:
    if codec is Codec.JSON:
        return encode_json(id_, sets)
    if codec is Codec.MSGPACK:
        return encode_msgpack(id_, sets)
    (item,) = [item for s in sets.values() if s is not None for item in s.items]
    if item.dtype is not None:
        headers.append((b"dandelion-dtype", item.dtype.encode()))
        if item.shape is not None:
            headers.append((b"dandelion-shape", ",".join(map(str, item.shape)).encode()))
    return [item.data]
