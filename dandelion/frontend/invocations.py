"""``POST /v1/invoke/{name}``: the route that has to be fast.

Everything that depends only on the head of a request and the catalogue is computed once and cached
as a `_Plan` until the catalogue changes. If the client disconnects, its invocation is cancelled
(`DisconnectWatcher`).
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias

from dandelion.asynchronous.records import KeptRequest, check_key
from dandelion.data import SetSpec
from dandelion.errors import InvalidInput, Unknown
from dandelion.frontend.asgi import (
    NAME_LIMIT,
    Request,
    Response,
    clipped,
    did_you_mean,
)
from dandelion.frontend.body import RAISE_LIMIT, Body
from dandelion.frontend.codecs import (
    SetMap,
    check_names,
    decode_json,
    decode_msgpack,
    decode_raw,
)
from dandelion.frontend.conversion.converter import Converter
from dandelion.frontend.conversion.costs import (
    costs_json,
    costs_msgpack,
)
from dandelion.frontend.kept_routes import KeptRoutes
from dandelion.frontend.multipart import decode_multipart
from dandelion.frontend.negotiation import Codec, reader, writers
from dandelion.frontend.preferences import read_preferences
from dandelion.frontend.results import ResultWriter
from dandelion.frontend.service import Service
from dandelion.priority import read_priority

JSON_LIMIT_BYTES = 64 * 1024 * 1024
"""JSON takes ten times its size when it is parsed. Send large data as MessagePack."""

PLAN_LIMIT = 4096
RECORDING_TYPE = b"application/vnd.dandelion.recording"
RECORDINGS_AT_ONCE = 2
"""A recording uses a thread while its invocation runs; more of them wait."""
_SMALLER_AS = "send a form, MessagePack or raw bytes, which may be larger than JSON"
_KEPT_HEADERS = frozenset({b"prefer", b"idempotency-key", b"dandelion-callback"})
_NO_CALLBACK = (
    "this invocation is not kept, so nothing would be sent to a URL later",
    "send Prefer: respond-async or an Idempotency-Key with it, or leave the header out",
)
QUERY = ("version", "deadline_s", "priority", "set")


_Head: TypeAlias = tuple[str, str, bytes, bytes, bytes]
"""Tenant, path, query, Content-Type and Accept of a request."""


@dataclass(frozen=True, slots=True)
class _Plan:
    """What depends only on the head of a request and the catalogue.

    Attributes:
        name, version: what is invoked.
        specs: the input sets that a caller gives.
        static: the input sets that are fixed at registration.
        codec: of the body.
        response_codecs: codecs that the client accepts, best first.
        raw_set: the input set of a raw body.
        deadline_s, priority: of the query.
        limit_bytes: of the body.
    """

    name: str
    version: int | None
    specs: dict[str, SetSpec]
    static: tuple[str, ...]
    codec: Codec
    response_codecs: tuple[Codec, ...]
    raw_set: str
    deadline_s: float | None
    priority: int
    limit_bytes: int


class Invocations:
    """Handles invocations over HTTP.

    Args:
        node: runs the invocations.
        converter: reads documents that would block the event loop.
        results: writes results.
        kept: accepts asynchronous invocations.
    """

    def __init__(
        self, node: Service, converter: Converter, results: ResultWriter, kept: KeptRoutes
    ) -> None:
        self._node = node
        self._converter = converter
        self._results = results
        self._kept = kept
        self._plans: dict[_Head, _Plan] = {}
        self._generation = node.generation
        self._recordings = asyncio.Semaphore(RECORDINGS_AT_ONCE)

    async def __call__(self, request: Request) -> Response:
        """Read the input sets, invoke, and write the output sets."""
        plan = self._kept_plan(request) or await self._made_plan(request)
        deadline_s = _given_deadline_s(request, plan)
        priority = plan.priority
        if b"dandelion-priority" in request.headers:
            given = request.header(b"dandelion-priority")
            priority = read_priority("header.dandelion-priority", clipped(given))
        try:
            sets = await self._read(request, plan)
            if sets.keys() != plan.specs.keys():
                check_names(sets, plan.specs, plan.static)
            if not _KEPT_HEADERS.isdisjoint(request.headers):
                requested = _kept_request(request, plan, deadline_s, priority)
                preferences = read_preferences(request.headers.get(b"prefer", b""))
                codecs = plan.response_codecs
                if preferences.respond_async:
                    return await self._kept.submit(request, requested, sets, preferences, codecs)
                if requested.key:
                    return await self._kept.once(request, requested, sets, codecs)
                if requested.callback:
                    raise InvalidInput("header.dandelion-callback", *_NO_CALLBACK)
            outcome = await self._node.invoke_sets_async(
                plan.name,
                sets,
                version=plan.version,
                deadline_s=deadline_s,
                priority=priority,
                tenant=request.grant.tenant,
                trace_context=request.begin_span(),
                on_wait=request.watch,
            )
            del sets  # free the memory of the inputs before the response is written
            request.invocation = outcome.id
            id_, result, codecs = outcome.id, outcome.sets, plan.response_codecs
            short = self._results.short(id_, result, codecs)
            return short or await self._results.write(id_, result, codecs)
        finally:
            request.stop_watching()

    async def record(self, request: Request) -> Response:
        """``POST /v1/record/{name}``: read the input sets, invoke, and write the recording."""
        plan = self._kept_plan(request) or await self._made_plan(request)
        sets = await self._read(request, plan)
        if sets.keys() != plan.specs.keys():
            check_names(sets, plan.specs, plan.static)
        record = partial(
            self._node.record,
            plan.name,
            sets,
            version=plan.version,
            deadline_s=_given_deadline_s(request, plan),
            tenant=request.grant.tenant,
        )
        async with self._recordings:
            recording = await asyncio.to_thread(record)
        return Response([recording], RECORDING_TYPE)

    def _kept_plan(self, request: Request) -> _Plan | None:
        generation = self._node.generation
        if generation != self._generation or len(self._plans) > PLAN_LIMIT:
            self._plans.clear()
            self._generation = generation
        return self._plans.get(_head(request))

    async def _made_plan(self, request: Request) -> _Plan:
        """Make a plan in a thread, since it compiles compositions and searches near names."""
        generation = self._node.generation
        plan = await asyncio.to_thread(self._new_plan, request)
        if generation == self._generation:
            self._plans[_head(request)] = plan
        return plan

    def _new_plan(self, request: Request) -> _Plan:
        _, _, _, content_type, accept = _head(request)
        name = request.parameters["name"]
        if len(name) > NAME_LIMIT:
            raise Unknown("function or composition", clipped(name))
        codec = reader(content_type)
        response_codecs = writers(accept, codec)
        request.expect_query(QUERY)
        version = request.version
        deadline = request.query.get("deadline_s")
        priority = clipped(request.query.get("priority", "0"))
        signature = self._node.signature(name, version, tenant=request.grant.tenant)
        specs = {s.name: s for s in signature.inputs}
        limit = self._node.settings.body_limit_bytes
        return _Plan(
            name,
            version,
            specs,
            signature.static,
            codec,
            response_codecs,
            _raw_set(request, name, specs) if codec is Codec.RAW else "",
            None if deadline is None else _deadline_s("query.deadline_s", deadline),
            read_priority("query.priority", priority),
            min(limit, JSON_LIMIT_BYTES) if codec is Codec.JSON else limit,
        )

    async def _read(self, request: Request, plan: _Plan) -> SetMap:
        is_capped = plan.limit_bytes < self._node.settings.body_limit_bytes
        body = Body(
            request,
            self._node.acquire_to_fill_async,
            plan.limit_bytes,
            _SMALLER_AS if is_capped else RAISE_LIMIT,
        )
        if plan.codec is Codec.MULTIPART:
            content_type = request.header(b"content-type")
            return await decode_multipart(
                body, content_type, plan.specs, self._node.settings.items_limit
            )
        whole = body.whole()
        data = await body.read() if whole is None else whole
        if plan.codec is Codec.RAW:
            given = request.headers
            dtype = request.header(b"dandelion-dtype") if b"dandelion-dtype" in given else None
            shape = request.header(b"dandelion-shape") if b"dandelion-shape" in given else None
            return decode_raw(data, plan.raw_set, plan.specs, dtype, shape)
        is_json = plan.codec is Codec.JSON
        limit = self._node.settings.items_limit
        if costs_json(data) if is_json else costs_msgpack(data):
            request.watch()
            return await self._converter.sets(data, plan.codec.value, plan.specs, limit)
        return (decode_json if is_json else decode_msgpack)(data, plan.specs, limit)


def _head(request: Request) -> _Head:
    headers = request.headers
    content_type = headers.get(b"content-type", b"")
    if content_type.startswith(b"multipart/"):
        content_type = content_type.partition(b";")[0]  # the boundary is another one each time
    accept = headers.get(b"accept", b"")
    return request.grant.tenant, request.path, request.raw_query, content_type, accept


def _given_deadline_s(request: Request, plan: _Plan) -> float | None:
    if b"dandelion-deadline" not in request.headers:
        return plan.deadline_s
    return _deadline_s("header.dandelion-deadline", request.header(b"dandelion-deadline"))


def _kept_request(
    request: Request, plan: _Plan, deadline_s: float | None, priority: int
) -> KeptRequest:
    """Tell what an invocation is that the node keeps, besides its sets."""
    key = request.header(b"idempotency-key")
    if b"idempotency-key" in request.headers:
        check_key("header.idempotency-key", key)  # without one, a repetition would run again
    return KeptRequest(
        name=plan.name,
        version=plan.version,
        deadline_s=deadline_s,
        priority=priority,
        key=key,
        callback=request.header(b"dandelion-callback"),
    )


def _deadline_s(where: str, text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0 < seconds < math.inf:
        raise InvalidInput(where, f"'{clipped(text)}' is not a positive number of seconds")
    return seconds


def _raw_set(request: Request, function: str, specs: Mapping[str, SetSpec]) -> str:
    name = request.query.get("set")
    if name is None:
        if len(specs) == 1:
            return next(iter(specs))
        names = ", ".join(specs) or "none"
        message = f"raw bytes need one input set; '{function}' has {len(specs)}"
        raise InvalidInput(
            "body", message, f"select the set with ?set=, or send JSON; sets are: {names}"
        )
    if name not in specs:
        hint = did_you_mean(name, specs)
        raise InvalidInput("query.set", f"no input set '{clipped(name)}'", hint)
    return name
