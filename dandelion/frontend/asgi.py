"""The interface to the ASGI server: its types, and the two records that handlers work with.

An `Exchange` is one request; a `Reply` is what a handler gives back. A reply's body is a list of
chunks, which may be views into the arena: they go to the socket one by one and are never joined.

Source: ASGI 3.0, HTTP connection scope.
"""

from __future__ import annotations

import asyncio
import urllib.parse
from collections.abc import Awaitable, Callable, Iterable, Mapping, MutableMapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, TypeAlias

from dandelion.data import Bytes
from dandelion.errors import InvalidInput, nearest

# ASGI messages are dictionaries whose values depend on their "type".
Message: TypeAlias = MutableMapping[str, Any]
Scope: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Message]]
Send: TypeAlias = Callable[[Message], Awaitable[None]]
Header: TypeAlias = tuple[bytes, bytes]

JSON = b"application/json"
WHOLE_REPLY = "dandelion.reply"
TASK = "dandelion.task"
"""Where a server that began a request without a task puts the one that it got later."""
WATCH_AFTER_S = 0.02
NAME_LIMIT = 128  # characters; looking for near names costs their length squared


@dataclass(slots=True)
class Reply:
    """What a handler answers.

    Attributes:
        chunks: the body, in pieces; at least one.
        media_type: its Content-Type.
        status: the HTTP status.
        headers: further headers; Content-Length is added when it is sent.
        close: whether the connection ends with this reply, unless the request was read whole.
    """

    chunks: list[Bytes]
    media_type: bytes = JSON
    status: int = 200
    headers: list[Header] = field(default_factory=list)
    close: bool = False

    async def send(self, send: Send, extensions: Mapping[str, object]) -> None:
        """Write status, headers and body to the connection.

        Args:
            send: of the ASGI server.
            extensions: what the server offers, see `dandelion.frontend.protocol`.
        """
        chunks = self.chunks
        size = len(chunks[0]) if len(chunks) == 1 else sum(map(len, chunks))
        headers = [
            (b"content-type", self.media_type),
            (b"content-length", b"%d" % size),
            *self.headers,
        ]
        if WHOLE_REPLY in extensions:
            message = {"type": WHOLE_REPLY, "status": self.status, "headers": headers}
            await send({**message, "chunks": chunks, "size": size, "close": self.close})
            return
        if self.close:
            headers.append((b"connection", b"close"))
        await send({"type": "http.response.start", "status": self.status, "headers": headers})
        for chunk in chunks[:-1]:
            await send({"type": "http.response.body", "body": chunk, "more_body": True})
        await send({"type": "http.response.body", "body": chunks[-1]})


class Departure:
    """Cancels the coroutine of a request when its client leaves.

    Watching the connection takes a coroutine of its own, so it begins only after `WATCH_AFTER_S`.

    Args:
        exchange: the request. Its coroutine is the current task, or, where the server began it
            without one, the task in the scope's `TASK`.
        loop: the loop.

    Attributes:
        seen: whether the client left.
    """

    __slots__ = ("_owner", "_receive", "_scope", "_timer", "_watch", "seen")

    def __init__(self, exchange: Exchange, loop: asyncio.AbstractEventLoop) -> None:
        self.seen = False
        self._receive = exchange.receive
        self._scope = exchange.scope
        self._owner = asyncio.current_task(loop)
        self._watch: asyncio.Task[None] | None = None
        self._timer = loop.call_later(WATCH_AFTER_S, self._begin, loop)

    def _begin(self, loop: asyncio.AbstractEventLoop) -> None:
        self._watch = loop.create_task(self._wait())

    async def _wait(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self.seen = True
        owner: asyncio.Task[None] | None = self._owner or self._scope.get(TASK)
        if owner is not None:
            owner.cancel()

    def stop_watching(self) -> None:
        """Let the client go unnoticed from now on."""
        self._timer.cancel()
        if self._watch is not None:
            self._watch.cancel()


class Exchange:
    """One request: its parts, parsed when they are first asked for.

    Args:
        scope: the ASGI scope.
        receive: gives the body, then the news that the client left.
    """

    def __init__(self, scope: Scope, receive: Receive) -> None:
        self.scope = scope
        self.method: str = scope["method"]
        self.path: str = scope["path"]
        self.receive = receive
        self.headers: dict[bytes, bytes] = dict(scope["headers"])
        self.raw_query: bytes = scope["query_string"]
        self.invocation = ""  # its id, once there is one
        self.departure: Departure | None = None
        self.close = False  # whether the rest of the body is not worth waiting for
        self.answer_headers: list[Header] = []  # for whatever is answered

    @property
    def client_left(self) -> bool:
        """Whether the request was cancelled since its client left."""
        return self.departure is not None and self.departure.seen

    def watch(self) -> None:
        """Cancel the request from now on if its client leaves."""
        if self.departure is None:
            self.departure = Departure(self, asyncio.get_running_loop())

    def stop_watching(self) -> None:
        """Let the client go unnoticed from now on."""
        if self.departure is not None:
            self.departure.stop_watching()

    def header(self, name: bytes) -> str:
        """Give a header's value, or an empty string."""
        return self.headers.get(name, b"").decode("latin-1").strip()

    @cached_property
    def query(self) -> dict[str, str]:
        """The parameters of the query string; of a repeated one, the last."""
        if not self.raw_query:
            return {}
        text = self.raw_query.decode("latin-1")
        try:
            pairs = urllib.parse.parse_qsl(text, keep_blank_values=True, max_num_fields=32)
        except ValueError as error:
            raise InvalidInput("query", str(error)) from None
        return dict(pairs)

    def expect_query(self, known: Iterable[str]) -> None:
        """Refuse parameters that the route does not have, so that a typing error is no silence.

        Raises:
            InvalidInput: with the nearest known name.
        """
        if not self.raw_query:
            return
        known = tuple(known)
        for name in self.query:
            if name not in known:
                where = f"query.{clipped(name)}"
                hint = did_you_mean(name, known)
                raise InvalidInput(where, "there is no such parameter here", hint)

    @property
    def version(self) -> int | None:
        """The parameter ``version``.

        Raises:
            InvalidInput: it is not a positive integer.
        """
        text = self.query.get("version") if self.raw_query else None
        if text is None:
            return None
        if not (text.isascii() and text.isdigit() and 0 < len(text) < 10 and int(text)):
            message = f"'{clipped(text)}' is not a positive integer"
            raise InvalidInput("query.version", message)
        return int(text)


def clipped(text: str, limit: int = 80) -> str:
    """Shorten what a client sent, to be quoted in a message."""
    return text if len(text) <= limit else f"{text[:limit]}..."


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Ask for the nearest known name; empty if none is near, or `name` is no name at all."""
    close = nearest(name, known) if len(name) <= NAME_LIMIT else None
    return f"did you mean '{close}'?" if close else ""
