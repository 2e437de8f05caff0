"""uvicorn's protocol, with one shorter way out: a whole reply in one message and one write.

ASGI sends the head and the body of a reply as two messages, of which uvicorn makes two writes. For
a reply of a hundred bytes the second system call costs as much as parsing the request. So this
protocol offers an ASGI extension, ``dandelion.reply``: a message with status, headers and all
chunks of the body. `dandelion.frontend.asgi.Reply` uses it where it is offered and plain ASGI
elsewhere, so the application runs under any server.

Such a request also ends before anything waits, so it needs no task of the loop, see `Protocol`.

It reaches into uvicorn: `_start_asgi_task` and the cycle's attributes.
`tests/node/test_frontend.py` holds both ways against each other.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Coroutine, Generator
from typing import Any

from uvicorn.protocols.http.httptools_impl import (
    STATUS_LINE,
    HttpToolsProtocol,
    RequestResponseCycle,
)

from dandelion.frontend.asgi import TASK, WHOLE_REPLY

HEAD_LIMIT_BYTES = 64 * 1024
"""So many bytes may come for a head after its first piece; see `Protocol`."""
_HEAD_TOO_LONG = (
    b"HTTP/1.1 431 Request Header Fields Too Large\r\n"
    b"content-length: 0\r\nconnection: close\r\n\r\n"
)
JOIN_BYTES = 16 * 1024
"""Up to this size a body is joined to its head; above, the chunks are handed over as they are."""


class Cycle(RequestResponseCycle):
    """One request and its reply; also takes messages of the type `WHOLE_REPLY`."""

    async def send(self, message: Any) -> None:
        """Send one ASGI message, or a whole reply."""
        if message["type"] != WHOLE_REPLY:
            await super().send(message)
            return
        if self.flow.write_paused and not self.disconnected:
            await self.flow.drain()
        if self.disconnected or self.transport.is_closing():
            self.disconnected = True
            return
        self.response_started = True
        self.keep_alive = self.keep_alive and not message["close"]
        head = [STATUS_LINE[message["status"]]]
        for name, value in message["headers"]:
            head += (name, b": ", value, b"\r\n")
        head.append(b"\r\n" if self.keep_alive else b"connection: close\r\n\r\n")
        self._write(head, message["chunks"], message["size"])
        self._complete()

    def _write(self, head: list[bytes], chunks: list[Any], size: int) -> None:
        if self.scope["method"] == "HEAD":
            self.transport.write(b"".join(head))
        elif size <= JOIN_BYTES:
            self.transport.write(b"".join([*head, *chunks]))
        else:
            self.transport.writelines([b"".join(head), *chunks])

    def _complete(self) -> None:
        self.waiting_for_100_continue = False
        self.response_complete = True
        self.message_event.set()
        if not self.keep_alive:
            self.transport.close()
        self.on_response()


class _Rest:
    """The rest of a coroutine whose first step was taken outside of a task."""

    def __init__(self, coroutine: Coroutine[Any, Any, None], awaited: object) -> None:
        self._coroutine = coroutine
        self._awaited = awaited

    def __await__(self) -> Generator[Any, Any, None]:
        awaited = self._awaited
        while True:
            try:
                try:
                    value = yield awaited
                except BaseException as error:
                    awaited = self._coroutine.throw(error)
                else:
                    awaited = self._coroutine.send(value)
            except StopIteration:
                return


async def _finish(coroutine: Coroutine[Any, Any, None], awaited: object) -> None:
    await _Rest(coroutine, awaited)


class Protocol(HttpToolsProtocol):
    """uvicorn's HTTP protocol with `Cycle` for its cycles, begun without a task.

    A cycle is begun when everything that came with its head has been parsed. If that is all of the
    request, its first step is taken at once: a request for a function that answers at once is then
    over, and only one that waits for something becomes a task. A first step is never taken inside
    another request's: not in its task, and not deeper in its stack.

    Heads are bounded: uvicorn and httptools are not, and put long ones together in quadratic time.
    """

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        self._beginning = False
        self._begun: deque[tuple[RequestResponseCycle, Any]] = deque()
        self._head_bytes = 0

    def data_received(self, data: bytes) -> None:
        """Parse what came, then begin the requests that were in it."""
        self._beginning = True
        before = self.scope
        super().data_received(data)
        if self.scope is before and before is not None and "method" not in before:
            self._check_head(len(data))
        else:
            self._head_bytes = 0
        self._begin()

    def _check_head(self, more_bytes: int) -> None:
        """Look at a head that has neither begun nor ended in the last piece."""
        self._head_bytes += more_bytes
        if self._head_bytes > HEAD_LIMIT_BYTES and not self.transport.is_closing():
            self.transport.write(_HEAD_TOO_LONG)
            self.transport.close()

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        cycle.__class__ = Cycle
        cycle.scope["extensions"] = {WHOLE_REPLY: {}}
        self._begun.append((cycle, app))
        if not self._beginning:  # the request before it is over only now, in a task of its own
            self._beginning = True
            self.loop.call_soon(self._begin)

    def _begin(self) -> None:
        try:
            while self._begun:
                self._first_step(*self._begun.popleft())
        finally:
            self._beginning = False

    def _first_step(self, cycle: RequestResponseCycle, app: Any) -> None:
        running = cycle.run_asgi(app)
        if not cycle.more_body:  # without its body a request waits at once, and with a timeout
            try:
                running = _finish(running, running.send(None))
            except StopIteration:
                return
        rest = self.loop.create_task(running)
        scope: Any = cycle.scope  # uvicorn's type has no room for extensions of ours
        scope[TASK] = rest
        rest.add_done_callback(self.tasks.discard)
        self.tasks.add(rest)
