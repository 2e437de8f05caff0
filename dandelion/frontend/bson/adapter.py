"""The routes of the original, and their handlers.

``/register/function``, ``/register/composition``, ``/register/library``, and ``/hot/...`` and
``/cold/...``, which both invoke what the body names. Every other path that no route has gets
``Hello, World``, by which clients see that the server is up. Method and media type are not looked
at. Errors are text, with 400 if the request is at fault and with 500 otherwise, as in the original;
the node's own checks of host, origin, token and rate keep their status.

``/async`` is not served. It gets an error, since ``Hello, World`` would look like an answer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import ClassVar, TypeVar

import msgspec

from dandelion.data import Bytes
from dandelion.documents import Content, ContentLike, RegistrationDocument
from dandelion.errors import (
    Blame,
    DandelionError,
    InvalidInput,
    TooMany,
    Unknown,
    root_of,
)
from dandelion.frontend.adapter import Adapter, AdapterContext
from dandelion.frontend.asgi import Request, Response
from dandelion.frontend.audit import Change, audited, entry, preparing
from dandelion.frontend.body import Body
from dandelion.frontend.bson.functions import function_document
from dandelion.frontend.bson.names import with_registered_names
from dandelion.frontend.bson.options import read_options
from dandelion.frontend.bson.preload import read_preload
from dandelion.frontend.bson.requests import (
    BsonInvocation,
    FunctionRequest,
    LibraryRequest,
    joined_invocation,
    read_composition,
    read_function,
    read_invocation,
    read_library,
)
from dandelion.frontend.bson.targets import BsonTarget, BsonTargets
from dandelion.frontend.bson.writer import encode_reply
from dandelion.frontend.conversion.costs import ITEMS, many_items
from dandelion.frontend.problem import RateLimited
from dandelion.frontend.problem_response import problem_response
from dandelion.frontend.routing import ANY_METHOD, Handler, Json, Route
from dandelion.frontend.service import ServedResult
from dandelion.namespaces import DEFAULT_TENANT
from dandelion.tokens import Right

READY = b"Hello, World\n"
FUNCTION_REGISTERED = b"Function registered"
LIBRARY_REGISTERED = b"Library registered"
ELEMENTS = 4096
"""Elements of a registration that are read here; the converter reads larger ones."""
CONVERTED_ELEMENTS = 16_000_000
_THREAD_BYTES = 64 * 1024
"""Arrays of bytes in larger bodies are read in a thread."""
_BSON = b"application/octet-stream"
_TEXT = b"text/plain; charset=utf-8"
_FAILED = "Failed to serve request: "
_KEPT_STATUS = frozenset({401, 403, 408, 421})

_R = TypeVar("_R", FunctionRequest, LibraryRequest)


class BsonAdapter(Adapter):
    """Serves clients of the original.

    Raises:
        InvalidInput: an option of the protocol is not valid.
    """

    begins_without_task: ClassVar[bool] = True

    def __init__(self, context: AdapterContext) -> None:
        self._node = context.node
        self._converter = context.converter
        self._options = read_options(context.node.settings)
        self._targets = BsonTargets(context.node)

    def routes(self) -> Sequence[Route]:
        register, invoke = Right.REGISTER, Right.INVOKE
        return [
            _route("/register/function", self._function, register, "Register an executable", _TEXT),
            _route("/register/composition", self._composition, register, "Register a text", _TEXT),
            _route("/register/library", self._library, register, "Register a library", _TEXT),
            *(
                _route(path, self._invoke, invoke, "Invoke what the body names", _BSON)
                for path in ("/hot", "/hot/{any...}", "/cold", "/cold/{any...}")
            ),
            _route("/async", self._unsupported, invoke),
            _route("/async/{any...}", self._unsupported, invoke),
            _route("/", self._hello, None),
            _route("/{any...}", self._hello, None),
        ]

    async def start(self) -> None:
        """Register the preload file."""
        if self._options.preload is not None:
            await asyncio.to_thread(self._preload)

    def _preload(self) -> None:
        assert self._options.preload is not None
        functions, texts = read_preload(self._options.preload)
        documents = tuple(map(function_document, functions))
        if documents:
            self._node.register(RegistrationDocument(documents), tenant=DEFAULT_TENANT)
        for text in texts:
            self._node.register(self._of_text(text, DEFAULT_TENANT), tenant=DEFAULT_TENANT)

    async def _hello(self, request: Request) -> Response:
        return Response([READY], _TEXT)

    async def _unsupported(self, request: Request) -> Response:
        hint = "wait for the reply of /hot or /cold"
        raise InvalidInput("path", "asynchronous invocations are not supported", hint)

    # --- registration -----------------------------------------------------------------------------

    async def _function(self, request: Request) -> Response:
        with preparing(Change(request, "register")):
            body = await self._body(request)
            read = await self._registration(body, "bson-function", read_function, FunctionRequest)
            del body
        make = partial(self._of_function, read)
        return await asyncio.to_thread(
            self._register, request, make, read.name, FUNCTION_REGISTERED
        )

    def _of_function(self, read: FunctionRequest) -> RegistrationDocument:
        if read.local_path:
            contents = (self._options.read(read.local_path), *read.contents[1:])
            read = msgspec.structs.replace(read, contents=contents)
        return RegistrationDocument((function_document(read),))

    async def _composition(self, request: Request) -> Response:
        with preparing(Change(request, "register")):
            text = read_composition(await self._body(request), ELEMENTS)
        make = partial(self._of_text, text, request.grant.tenant)
        return await asyncio.to_thread(
            self._register, request, make, "composition", FUNCTION_REGISTERED
        )

    def _of_text(self, text: str, tenant: str) -> RegistrationDocument:
        rewritten = with_registered_names(text, partial(self._node.describe, tenant=tenant))
        return RegistrationDocument(compositions=(rewritten,))

    async def _library(self, request: Request) -> Response:
        with preparing(Change(request, "register")):
            body = await self._body(request)
            read = await self._registration(body, "bson-library", read_library, LibraryRequest)
            del body
        libraries: dict[str, ContentLike] = {read.name: Content(data=read.contents[0])}
        make = partial(RegistrationDocument, libraries=libraries)
        return await asyncio.to_thread(self._register, request, make, read.name, LIBRARY_REGISTERED)

    def _register(
        self, request: Request, make: Callable[[], RegistrationDocument], name: str, reply: bytes
    ) -> Response:
        """Register in a thread, which ends also if the client disconnects."""
        with audited(Change(request, "register", [name])) as change:
            document = make()
            request.require_still()
            registered = self._node.register(document, tenant=request.grant.tenant)
            change.names = tuple(entry(r.kind, r.name, r.version) for r in registered)
        return Response([reply], _TEXT)

    async def _registration(
        self, body: Bytes, parser: str, read: Callable[[Bytes, int], _R], kind: type[_R]
    ) -> _R:
        """Read a registration: here, or in a thread, or in the converter if that takes long."""
        try:
            if len(body) <= _THREAD_BYTES:
                return read(body, ELEMENTS)
            return await asyncio.to_thread(read, body, ELEMENTS)
        except TooMany:
            sets, document = await self._converter.parsed(
                body, parser, CONVERTED_ELEMENTS, copy=True
            )
            rest = msgspec.msgpack.decode(document, type=kind)
            contents = tuple(bytes(item.data) for item in sets[""] or ())
            return msgspec.structs.replace(rest, contents=contents)

    async def _body(self, request: Request) -> Bytes:
        limit = self._node.settings.body_limit_bytes
        return await Body(request, self._node.acquire_to_fill_async, limit).read()

    # --- invocation -------------------------------------------------------------------------------

    async def _invoke(self, request: Request) -> Response:
        tenant = request.grant.tenant
        try:
            invocation = await self._invocation(request)
            target = await self._targets.find(invocation, tenant)
            try:
                outcome = await self._outcome(request, target, invocation)
            except Unknown:
                if not invocation.is_text:
                    raise
                self._targets.forget(invocation, tenant)  # the node forgot what was prepared
                target = await self._targets.find(invocation, tenant)
                outcome = await self._outcome(request, target, invocation)
            identifiers = [one.identifier for one in invocation.sets]
            del invocation  # free the memory of the inputs before the response is written
            request.invocation = outcome.id
            write = partial(encode_reply, target.labelled(outcome.sets, identifiers))
            if many_items(outcome.sets):
                return Response(await self._converter.elsewhere(write), _BSON)
            return Response(write(), _BSON)
        finally:
            request.stop_watching()

    async def _outcome(
        self, request: Request, target: BsonTarget, invocation: BsonInvocation
    ) -> ServedResult:
        return await self._node.invoke_sets_async(
            target.name,
            target.bound(invocation.sets),
            version=target.version,
            tenant=request.grant.tenant,
            on_wait=request.watch,
        )

    async def _invocation(self, request: Request) -> BsonInvocation:
        body = await self._body(request)
        limit = self._node.settings.items_limit
        try:
            return read_invocation(body, min(limit, ITEMS))
        except TooMany:
            if limit <= ITEMS:
                raise
            request.watch()
            sets, document = await self._converter.parsed(body, "bson-invocation", limit)
            return joined_invocation(sets, document)


def text_problem(error: DandelionError, invocation: str) -> Response:
    """Make the response for an error: text, with 400 or 500."""
    response = problem_response(error, invocation)
    root = root_of(error)
    if response.status not in _KEPT_STATUS and not isinstance(root, RateLimited):
        response.status = 400 if root.blame is Blame.CALLER else 500
    text = f"{_FAILED}{error}".encode("utf-8", "backslashreplace")
    response.chunks, response.media_type = [text], _TEXT
    return response


def _route(
    path: str, handler: Handler, right: Right | None, summary: str = "", gives: bytes = _TEXT
) -> Route:
    """Make a route; without a summary it is not documented."""
    operation: Json | None = None
    if summary:
        text = {"description": "The request or the function failed", "content": {"text/plain": {}}}
        content: Json = {gives.decode().partition(";")[0]: {}}
        operation = {
            "summary": f"{summary} (BSON)",
            "requestBody": {"content": {_BSON.decode(): {}}},
            "responses": {"200": {"description": "Done", "content": content}, "default": text},
        }
    change = "register" if right is Right.REGISTER else ""
    return Route(ANY_METHOD, path, handler, right, operation, text_problem, change=change)


def adapter(context: AdapterContext) -> Adapter:
    """Make the adapter; see `dandelion.frontend.adapter`."""
    return BsonAdapter(context)
