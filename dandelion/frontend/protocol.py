"""uvicorn's protocol, with one shorter way out: a whole reply in one message and one write.

ASGI sends the head and the body of a reply as two messages, of which uvicorn makes two writes. For
a reply of a hundred bytes the second system call costs as much as parsing the request. So this
protocol offers an ASGI extension, ``dandelion.reply``: a message with status, headers and all
chunks of the body. `dandelion.frontend.asgi.Reply` uses it where it is offered and plain ASGI
elsewhere, so the application runs under any server.

It reaches into uvicorn: `_start_asgi_task` and the cycle's attributes.
`tests/node/test_frontend.py` holds both ways against each other.
"""

from __future__ import annotations

from typing import Any

from uvicorn.protocols.http.httptools_impl import (
    STATUS_LINE,
    HttpToolsProtocol,
    RequestResponseCycle,
)

from dandelion.frontend.asgi import WHOLE_REPLY

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
        if self.disconnected:
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


class Protocol(HttpToolsProtocol):
    """uvicorn's HTTP protocol with `Cycle` for its cycles."""

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        cycle.__class__ = Cycle
        cycle.scope["extensions"] = {WHOLE_REPLY: {}}
        super()._start_asgi_task(cycle, app)
