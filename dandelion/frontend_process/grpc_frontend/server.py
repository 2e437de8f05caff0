"""The gRPC server: finds the method, checks the caller, converts errors, serves streams.

The order of the checks is that of HTTP: token, method, right, rate; then the message is read.

A stream has up to `AHEAD` calls under way; responses are in the order of the requests. An error of
one call is a message of the stream, which goes on.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, NoReturn

import grpc

from dandelion.errors import DandelionError, InternalError, InvalidInput, nearest, root_of
from dandelion.frontend.access_log import AccessLog
from dandelion.frontend.asgi import clipped
from dandelion.frontend.guard import Guard, grant_still
from dandelion.frontend.kserve.errors import Unsupported
from dandelion.frontend.problem import NoRoute, Unauthenticated
from dandelion.frontend_process.grpc_frontend.calls import Call
from dandelion.frontend_process.grpc_frontend.messages import SERVICE, message_class
from dandelion.frontend_process.grpc_frontend.methods import Method, Methods
from dandelion.frontend_process.grpc_frontend.wire import bytes_head
from dandelion.tokens import ANONYMOUS, Grant, Right

log = logging.getLogger("dandelion.frontend")

AHEAD = 4
STREAM = "ModelStreamInfer"
INFER = "ModelInfer"
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


@dataclass(slots=True)
class _Caller:
    """Who makes a call.

    Attributes:
        path: of the method.
        metadata: of the call.
        grant: what the caller may do; None before that is known.
    """

    path: str
    metadata: Any
    grant: Grant | None = None

    @property
    def known(self) -> Grant:
        """The grant of a caller that was checked."""
        assert self.grant is not None, "it was checked"
        return self.grant


class Service(grpc.GenericRpcHandler):  # type: ignore[misc]  # it has no types
    """Finds the handlers of calls.

    Args:
        methods: what there is.
        guard: knows what callers may do.
        log: of accesses; None if there is none.

    Attributes:
        draining: set when streams are to end.
    """

    def __init__(self, methods: Methods, guard: Guard, log: AccessLog | None = None) -> None:
        self._guard = guard
        self._log = log
        self._methods: Mapping[str, tuple[Right | None, Method]] = methods.table()
        self._infer = methods.infer
        self.draining = asyncio.Event()

    def service(self, details: Any) -> Any:
        """Give the handler of a call, before its message is read."""
        metadata = details.invocation_metadata
        caller = _Caller(details.method, metadata)
        try:
            return self._handler(details.method, caller)
        except DandelionError as error:
            return grpc.stream_stream_rpc_method_handler(self._refusal(error, caller))

    def _handler(self, path: str, caller: _Caller) -> Any:
        package, _, name = path.removeprefix("/").rpartition("/")
        right, method = self._methods.get(name, (Right.INVOKE, None))
        is_public = method is not None and right is None
        caller.grant = ANONYMOUS if is_public else self._grant(caller.metadata)
        if package != SERVICE or (method is None and name not in (STREAM, INFER)):
            close = nearest(clipped(name), [*self._methods, STREAM, INFER])
            raise NoRoute(clipped(path), close and f"/{SERVICE}/{close}")
        self._check(caller.grant, right)
        if name == STREAM:
            return grpc.stream_stream_rpc_method_handler(_Stream(self, caller).serve)
        return grpc.stream_unary_rpc_method_handler(partial(self._unary, caller, right, method))

    async def _unary(
        self, caller: _Caller, right: Right | None, method: Method | None, _: Any, context: Any
    ) -> bytes:
        """Serve a call with one message; without a method it is an inference.

        The library's own handler of such calls never answers one that ends without a message.
        """
        message = await context.read()
        has_message = message is not grpc.aio.EOF
        grant, deadline_s = caller.known, _deadline_s(context)
        call = self.call(caller, context, len(message) if has_message else 0)
        try:
            if not has_message:
                raise InvalidInput("request", "the call has no message")
            if grant is not ANONYMOUS:  # the token may be gone since the call began
                grant = grant_still(self._grant(caller.metadata), grant, (right,))
            if method is None:
                response = await self._infer(message, grant.tenant, deadline_s, call)
                context.set_trailing_metadata(_trailer(call))
            else:
                response = await method(message, grant.tenant, deadline_s)
        except asyncio.CancelledError:
            call.left()
            raise
        except Exception as error:
            await _abort(context, error, call)
        call.succeeded(len(response))
        return response

    def call(self, caller: _Caller, context: Any, received_bytes: int = 0) -> Call:
        """Begin the record of a call."""
        peer = context.peer() if self._log is not None else ""
        return Call(self._log, caller.path, caller.metadata, peer, caller.grant, received_bytes)

    def _refusal(self, error: DandelionError, caller: _Caller) -> Any:
        async def refuse(_: Any, context: Any) -> None:
            await _abort(context, error, self.call(caller, context))

        return refuse

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

    async def infer(self, message: bytes, caller: _Caller, context: Any) -> bytes:
        """Serve one request of a stream; an error becomes a response."""
        call = self.call(caller, context, len(message))
        try:
            grant = self._grant(caller.metadata)  # the token may be gone since the stream began
            self._check(grant, Right.INVOKE)
            response = await self._infer(message, grant.tenant, _deadline_s(context), call)
        except asyncio.CancelledError:
            call.left()
            raise
        except Exception as error:
            failure = _to_dandelion_error(error)
            call.failed(failure, _code_of(failure))
            text = _text(failure)
            written: bytes = _StreamResponse(error_message=text).SerializeToString()
            return written
        call.succeeded(len(response))
        return await asyncio.to_thread(_wrapped, response)


_StreamResponse = message_class("ModelStreamInferResponse")
_INFER_RESPONSE = 2


def _wrapped(response: bytes) -> bytes:
    return bytes_head(_INFER_RESPONSE, len(response)) + response


class _Stream:
    """One stream: reads requests, and writes the responses in their order."""

    def __init__(self, service: Service, caller: _Caller) -> None:
        self._service = service
        self._caller = caller
        # one more call is awaited by the writer, and one waits for its place
        self._calls: asyncio.Queue[asyncio.Task[bytes] | None] = asyncio.Queue(AHEAD - 2)
        self._running: set[asyncio.Task[bytes]] = set()

    async def serve(self, _: Any, context: Any) -> None:
        """Serve the stream until its client ends it, or the server drains."""
        reading = asyncio.create_task(self._read(context))
        try:
            while (call := await self._calls.get()) is not None:
                response = await call
                try:
                    await context.write(response)
                except grpc.aio.InternalError:  # the client left; the library notices it later
                    return
                self._running.discard(call)
            await reading
        finally:
            reading.cancel()
            for call in self._running:
                call.cancel()

    async def _read(self, context: Any) -> None:
        while (message := await self._next(context)) is not None:
            call = asyncio.create_task(self._service.infer(message, self._caller, context))
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


def _deadline_s(context: Any) -> float | None:
    left_s: float | None = context.time_remaining()
    return None if left_s is None else max(left_s, _SOONEST_S)


async def _abort(context: Any, error: Exception, call: Call) -> NoReturn:
    """End a call with an error; the library raises its own exception for that."""
    failure = _to_dandelion_error(error)
    code = _code_of(failure)
    call.failed(failure, code)
    context.set_trailing_metadata(_trailer(call))
    await context.abort(code, _text(failure))
    raise AssertionError("it was aborted")


def _code_of(error: DandelionError) -> grpc.StatusCode:
    root = root_of(error)
    if isinstance(root, Unsupported | NoRoute):
        return grpc.StatusCode.UNIMPLEMENTED
    return _CODES.get(root.status, grpc.StatusCode.INTERNAL)


def _trailer(call: Call) -> tuple[tuple[str, str], ...]:
    """Name the invocation and its span, as the headers of HTTP do."""
    found: tuple[tuple[str, str], ...] = ()
    if call.invocation:
        found = (("dandelion-invocation", call.invocation),)
    if call.span is not None:
        found += (("traceparent", call.span.context.traceparent),)
    return found


def _to_dandelion_error(error: Exception) -> DandelionError:
    if isinstance(error, DandelionError):
        return error
    log.error("request failed", exc_info=error)
    return InternalError(f"{type(error).__name__}: {error}")


def _text(error: DandelionError) -> str:
    text = str(error).encode("utf-8", "backslashreplace").decode()
    return clipped(text, _MESSAGE_LIMIT)
