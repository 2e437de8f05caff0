"""One request and its response on uvicorn's protocol; continuing a coroutine in a task.

It extends an undocumented class of uvicorn, see `dandelion.frontend.protocol`.
"""

from __future__ import annotations

from collections.abc import Coroutine, Generator
from typing import Any, Protocol

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, RequestResponseCycle

from dandelion.frontend.asgi import WHOLE_RESPONSE

JOIN_BYTES = 16 * 1024
"""Bodies up to this size are joined with their head. Chunks of larger bodies are not copied."""


class Closing(Protocol):
    """The protocol, as used by its cycles.

    Attributes:
        lingers: whether the sending half of the connection is closed.
    """

    lingers: bool

    def close(self, *, linger: bool = False) -> None:
        """Close the connection when everything is written; with `linger`, discard further input."""

    def hold(self) -> None:
        """Do not read the next request for a while."""


class Cycle(RequestResponseCycle):
    """One request and its response. Also sends messages of the type `WHOLE_RESPONSE`.

    Attributes:
        protocol: of the connection.
    """

    protocol: Closing

    async def send(self, message: Any) -> None:
        """Send an ASGI message or a whole response."""
        if self.protocol.lingers:
            self.disconnected = True
        if message["type"] != WHOLE_RESPONSE:
            await super().send(message)
            return
        if self.flow.write_paused and not self.disconnected:
            await self.flow.drain()
        if self.disconnected or self.transport.is_closing():
            self.disconnected = True
            return
        self.response_started = True
        if self.more_body and (message["close"] or self.waiting_for_100_continue):
            self.keep_alive = False  # the start of the next request is unknown
        head = [STATUS_LINE[message["status"]]]
        for name, value in message["headers"]:
            head += (name, b": ", value, b"\r\n")
        head.append(b"\r\n" if self.keep_alive else b"connection: close\r\n\r\n")
        if message["hold"]:
            self.protocol.hold()
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
            self.protocol.close(linger=self.more_body)
        self.on_response()


class _Rest:
    """The rest of a coroutine whose first step ran outside a task."""

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


async def finish(coroutine: Coroutine[Any, Any, None], awaited: object) -> None:
    """Await the rest of a coroutine. Its first step yielded `awaited`."""
    await _Rest(coroutine, awaited)
