"""The protocol of HTTP/1.1 connections: requests in order, time-outs, whole responses.

In ASGI, head and body of a response are two messages, and servers write each. For a response of a
hundred bytes the second system call costs as much as parsing the request. So this protocol has an
ASGI extension, ``dandelion.response``: one message with a whole `Response`.
`dandelion.frontend.asgi.Response` uses it if the server has it, else plain ASGI, so the application
runs under any server. Such a request often completes without waiting and needs no task, see
`Cycle`. A body that is there when the application is called is in the scope, and a head that was
parsed lately is not parsed again (`KnownHeads`).

The server's `ConnectionTable` knows what each connection waits for, and closes it after a time-out.
A connection that is closed before its whole request was read **lingers**: the response is written,
the sending half is closed, and further input is discarded for some time. If it were closed at once,
the kernel would reset it, and the client could lose the response.

`tests/node/test_frontend.py` compares whole responses with plain ASGI under uvicorn.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any

import uvicorn
from uvicorn.server import ServerState

from dandelion.errors import DandelionError
from dandelion.frontend.acceptor import Newcomer
from dandelion.frontend.access import OPEN_PATHS
from dandelion.frontend.admission import (
    LINGER_S,
    Peer,
    Wait,
    acknowledged_bytes,
    close_gently,
    reset,
)
from dandelion.frontend.asgi import (
    TASK,
    Application,
    Message,
)
from dandelion.frontend.cycle import Cycle
from dandelion.frontend.flow_control import FlowControl
from dandelion.frontend.heads import KnownHeads, connection_scope
from dandelion.frontend.problem import Stalled
from dandelion.frontend.problem_response import (
    CONNECTION_LIMIT_KEY,
    RETRY_AFTER_S,
    closing_response,
    refuse_surplus,
)
from dandelion.frontend.request_parser import PIECE_BYTES, RequestParser

LINGER_BYTES = 1024 * 1024 * 1024
"""How much input of a lingering connection is discarded before it is reset."""
LATE_BYTES = 1024 * 1024
"""How much of a chunked body is parsed after its response, so that the connection can go on."""
KEPT_BYTES = 64 * 1024
"""While more input than this waits to be parsed, nothing is read."""
TURN_STEPS = 16
"""Pieces of input that a connection parses, and requests that it starts, in one turn."""
_STEPS = range(TURN_STEPS)
_NOTHING = memoryview(b"")


class Protocol(FlowControl):
    """A connection of HTTP/1.1.

    A request starts when all input that arrived with its head is parsed, or in the next iteration
    of the loop if many have (`Turns`). If it is complete by then, its first step runs at once. Most
    requests complete in this step; the others continue in a task. The first step of a request never
    runs inside the step of another request.

    A client may **pipeline**: send requests before the response to an earlier one. A request takes
    more memory than its bytes, and libuv gives a connection that sends fast up to 8 MiB before it
    looks at others. So nothing is parsed while a parsed request waits for the one before it. Other
    input is kept as it is, up to `KEPT_BYTES`; then the connection is not read. It is read until
    then, so that the end of the connection is noticed while a request runs. A connection takes
    **turns** of `TURN_STEPS`, one in each iteration of the loop.

    The data of a request is freed when it is complete, not when the next request arrives. With
    thousands of connections that is much later.

    A request that is refused since the node has too many (429) is answered at once, but the next
    one on its connection is not read before the time that `Retry-After` names. Otherwise clients
    that repeat it at once could keep the node busy with refusals. After a refusal for a tenant's
    limit it is read at once: others may use the same connection.

    A surplus connection (`ConnectionTable`) gets one response: the health of the node, or the error
    that there are too many connections.

    Args:
        config: of the server.
        server_state: of the server.
        heads: those that were parsed lately.
        newcomer: its place in the table is taken by this connection.

    Attributes:
        cycle: the last request whose head was read; None if it is complete and answered.
    """

    __slots__ = (
        "_active",
        "_answered",
        "_app",
        "_base",
        "_beginning",
        "_begun",
        "_body_full",
        "_heads",
        "_held",
        "_late_bytes",
        "_newcomer",
        "_parser",
        "_received_bytes",
        "_rest",
        "_served",
        "_server_state",
        "_surplus",
        "_table",
        "_waiting",
        "address",
        "cycle",
        "lingers",
        "loop",
        "mark",
        "peer",
        "since",
        "wait",
    )

    def __init__(
        self,
        config: uvicorn.Config,
        server_state: ServerState,
        heads: KnownHeads,
        *,
        newcomer: Newcomer,
    ) -> None:
        super().__init__()
        if not config.loaded:
            config.load()
        self._app: Application = config.loaded_app
        self._server_state = server_state
        self._heads = heads
        self._newcomer: Newcomer | None = newcomer
        self._table = newcomer.table
        self.loop = asyncio.get_running_loop()
        self._parser = RequestParser(self)
        self._base: Message = {}  # what all requests of the connection have
        # The current request:
        self.cycle: Cycle | None = None
        self._active: Cycle | None = None  # the one that is answered: it, or one before it
        self._waiting: deque[Cycle] = deque()  # pipelined ones
        self._rest = _NOTHING  # input that is not parsed yet
        self._beginning = False  # whether a turn runs or is scheduled
        self._begun: Cycle | None = None  # its first step is next
        self._served = False
        self._received_bytes = 0
        self._late_bytes = 0  # of a chunked body, after its response
        self._answered = False
        self._held = False
        self._body_full = False
        self._surplus = newcomer.surplus
        self.lingers = False
        # Used by the table:
        self.address = newcomer.address
        self.wait: Wait | None = None
        self.since = 0.0
        self.mark = 0
        self.peer: Peer | None = None

    # --- the connection -------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # uvloop's
        """Take the newcomer's place in the table."""
        self.transport = transport
        self._server_state.connections.add(self)  # type: ignore[arg-type]  # uvicorn only calls shutdown()
        self._base = connection_scope(transport)
        if self._newcomer is not None:
            self._table.replace(self._newcomer, self, self.loop.time())
            self._newcomer = None

    def connection_lost(self, exc: Exception | None) -> None:
        """Leave the table, and end the request."""
        self._table.forget(self)
        self._server_state.connections.discard(self)
        self._leave()
        self.resume_writer()
        self.cycle = self._active = None
        self._parser.close()

    def shutdown(self) -> None:
        """Finish the request that runs; called by the server."""
        if self.cycle is None or self.cycle.response_complete:
            self.close()
        else:
            self.cycle.keep_alive = False

    def update_wait(self) -> None:
        wait = self._waits_for()
        if wait is not self.wait or self._answered:
            self._table.enter(self, wait, self.loop.time())
        self._answered = False

    def _waits_for(self) -> Wait | None:
        if self.lingers:
            return Wait.LINGER
        if self.transport.is_closing():
            return Wait.RESPONSE
        if self.write_paused:
            return Wait.RESPONSE
        if self._rest:
            return None
        if self._parser.in_body:
            return Wait.BODY
        if self.cycle is not None and not self.cycle.response_complete:
            return None
        return Wait.IDLE if self._served and not self._parser.in_head else Wait.HEAD

    # --- for the table --------------------------------------------------------------------------

    def moved(self) -> int:
        """Return the number of bytes received, or read by the client while it reads a response."""
        if self.wait is Wait.RESPONSE:
            return acknowledged_bytes(self.transport)
        return self._received_bytes

    def blocked(self) -> bool:
        """Return whether the application does not read the body."""
        return self.wait is Wait.BODY and self.read_paused

    def expire(self) -> None:
        """Close the connection, with an error response if the client can read it."""
        limits = self._table.limits
        if self.lingers or self.transport.is_closing() or self.write_paused:
            self.abort()
        elif self._parser.in_body:
            self._fail(Stalled("body", limits.moving_s, limits.rate_bytes))
        elif self._parser.in_head:
            self._fail(Stalled("head", limits.head_s))
        else:
            self.close()

    def abort(self) -> None:
        """Close the connection at once; drop unsent data, also in the kernel."""
        if self._waits_for() is Wait.IDLE and not self.transport.get_write_buffer_size():
            # The client may not have read its response, and the table counts it no longer.
            close_gently(self.transport, self.loop, LINGER_S)
            return
        kernel = self.transport.get_extra_info("socket")
        if kernel is not None:
            reset(kernel)
        self.transport.abort()

    def close(self, *, linger: bool = False) -> None:
        """Close the connection when everything is written; with `linger`, discard further input."""
        self._rest = _NOTHING
        if linger and not self.transport.is_closing():
            self.lingers = True
            self._received_bytes = 0
            if self.transport.can_write_eof():  # TLS cannot close one half
                self.transport.write_eof()
            self._update_reading()
        elif not self.transport.is_closing():
            close_gently(self.transport, self.loop)
        self.update_wait()

    def _fail(self, error: DandelionError) -> None:
        """Close the connection with a problem document if no response has started."""
        cycle = self._active
        started = False
        if cycle is not None and not cycle.response_complete:
            started = cycle.response_started
        self._leave()
        if not (started or self.transport.is_closing() or self.lingers):
            self.transport.write(closing_response(error))
        self.close(linger=not started)

    def _leave(self) -> None:
        """End all requests, since they will get no response."""
        self._waiting.clear()
        self._rest = _NOTHING
        for cycle in (self._active, self.cycle):
            if cycle is not None:
                cycle.leave()

    # --- input ----------------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        """Parse the input and start its requests."""
        self._received_bytes += len(data)
        if self.lingers:
            if self._received_bytes > LINGER_BYTES:
                self.abort()
            return
        if self._beginning or self._waiting or self._rest:
            self._keep(data)
            return
        self._beginning = True
        if self.cycle is not None or self._parser.in_head or not self._begin_known(data):
            self._parse_first(data)
        self._take_turn(False)

    def _keep(self, data: bytes) -> None:
        """Parse the input in a later turn."""
        self._rest = memoryview(b"".join((self._rest, data)) if self._rest else data)
        self._update_reading()
        self.update_wait()

    def _begin_known(self, data: bytes) -> bool:
        """Start a request whose head was parsed lately, and that is all of the input."""
        known = self._heads.find(data)
        if known is None:
            return False
        head, end = known
        self.cycle = cycle = Cycle(
            self,
            {**head, **self._base},
            keep_alive=True,
            expects_continue=False,
            body=data[end:],
        )
        self._begin_cycle(cycle)
        return True

    def _parse_first(self, data: bytes) -> None:
        """Parse input before which there is no other."""
        is_start = self.cycle is None and not self._parser.in_head
        if len(data) <= PIECE_BYTES:
            self._parse(data)
        else:
            self._rest = memoryview(data)
            for _ in range(TURN_STEPS):
                if self._waiting or not self._rest:
                    break
                self._parse_rest()
        if (
            is_start
            and self._begun is not None
            and not (self._rest or self._parser.in_head or self._parser.in_body)
        ):
            self._heads.add(data, self._begun)

    def _parse_rest(self) -> None:
        """Parse a piece of the input that was kept."""
        size = self._parser.piece_bytes
        piece, self._rest = self._rest[:size], self._rest[size:]
        self._parse(piece)
        if self.read_paused:
            self._update_reading()

    def _parse(self, piece: Any) -> None:
        if self.lingers or self.transport.is_closing():
            self._rest = _NOTHING
            return
        try:
            self._parser.parse(piece)
        except DandelionError as error:
            self._fail(error)
        if self._parser.in_open_body:
            self._count_late(len(piece))

    def _count_late(self, size_bytes: int) -> None:
        """Close the connection if a chunked body continues for long after its response."""
        cycle = self.cycle
        if cycle is None or not cycle.response_complete:
            return
        self._late_bytes += size_bytes
        if self._late_bytes > LATE_BYTES and not self.lingers:
            self.close(linger=True)

    def begin_request(self, head: Message, *, keep_alive: bool, expects_continue: bool) -> None:
        """Called by the parser with a head: start the request, after those before it."""
        before = self.cycle
        self._late_bytes = 0
        self.cycle = cycle = Cycle(
            self,
            {**head, **self._base},
            keep_alive=keep_alive,
            expects_continue=expects_continue,
        )
        if before is None or before.response_complete:
            self._begin_cycle(cycle)
        else:
            self._waiting.append(cycle)

    def pause_reading(self) -> None:
        """Read no more input, since the application has not taken what there is of the body."""
        self._body_full = True
        self._update_reading()

    def resume_reading(self) -> None:
        """Read input again, unless there is another reason not to."""
        self._body_full = False
        self._update_reading()

    def _update_reading(self) -> None:
        is_full = self._body_full or self._held or len(self._rest) > KEPT_BYTES
        if is_full and not self.lingers:
            super().pause_reading()
        else:
            super().resume_reading()

    # --- requests -------------------------------------------------------------------------------

    def on_response_complete(self) -> None:
        """Start the next request, or wait for it."""
        self._server_state.total_requests += 1
        self._answered = self._served = True
        if not (self.transport.is_closing() or self.lingers):
            if self.read_paused:
                self.resume_reading()
            if self._waiting:
                self._begin_cycle(self._waiting.popleft())
        if not self._beginning:
            self.update_wait()
            self._free_request()

    def hold(self) -> None:
        """Read the next request after `RETRY_AFTER_S`, since this one is refused."""
        if not self._held:
            self._held = True
            self._update_reading()
            self.loop.call_later(RETRY_AFTER_S, self._release)

    def _release(self) -> None:
        self._held = False
        if self.transport.is_closing():
            return
        self._update_reading()
        if not self._beginning:
            self._beginning = True
            self._take_turn(True)

    def _begin_cycle(self, cycle: Cycle) -> None:
        """Start a request when all input is parsed."""
        if self._surplus:
            cycle.keep_alive = False
            cycle.scope[CONNECTION_LIMIT_KEY] = self._table.limits.connections
        self._active = cycle
        self._begun = cycle
        if not self._beginning:  # called from the task of the previous request
            self._take_turn_soon()

    def _take_turn_soon(self) -> None:
        self._beginning = True
        self.loop.call_soon(self._take_turn, True)

    def _take_turn(self, is_due: bool) -> None:
        """Parse input that was kept, and start requests; the rest follows in the next turn.

        Args:
            is_due: whether a request starts also if many have started in this iteration.
        """
        has_more = True
        try:
            for _ in _STEPS:
                if self._rest and not (self._waiting or self._held):
                    self._parse_rest()
                    continue
                cycle = self._begun
                if cycle is None:
                    has_more = False
                    break
                if not (is_due or self._table.turns.begins_at_once(self.loop)):
                    break
                is_due = False
                self._begun = None
                self._first_step(cycle)
        finally:
            if has_more:
                self._take_turn_soon()
            else:
                self._beginning = False
            if self._rest:
                self._update_reading()
            self.update_wait()
            self._free_request()

    def _free_request(self) -> None:
        """Free the data of a complete request."""
        cycle = self.cycle
        if (
            cycle is None
            or self._parser.in_head
            or self._parser.in_body
            or not cycle.response_complete
        ):
            return
        self.cycle = self._active = None

    def _first_step(self, cycle: Cycle) -> None:
        is_crowded = self._surplus and cycle.scope["path"] not in OPEN_PATHS
        rest = cycle.begin(refuse_surplus if is_crowded else self._app)
        if rest is None:
            return
        task = self.loop.create_task(rest)
        cycle.scope[TASK] = task
        tasks = self._server_state.tasks
        task.add_done_callback(tasks.discard)
        tasks.add(task)
