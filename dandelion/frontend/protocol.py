"""uvicorn's protocol with an extension for whole responses, and with time-outs.

In ASGI, head and body of a response are two messages, and uvicorn writes each. For a response of a
hundred bytes the second system call costs as much as parsing the request. So this protocol has an
ASGI extension, ``dandelion.response``: one message with status, headers and all chunks of the body.
`dandelion.frontend.asgi.Response` uses it if the server has it, else plain ASGI, so the application
runs under any server. Such a request often completes without waiting and needs no task, see
`Protocol`.

The server's `ConnectionTable` knows what each connection waits for, and closes it after a time-out.
A connection that is closed before its whole request was read **lingers**: the response is written,
the sending half is closed, and further input is discarded for some time. If it were closed at once,
the kernel would reset it, and the client could lose the response.

A request may ask for another protocol (``Connection: upgrade``). The node serves no other one, so
it answers as if the request did not ask, as RFC 9110 allows. httptools stops behind the head of
such a request, since another protocol could follow; parsed as usual, the body would be the next
request. So the parser gets the part of the head that tells where the body ends once more, without
the upgrade, and then the rest. CONNECT is refused, since what follows it has no end.

Trailers of a chunked body are discarded: as headers, they could change the meaning of a request
that was already checked.

It extends classes of uvicorn that are not documented, so `pyproject.toml` pins uvicorn to the
tested releases, and `tests/node/test_uvicorn_range.py` checks the names that are used.
`tests/node/test_frontend.py` compares whole responses with plain ASGI.
"""

from __future__ import annotations

import asyncio
from typing import Any

from httptools import HttpParserError, HttpParserUpgrade
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from dandelion.errors import DandelionError, InvalidInput
from dandelion.frontend.acceptor import Newcomer
from dandelion.frontend.access import OPEN_PATHS
from dandelion.frontend.admission import Peer, Wait, reset
from dandelion.frontend.asgi import TASK, WHOLE_RESPONSE, Message, Receive, Scope, Send
from dandelion.frontend.cycle import Cycle, finish
from dandelion.frontend.problem import (
    RETRY_AFTER_S,
    Crowded,
    HeadTooLong,
    NoTunnel,
    RequestError,
    Stalled,
    closing_response,
    problem_response,
)

HEAD_LIMIT_BYTES = 64 * 1024
"""Longest head of a request, see `Protocol`."""
LINGER_BYTES = 1024 * 1024 * 1024
"""How much input of a lingering connection is discarded before it is reset."""
_PIECE_BYTES = 64 * 1024
_FRAMING = (b"content-length", b"transfer-encoding")


async def _crowded(scope: Scope, receive: Receive, send: Send) -> None:
    """Handle a request on a surplus connection."""
    response = problem_response(Crowded(scope["state"]["connections"]))
    await response.send(send, scope["extensions"])


class Protocol(HttpToolsProtocol):
    """uvicorn's HTTP protocol with `Cycle` for its cycles, which start without a task.

    A cycle starts when all input that arrived with its head is parsed, or in the next iteration of
    the loop if many have (`Turns`). If the request is complete by then, its first step runs at
    once. Most requests complete in this step; the others continue in a task. The first step of a
    request never runs inside the step of another request.

    The length of a head is limited, since uvicorn and httptools assemble long heads in quadratic
    time. Input is parsed in pieces. All pieces that end within a head count, so up to one piece
    more than the limit is held.

    The data of a request is freed when it is complete, not when the next request arrives. With
    thousands of connections that is much later.

    A request that is refused since the node has too many (429) is answered at once, but the next
    one on its connection is not read before the time that `Retry-After` names. Otherwise clients
    that repeat it at once could keep the node busy with refusals. After a refusal for a tenant's
    limit it is read at once: others may use the same connection.

    A surplus connection (`ConnectionTable`) gets one response: the health of the node, or the error
    that there are too many connections.

    Args:
        newcomer: its place in the table is taken by this connection.
    """

    # CPython shares the keys of attribute dictionaries up to thirty; uvicorn has as many.
    __slots__ = (
        "_answered",
        "_beginning",
        "_begun",
        "_framing",
        "_head_bytes",
        "_held",
        "_in_body",
        "_in_head",
        "_newcomer",
        "_received_bytes",
        "_served",
        "_surplus",
        "_table",
        "address",
        "lingers",
        "mark",
        "peer",
        "since",
        "wait",
    )

    def __init__(self, *arguments: Any, newcomer: Newcomer, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        self._newcomer: Newcomer | None = newcomer
        self._table = newcomer.table
        self._beginning = False
        self._begun: list[tuple[RequestResponseCycle, Any]] = []
        self._served = False
        self._head_bytes = 0
        self._framing: bytes | None = None
        self._received_bytes = 0
        self._in_head = False
        self._in_body = False
        self._answered = False
        self._held = False
        self._surplus = newcomer.surplus
        self.lingers = False
        # Used by the table:
        self.address = newcomer.address
        self.wait: Wait | None = None
        self.since = 0.0
        self.mark = 0
        self.peer: Peer | None = None

    # --- the connection -------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn's
        """Take the newcomer's place in the table."""
        super().connection_made(transport)
        if self._newcomer is not None:
            self._table.replace(self._newcomer, self, self.loop.time())
            self._newcomer = None

    def connection_lost(self, exc: Exception | None) -> None:
        """Leave the table."""
        self._table.forget(self)
        super().connection_lost(exc)
        self.cycle = None  # type: ignore[assignment]  # breaks the reference cycle

    def pause_writing(self) -> None:
        """Wait until the client reads."""
        super().pause_writing()
        self._update_wait()

    def resume_writing(self) -> None:
        """Continue."""
        super().resume_writing()
        self._update_wait()

    def _update_wait(self) -> None:
        wait = self._waits_for()
        if wait is not self.wait or self._answered:
            self._table.enter(self, wait, self.loop.time())
        self._answered = False

    def _waits_for(self) -> Wait | None:
        if self.lingers:
            return Wait.LINGER
        if self.transport.is_closing():
            return Wait.RESPONSE if self.transport.get_write_buffer_size() else None
        if self.flow.write_paused:
            return Wait.RESPONSE
        if self._in_body:
            return Wait.BODY
        if self.cycle is not None and not self.cycle.response_complete:
            return None
        return Wait.IDLE if self._served and not self._in_head else Wait.HEAD

    # --- for the table --------------------------------------------------------------------------

    def moved(self) -> int:
        """Return the number of bytes received, or read by the client while it reads a response."""
        if self.wait is Wait.RESPONSE:
            return -self.transport.get_write_buffer_size()
        return self._received_bytes

    def blocked(self) -> bool:
        """Return whether the application does not read the body."""
        return self.wait is Wait.BODY and self.flow.read_paused

    def expire(self) -> None:
        """Close the connection, with an error response if the client can read it."""
        limits = self._table.limits
        if self.lingers or self.transport.is_closing() or self.flow.write_paused:
            self.abort()
        elif self._in_body:
            self._fail(Stalled("body", limits.moving_s, limits.rate_bytes))
        elif self._in_head:
            self._fail(Stalled("head", limits.head_s))
        else:
            self.close()

    def abort(self) -> None:
        """Close the connection at once; drop unsent data, also in the kernel."""
        if self._waits_for() is Wait.IDLE and not self.transport.get_write_buffer_size():
            self.transport.close()  # the client may not have read its response
            return
        kernel = self.transport.get_extra_info("socket")
        if kernel is not None:
            reset(kernel)
        self.transport.abort()

    def close(self, *, linger: bool = False) -> None:
        """Close the connection when everything is written; with `linger`, discard further input."""
        if linger and not self.transport.is_closing():
            self.lingers = True
            self._received_bytes = 0
            if self.transport.can_write_eof():  # TLS cannot close one half
                self.transport.write_eof()
            self.flow.resume_reading()
        else:
            self.transport.close()
        self._update_wait()

    def _fail(self, error: DandelionError) -> None:
        """Close the connection with a problem document if no response has started."""
        cycle = self.cycle
        started = False
        if cycle is not None and not cycle.response_complete:
            started = cycle.response_started
            cycle.disconnected = True
            cycle.waiting_for_100_continue = False
            cycle.message_event.set()
        if not (started or self.transport.is_closing() or self.lingers):
            self.transport.write(closing_response(error))
        self.close(linger=not started)

    # --- input ----------------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        """Parse the input and start its requests."""
        self._received_bytes += len(data)
        if self.lingers:
            if self._received_bytes > LINGER_BYTES:
                self.abort()
            return
        self._beginning = True
        if len(data) <= _PIECE_BYTES:
            self._parse(data)
        else:
            view = memoryview(data)
            for start in range(0, len(view), _PIECE_BYTES):
                self._parse(view[start : start + _PIECE_BYTES])
        if not self._begun or self._table.turns.begins_at_once(self.loop):
            self._begin()
        else:
            self._update_wait()
            self.loop.call_soon(self._begin)

    def _parse(self, piece: Any) -> None:
        if self.lingers or self.transport.is_closing():
            return
        self._feed(piece)
        if not (self._in_head or self._in_body):
            self._head_bytes = 0
            return
        self._head_bytes += len(piece)
        if self._head_bytes > HEAD_LIMIT_BYTES + _PIECE_BYTES:
            self._fail(HeadTooLong(HEAD_LIMIT_BYTES))

    def _feed(self, piece: Any) -> None:
        """Parse a piece; an upgrade is ignored."""
        at = 0
        try:
            while True:
                try:
                    return self.parser.feed_data(memoryview(piece)[at:] if at else piece)
                except HttpParserUpgrade as stopped:
                    at += stopped.args[0]
                    if self._framing is not None:
                        self.parser.feed_data(self._framing)
        except HttpParserError as error:
            malformed = InvalidInput("request", "not valid HTTP/1.1")
            cause = error.__context__
            self._fail(cause if isinstance(cause, RequestError) else malformed)

    def on_message_begin(self) -> None:
        """Called by the parser at the first byte of a head."""
        self._in_head = True
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        """Called by the parser at the end of a head, and of the part of it that is repeated."""
        self._in_head = False
        self._in_body = True
        if self._framing is not None:
            self._framing = None
            return
        if self.parser.should_upgrade():
            self._framing = self._framing_again()
        super().on_headers_complete()
        self.headers = []  # for trailers

    def on_body(self, body: bytes) -> None:
        """Called by the parser with a part of a body."""
        self._head_bytes = 0
        super().on_body(body)

    def _framing_again(self) -> bytes:
        """Return a head with the same body as the current one, without its upgrade.

        Raises:
            NoTunnel: the method is CONNECT.
        """
        if self.parser.get_method() == b"CONNECT":
            raise NoTunnel
        lines = [b"%b: %b\r\n" % header for header in self.headers if header[0] in _FRAMING]
        return b"POST / HTTP/1.1\r\n%b\r\n" % b"".join(lines)

    def on_message_complete(self) -> None:
        """Called by the parser at the end of a request, and where it stops at an upgrade."""
        if self._framing is not None:
            return
        self._in_body = False
        super().on_message_complete()
        self.cycle.more_body = False  # also if the response is complete

    # --- requests -------------------------------------------------------------------------------

    def on_response_complete(self) -> None:
        """Start the next request, or wait for it."""
        self.server_state.total_requests += 1
        self._answered = self._served = True
        if not (self.transport.is_closing() or self.lingers):
            if not self._held:
                self.flow.resume_reading()
            if self.pipeline:
                self._start_asgi_task(*self.pipeline.pop())
        if not self._beginning:
            self._update_wait()
            self._free_request()

    def hold(self) -> None:
        """Read the next request after `RETRY_AFTER_S`, since this one is refused."""
        if not self._held:
            self._held = True
            self.flow.pause_reading()
            self.loop.call_later(RETRY_AFTER_S, self._release)

    def _release(self) -> None:
        self._held = False
        if not self.transport.is_closing():
            self.flow.resume_reading()

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        cycle.__class__ = Cycle
        cycle.protocol = self  # type: ignore[attr-defined]  # it is a `Cycle` now
        scope: Message = cycle.scope  # type: ignore[assignment]  # uvicorn's type has no extensions
        scope["extensions"] = {WHOLE_RESPONSE: {}}
        if self._surplus:
            cycle.keep_alive = False
            if scope["path"] not in OPEN_PATHS:
                scope["state"]["connections"] = self._table.limits.connections
                app = _crowded
        self._begun.append((cycle, app))
        if not self._beginning:  # called from the task of the previous request
            self._beginning = True
            self.loop.call_soon(self._begin)

    def _begin(self) -> None:
        try:
            while self._begun:
                begun, self._begun = self._begun, []
                for cycle, app in begun:
                    self._first_step(cycle, app)
        finally:
            self._beginning = False
            self._update_wait()
            self._free_request()

    def _free_request(self) -> None:
        """Free the data of a complete request."""
        cycle = self.cycle
        if cycle is None or self._in_head or self._in_body or not cycle.response_complete:
            return
        self.cycle = self.scope = self.headers = None  # type: ignore[assignment]  # the initial state

    def _first_step(self, cycle: RequestResponseCycle, app: Any) -> None:
        running = cycle.run_asgi(app)
        if not cycle.more_body:  # without its body a request would wait at once
            try:
                running = finish(running, running.send(None))
            except StopIteration:
                return
        rest = self.loop.create_task(running)
        scope: Any = cycle.scope  # uvicorn's type has no extensions
        scope[TASK] = rest
        rest.add_done_callback(self.tasks.discard)
        self.tasks.add(rest)
