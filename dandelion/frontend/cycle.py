"""One request and its reply on uvicorn's protocol, and a coroutine that goes on in a task.

It extends an undocumented class of uvicorn, see `dandelion.frontend.protocol`.
"""

from __future__ import annotations

from collections.abc import Coroutine, Generator
from typing import Any, Protocol

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, RequestResponseCycle

from dandelion.frontend.asgi import WHOLE_REPLY

JOIN_BYTES = 16 * 1024
"""Up to this size a body is joined to its head; above, the chunks are handed over as they are."""


class Closing(Protocol):
    """A protocol, as its cycles see it.

    Attributes:
        lingers: whether nothing can be written any more.
    """

    lingers: bool

    def close(self, *, linger: bool = False) -> None:
        """End the connection when everything is written, and perhaps read on until then."""


class Cycle(RequestResponseCycle):
    """One request and its reply; also takes messages of the type `WHOLE_REPLY`.

    Attributes:
        protocol: of its connection.
    """

    protocol: Closing

    async def send(self, message: Any) -> None:
        """Send one ASGI message, or a whole reply."""
        if self.protocol.lingers:
            self.disconnected = True
        if message["type"] != WHOLE_REPLY:
            await super().send(message)
            return
        if self.flow.write_paused and not self.disconnected:
            await self.flow.drain()
        if self.disconnected or self.transport.is_closing():
            self.disconnected = True
            return
        self.response_started = True
        if self.more_body and (message["close"] or self.waiting_for_100_continue):
            self.keep_alive = False  # where the next request would begin is unknown
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
            self.protocol.close(linger=self.more_body)
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


async def finish(coroutine: Coroutine[Any, Any, None], awaited: object) -> None:
    """Await the rest of a coroutine, of which the first step gave `awaited`."""
    await _Rest(coroutine, awaited)
