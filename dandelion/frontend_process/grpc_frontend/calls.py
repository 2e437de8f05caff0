"""What is known of a call besides its message: its trace context, and its line in the access log.

A call has a line; so has each request of a stream, since a stream may last for days. The status in
a line is that of HTTP for the same error, beside the name of the status of gRPC.
"""

from __future__ import annotations

import ipaddress
import time
import urllib.parse
from typing import Any

import grpc

from dandelion.errors import DandelionError, root_of
from dandelion.frontend.access_log import (
    AGENT_LIMIT,
    CLIENT_LEFT,
    PATH_LIMIT,
    AccessLog,
    RequestRecord,
)
from dandelion.tokens import Grant
from dandelion.trace_context import InvocationSpan, TraceContext, Tracing, read_trace_context

_OK = grpc.StatusCode.OK.name


class Call:
    """One call, or one request of a stream.

    Args:
        log: where its line goes; None if there is none.
        path: of the method.
        metadata: of the call.
        peer: as gRPC writes it; empty if it is not known.
        grant: what the caller may do; None if it has no valid token.
        received_bytes: size of the message.

    Attributes:
        span: of its invocation, once it has begun.
        invocation: its id, once there is one.
    """

    def __init__(
        self,
        log: AccessLog | None,
        path: str,
        metadata: Any,
        peer: str,
        grant: Grant | None,
        received_bytes: int = 0,
    ) -> None:
        self._log = log
        self._path = path
        self._metadata = metadata
        self._peer = peer
        self._grant = grant
        self._received_bytes = received_bytes
        self._started_ns = time.monotonic_ns()
        self.span: InvocationSpan | None = None
        self.invocation = ""

    def begin_span(self, tracing: Tracing) -> InvocationSpan | None:
        """Begin the span of its invocation, below that of the metadata."""
        self.span = tracing.begin(_parent(self._metadata))
        return self.span

    def succeeded(self, sent_bytes: int) -> None:
        """Write the line of a call that gave a message."""
        self._write(200, _OK, sent_bytes)

    def failed(self, error: DandelionError, code: grpc.StatusCode) -> None:
        """Write the line of a call that ended with an error."""
        self.invocation = error.invocation or self.invocation
        self._write(root_of(error).status, code.name, 0)

    def left(self) -> None:
        """Write the line of a call that its client ended."""
        self._write(CLIENT_LEFT, grpc.StatusCode.CANCELLED.name, 0)

    def _write(self, status: int, code: str, sent_bytes: int) -> None:
        if self._log is None:
            return
        now_ns = time.monotonic_ns()
        grant, span = self._grant, self.span
        self._log.add(
            RequestRecord(
                now_ns,
                now_ns - self._started_ns,
                "POST",
                self._path[: PATH_LIMIT + 1],
                status,
                self._received_bytes,
                sent_bytes,
                grant.tenant if grant is not None else "",
                grant.name if grant is not None else "",
                _client(self._peer),
                self.invocation,
                span.context.traceparent if span is not None else "",
                _agent(self._metadata),
                code,
            )
        )


def _parent(metadata: Any) -> TraceContext | None:
    headers = [
        (name.encode(), value.encode())
        for name, value in metadata
        if name in ("traceparent", "tracestate") and isinstance(value, str)
    ]
    return read_trace_context(headers) if headers else None


def _agent(metadata: Any) -> bytes:
    found = next((value for name, value in metadata if name == "user-agent"), "")
    return found.encode()[: AGENT_LIMIT + 1] if isinstance(found, str) else b""


def _client(peer: str) -> tuple[str, int] | None:
    """Read an address as gRPC writes it, such as ``ipv6:%5B::1%5D:5000``."""
    host, _, port = urllib.parse.unquote(peer).partition(":")[2].rpartition(":")
    try:
        return str(ipaddress.ip_address(host.strip("[]"))), int(port)
    except ValueError:
        return None
