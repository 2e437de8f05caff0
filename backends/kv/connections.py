"""Connections to a server of the Redis protocol, with bounded reading.

The library's parser reads a value into one piece of heap memory, however large it is. The parser
here asks first: a `ValueReceiver` counts the value against the limits, and a large one is written
into a context of its own as it arrives. So neither a value nor a broken server can fill the node's
memory.

It overrides `_read` and `_readline` of the library's parser for the second version of the protocol,
which are not public; the tests with a real server check that they are called. Connections are taken
from the library's pool, which connects, signs in, and drops connections that the server has closed.
"""

from __future__ import annotations

from asyncio import IncompleteReadError
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from redis.asyncio import Connection, ConnectionPool, SSLConnection, UnixDomainSocketConnection
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import ConnectionError as ServerGone

from dandelion.data import Bytes

from ..stores.bodies import OutputBudget
from ..stores.credentials import read_secret
from ..stores.failures import ItemFailed
from .settings import KvStoreSettings, read_address

try:
    from redis._parsers import _AsyncRESP2Parser
except ImportError as error:  # another version of the library
    raise ModuleNotFoundError(str(error), name="redis (version 8)") from None

STREAMED_BYTES = 64 * 1024
"""Values from this size on are written into their context as they arrive."""

_LINE_LIMIT_BYTES = 64 * 1024
_PIECE_BYTES = 256 * 1024


@dataclass(slots=True)
class ValueReceiver:
    """Decides about the values that are read for one piece of a call.

    Attributes:
        budget: of the call.
        value_bytes: largest value of the store.
        progress: called when something has arrived.
        item: name of the item whose reply is read.
        unfinished_bytes: counted for a value that has not arrived as a whole.
    """

    budget: OutputBudget
    value_bytes: int
    progress: Callable[[], None]
    item: str = ""
    unfinished_bytes: int = 0

    def begin(self, size_bytes: int) -> None:
        """Count a value; raises `ItemFailed` or `TooLarge`."""
        if size_bytes > self.value_bytes:
            message = f"the value has {size_bytes} bytes, more than {self.value_bytes}"
            raise ItemFailed(f"{message}, the limit of the store")
        self.budget.take(self.item, size_bytes)
        self.unfinished_bytes = size_bytes

    def finish(self) -> None:
        """Keep what was counted for a value: it is in the results."""
        self.unfinished_bytes = 0

    def give_back(self) -> None:
        """Stop counting a value that did not arrive as a whole; it may be read again."""
        self.budget.give_back(self.unfinished_bytes)
        self.unfinished_bytes = 0


RECEIVER: ContextVar[ValueReceiver | None] = ContextVar("RECEIVER", default=None)
"""Of the piece that the current task reads; None while a connection is made."""


class BoundedParser(_AsyncRESP2Parser):
    """Reads replies; values by way of the `ValueReceiver`."""

    async def _read(self, length: int) -> Any:  # bytes, or a view of a context
        receiver = RECEIVER.get()
        if receiver is None:
            if not 0 <= length <= _LINE_LIMIT_BYTES:
                raise ServerGone("the server's greeting is too long")
        else:
            if length < 0:
                raise ServerGone("the server sent a negative length")
            receiver.begin(length)
            if length >= STREAMED_BYTES:
                return await self._stream_value(receiver, length)
        return await super()._read(length)

    async def _readline(self) -> bytes:
        line = await super()._readline()
        if line[:1] == b"*":  # no command here has a reply of several parts, which has no bound
            raise ServerGone("the server sent a list")
        return line

    async def _stream_value(self, receiver: ValueReceiver, length: int) -> Bytes:
        stream = self._stream
        assert stream is not None, "it is connected"
        context = receiver.budget.context(length)
        start = self._buffer[self._pos : self._pos + length]
        context.write(0, start)
        self._pos += len(start)
        offset = len(start)
        while offset < length:
            piece = await stream.read(min(_PIECE_BYTES, length - offset))
            if not piece:
                raise ServerGone("the server closed the connection")
            context.write(offset, piece)
            offset += len(piece)
            receiver.progress()
        left = 2 - len(self._buffer[self._pos : self._pos + 2])
        self._pos += 2 - left
        try:
            await stream.readexactly(left)
        except IncompleteReadError:
            raise ServerGone("the server closed the connection") from None
        return context.read(0, length)


def open_pool(name: str, given: KvStoreSettings, connect_s: float) -> ConnectionPool:
    """Make the connections of a store; none is opened yet.

    Raises:
        BackendUnavailable: the password cannot be read.
    """
    where = f"store.{name}"
    address = read_address(where, given)
    password = read_secret(f"{where}.password", "kv", given.password_file, given.password_env)
    options: dict[str, Any] = {
        "db": address.database,
        "username": given.user or None,
        "password": password.reveal() if password is not None else None,
        "protocol": 2,
        "parser_class": BoundedParser,
        "retry": Retry(NoBackoff(), 0),  # the engine knows which requests may be repeated
        "socket_timeout": connect_s,  # of the greeting; the engine sets the time of each reply
        "socket_connect_timeout": connect_s,
        "driver_info": None,  # nothing about this client is sent
    }
    kind: type[Any] = Connection
    if address.path:
        kind = UnixDomainSocketConnection
        options["path"] = address.path
    else:
        options |= {"host": address.host, "port": address.port}
        if address.tls:
            kind = SSLConnection
            options["ssl_ca_certs"] = given.ca_file or None
    return ConnectionPool(kind, max_connections=given.concurrency, **options)
