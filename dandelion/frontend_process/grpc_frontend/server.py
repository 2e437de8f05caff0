"""The gRPC server: finds the method, checks the caller, converts errors, serves streams.

The order of the checks is that of HTTP: token, method, right, rate; then the message is read.

A stream has up to `AHEAD` calls under way; responses are in the order of the requests. An error of
one call is a message of the stream, which goes on.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from typing import Any, NoReturn

import grpc

from dandelion.errors import DandelionError, InternalError, root_of
from dandelion.frontend.asgi import clipped, did_you_mean
from dandelion.frontend.guard import Guard
from dandelion.frontend.kserve.errors import Unsupported
from dandelion.frontend.problem import NoRoute, Unauthenticated
from dandelion.frontend_process.grpc_frontend.messages import SERVICE, message_class
from dandelion.frontend_process.grpc_frontend.methods import Method, Methods
from dandelion.frontend_process.grpc_frontend.wire import bytes_head
from dandelion.tokens import ANONYMOUS, Grant, Right

log = logging.getLogger("dandelion.frontend")

AHEAD = 4
STREAM = "ModelStreamInfer"
_MESSAGE_LIMIT = 2000
"""Characters of an error; clients accept 8 KiB of trailers."""
_SOONEST_S = 0.001

_CODES = {
    400: grpc.StatusCode.INVALID_ARGUMENT,
    401: grpc.StatusCode.UNAUTHENTICATED,
    403: grpc.StatusCode.PERMISSION_DENIED,
    404: grpc.StatusCode.NOT_FOUND,
    406: grpc.StatusCode.INVALID_ARGUMENT,
    409: grpc.StatusCode.ALREADY_EXISTS,
    413: grpc.StatusCode.INVALID_ARGUMENT,
    422: grpc.StatusCode.UNKNOWN,
    429: grpc.StatusCode.RESOURCE_EXHAUSTED,
    499: grpc.StatusCode.CANCELLED,
    501: grpc.StatusCode.UNIMPLEMENTED,
    503: grpc.StatusCode.UNAVAILABLE,
    504: grpc.StatusCode.DEADLINE_EXCEEDED,
    507: grpc.StatusCode.RESOURCE_EXHAUSTED,
}


class Service(grpc.GenericRpcHandler):  # type: ignore[misc]  # it has no types
    """Finds the handlers of calls.

    Args:
        methods: what there is.
        guard: knows what callers may do.

    Attributes:
        draining: set when streams are to end.
    """

    def __init__(self, methods: Methods, guard: Guard) -> None:
        self._guard = guard
        self._methods: Mapping[str, tuple[Right | None, Method]] = methods.table()
        self._infer = methods.infer
        self.draining = asyncio.Event()

    def service(self, details: Any) -> Any:
        """Give the handler of a call, before its message is read."""
        try:
            return self._handler(details)
        except DandelionError as error:
            return grpc.stream_stream_rpc_method_handler(_refusal(error))

    def _handler(self, details: Any) -> Any:
        package, _, name = details.method.removeprefix("/").rpartition("/")
        right, method = self._methods.get(name, (Right.INVOKE, None))
        is_public = method is not None and right is None
        grant = ANONYMOUS if is_public else self._grant(details.invocation_metadata)
        if package != SERVICE or (method is None and name != STREAM):
            known = [*self._methods, STREAM]
            raise NoRoute(clipped(details.method), did_you_mean(name, known) or None)
        if name == STREAM:
            self._check(grant, Right.INVOKE)
            return grpc.stream_stream_rpc_method_handler(_Stream(self, grant).serve)
        assert method is not None
        self._check(grant, right)

        async def unary(message: bytes, context: Any) -> bytes:
            try:
                return await method(message, grant.tenant, _deadline_s(context))
            except Exception as error:
                await _abort(context, error)

        return grpc.unary_unary_rpc_method_handler(unary)

    def _check(self, grant: Grant, right: Right | None) -> None:
        if self._guard.is_closed:
            self._guard.check(grant, right)

    def _grant(self, metadata: Any) -> Grant:
        """Find out who calls.

        Raises:
            Unauthenticated: the metadata has not exactly one valid token.
        """
        if not self._guard.is_closed:
            return ANONYMOUS
        given = [value for name, value in metadata if name == "authorization"]
        grant = None
        if len(given) == 1:
            value = given[0]
            grant = self._guard.find(value.encode() if isinstance(value, str) else value)
        if grant is None:
            raise Unauthenticated
        return grant

    async def infer(self, message: bytes, grant: Grant, deadline_s: float | None) -> bytes:
        """Serve one request of a stream; an error becomes a response."""
        try:
            self._check(grant, Right.INVOKE)
            response = await self._infer(message, grant.tenant, deadline_s)
        except Exception as error:
            text = _text(_typed(error))
            written: bytes = _StreamResponse(error_message=text).SerializeToString()
            return written
        return await asyncio.to_thread(_wrapped, response)


_StreamResponse = message_class("ModelStreamInferResponse")
_INFER_RESPONSE = 2


def _wrapped(response: bytes) -> bytes:
    return bytes_head(_INFER_RESPONSE, len(response)) + response


class _Stream:
    """One stream: reads requests, and writes the responses in their order."""

    def __init__(self, service: Service, grant: Grant) -> None:
        self._service = service
        self._grant = grant
        # one more call is awaited by the writer, and one waits for its place
        self._calls: asyncio.Queue[asyncio.Task[bytes] | None] = asyncio.Queue(AHEAD - 2)
        self._running: set[asyncio.Task[bytes]] = set()

    async def serve(self, _: Any, context: Any) -> None:
        """Serve the stream until its client ends it, or the server drains."""
        reading = asyncio.create_task(self._read(context))
        try:
            while (call := await self._calls.get()) is not None:
                await context.write(await call)
                self._running.discard(call)
            await reading
        finally:
            reading.cancel()
            for call in self._running:
                call.cancel()

    async def _read(self, context: Any) -> None:
        while (message := await self._next(context)) is not None:
            deadline_s = _deadline_s(context)
            call = asyncio.create_task(self._service.infer(message, self._grant, deadline_s))
            del message
            self._running.add(call)
            await self._calls.put(call)
        await self._calls.put(None)

    async def _next(self, context: Any) -> bytes | None:
        """Read a request; None at the end of the stream, and when the server drains."""
        reading = asyncio.ensure_future(context.read())
        draining = asyncio.create_task(self._service.draining.wait())
        try:
            await asyncio.wait((reading, draining), return_when=asyncio.FIRST_COMPLETED)
            if not reading.done():
                return None
            message = reading.result()
            return None if message is grpc.aio.EOF else message
        finally:
            draining.cancel()
            reading.cancel()


def _refusal(error: DandelionError) -> Any:
    async def refuse(_: Any, context: Any) -> None:
        await _abort(context, error)

    return refuse


def _deadline_s(context: Any) -> float | None:
    left_s: float | None = context.time_remaining()
    return None if left_s is None else max(left_s, _SOONEST_S)


async def _abort(context: Any, error: Exception) -> NoReturn:
    """End a call with an error; the library raises its own exception for that."""
    typed = _typed(error)
    root = root_of(typed)
    code = _CODES.get(root.status, grpc.StatusCode.INTERNAL)
    if isinstance(root, Unsupported | NoRoute):
        code = grpc.StatusCode.UNIMPLEMENTED
    if typed.invocation:
        context.set_trailing_metadata((("dandelion-invocation", typed.invocation),))
    await context.abort(code, _text(typed))
    raise AssertionError("it was aborted")


def _typed(error: Exception) -> DandelionError:
    if isinstance(error, DandelionError):
        return error
    log.error("request failed", exc_info=error)
    return InternalError(f"{type(error).__name__}: {error}")


def _text(error: DandelionError) -> str:
    text = str(error).encode("utf-8", "backslashreplace").decode()
    return clipped(text, _MESSAGE_LIMIT)
