"""uvicorn's protocol, with one shorter way out, and with an end to all waiting.

ASGI sends the head and the body of a reply as two messages, of which uvicorn makes two writes. For
a reply of a hundred bytes the second system call costs as much as parsing the request. So this
protocol offers an ASGI extension, ``dandelion.reply``: a message with status, headers and all
chunks of the body. `dandelion.frontend.asgi.Reply` uses it where it is offered and plain ASGI
elsewhere, so the application runs under any server.

Such a request also ends before anything waits, so it needs no task of the loop, see `Protocol`.

What a connection is waited for is in the server's `ConnectionTable`, which ends it in time. A
connection that ends before its request is read whole **lingers**: the reply is written, the sending
half is closed, and what still comes is thrown away for a while. Closed at once, the kernel would
reset the connection, and the reset destroys a reply that the client has not read.

It extends classes of uvicorn that are not documented, so `pyproject.toml` pins uvicorn to the
tested releases, and `tests/node/test_uvicorn_range.py` checks the names that are used.
`tests/node/test_frontend.py` compares whole replies with plain ASGI.
"""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from dandelion.errors import DandelionError, InvalidInput
from dandelion.frontend.acceptor import Newcomer
from dandelion.frontend.access import OPEN_PATHS
from dandelion.frontend.admission import Peer, Wait, reset
from dandelion.frontend.asgi import TASK, WHOLE_REPLY, Message, Receive, Scope, Send
from dandelion.frontend.cycle import Cycle, finish
from dandelion.frontend.problem import (
    Crowded,
    HeadTooLong,
    Stalled,
    closing_answer,
    problem_reply,
)

HEAD_LIMIT_BYTES = 64 * 1024
"""So long a head may be; see `Protocol`."""
LINGER_BYTES = 1024 * 1024 * 1024
"""So much of what a client sends after its last reply is thrown away before it is cut off."""
_PIECE_BYTES = 64 * 1024


async def _crowded(scope: Scope, receive: Receive, send: Send) -> None:
    """Answer a request on a surplus connection."""
    reply = problem_reply(Crowded(scope["state"]["connections"]))
    await reply.send(send, scope["extensions"])


class Protocol(HttpToolsProtocol):
    """uvicorn's HTTP protocol with `Cycle` for its cycles, begun without a task.

    A cycle is begun when everything that came with its head has been parsed. If that is all of the
    request, its first step is taken at once: a request for a function that answers at once is then
    over, and only one that waits for something becomes a task. A first step is never taken inside
    another request's: not in its task, and not deeper in its stack.

    Heads are bounded: uvicorn and httptools are not, and put long ones together in quadratic time.
    What comes is parsed in pieces, and all pieces at whose end a head is incomplete count, so that
    up to one piece more than the limit is held.

    What belongs to a request is let go when it is answered, while it is in the caches, and not when
    the next one comes: with thousands of connections the next one of each is far away.

    On a surplus connection, see `ConnectionTable`, one request is answered: how the node is, or
    that there are too many connections.

    Args:
        newcomer: whose place in its table this connection takes.
    """

    # Dictionaries of attributes share their keys up to thirty of them; uvicorn has as many.
    __slots__ = (
        "_answered",
        "_beginning",
        "_begun",
        "_head_bytes",
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
        self._received_bytes = 0
        self._in_head = False
        self._in_body = False
        self._answered = False
        self._surplus = newcomer.surplus
        self.lingers = False
        # Of the table:
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
        """Give the place back."""
        self._table.forget(self)
        super().connection_lost(exc)
        self.cycle = None  # type: ignore[assignment]  # it refers to this, and is not needed

    def pause_writing(self) -> None:
        """Wait for the client to read."""
        super().pause_writing()
        self._update_wait()

    def resume_writing(self) -> None:
        """Go on."""
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
            return Wait.REPLY if self.transport.get_write_buffer_size() else None
        if self.flow.write_paused:
            return Wait.REPLY
        if self._in_body:
            return Wait.BODY
        if self.cycle is not None and not self.cycle.response_complete:
            return None
        return Wait.IDLE if self._served and not self._in_head else Wait.HEAD

    # --- for the table --------------------------------------------------------------------------

    def moved(self) -> int:
        """Count what came, or what the client has read of a reply."""
        if self.wait is Wait.REPLY:
            return -self.transport.get_write_buffer_size()
        return self._received_bytes

    def blocked(self) -> bool:
        """Tell whether the application does not read the body."""
        return self.wait is Wait.BODY and self.flow.read_paused

    def expire(self) -> None:
        """Say what did not come, if the client can still read that, and end the connection."""
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
        """End the connection at once, and drop what is not yet sent, also in the kernel."""
        if self._waits_for() is Wait.IDLE and not self.transport.get_write_buffer_size():
            self.transport.close()  # its client has done no harm, and may not have read its reply
            return
        kernel = self.transport.get_extra_info("socket")
        if kernel is not None:
            reset(kernel)
        self.transport.abort()

    def close(self, *, linger: bool = False) -> None:
        """End the connection when everything is written, and perhaps read on until then."""
        if linger and not self.transport.is_closing():
            self.lingers = True
            self._received_bytes = 0
            self.transport.write_eof()
            self.flow.resume_reading()
        else:
            self.transport.close()
        self._update_wait()

    def _fail(self, error: DandelionError) -> None:
        """End the connection with a problem, in place of the reply that has not begun."""
        cycle = self.cycle
        started = False
        if cycle is not None and not cycle.response_complete:
            started = cycle.response_started
            cycle.disconnected = True
            cycle.waiting_for_100_continue = False
            cycle.message_event.set()
        if not (started or self.transport.is_closing() or self.lingers):
            self.transport.write(closing_answer(error))
        self.close(linger=not started)

    # --- what comes -----------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        """Parse what came, then begin the requests that were in it."""
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
        self._begin()

    def _parse(self, piece: Any) -> None:
        if self.lingers or self.transport.is_closing():
            return
        super().data_received(piece)
        if not self._in_head:
            self._head_bytes = 0
            return
        self._head_bytes += len(piece)
        if self._head_bytes > HEAD_LIMIT_BYTES + _PIECE_BYTES:
            self._fail(HeadTooLong(HEAD_LIMIT_BYTES))

    def send_400_response(self, msg: str) -> None:
        """Say that this is no request."""
        self._fail(InvalidInput("request", "it is not valid HTTP/1.1"))

    def on_message_begin(self) -> None:
        """Hear of the first byte of a head, from the parser."""
        self._in_head = True
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        """Hear of the end of a head, from the parser."""
        self._in_head = False
        self._in_body = True
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        """Hear of the end of a request, from the parser."""
        self._in_body = False
        super().on_message_complete()
        self.cycle.more_body = False  # also if it is answered already

    # --- requests -------------------------------------------------------------------------------

    def on_response_complete(self) -> None:
        """Go on with the next request, or wait for it."""
        self.server_state.total_requests += 1
        self._answered = self._served = True
        if not (self.transport.is_closing() or self.lingers):
            self.flow.resume_reading()
            if self.pipeline:
                self._start_asgi_task(*self.pipeline.pop())
        if not self._beginning:
            self._update_wait()
            self._let_go()

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        cycle.__class__ = Cycle
        cycle.protocol = self  # type: ignore[attr-defined]  # it is a `Cycle` now
        scope: Message = cycle.scope  # type: ignore[assignment]  # uvicorn's type has no extensions
        scope["extensions"] = {WHOLE_REPLY: {}}
        if self._surplus:
            cycle.keep_alive = False
            if scope["path"] not in OPEN_PATHS:
                scope["state"]["connections"] = self._table.limits.connections
                app = _crowded
        self._begun.append((cycle, app))
        if not self._beginning:  # the request before it is over only now, in a task of its own
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
            self._let_go()

    def _let_go(self) -> None:
        """Keep nothing of a request that is over."""
        cycle = self.cycle
        if cycle is None or self._in_head or self._in_body or not cycle.response_complete:
            return
        self.cycle = self.scope = self.headers = None  # type: ignore[assignment]  # as at first

    def _first_step(self, cycle: RequestResponseCycle, app: Any) -> None:
        running = cycle.run_asgi(app)
        if not cycle.more_body:  # without its body a request waits at once
            try:
                running = finish(running, running.send(None))
            except StopIteration:
                return
        rest = self.loop.create_task(running)
        scope: Any = cycle.scope  # uvicorn's type has no room for extensions of ours
        scope[TASK] = rest
        rest.add_done_callback(self.tasks.discard)
        self.tasks.add(rest)
