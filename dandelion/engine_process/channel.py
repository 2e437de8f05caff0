"""Whole messages over a stream socket: MessagePack, each with its length before it, and plain data.

Data that belongs to a message follows it. The receiver knows its length from the message, and takes
it with `Channel.fill` before the next message.
"""

from __future__ import annotations

import contextlib
import select
import socket
import struct
import time
from collections.abc import Sequence
from typing import Generic, TypeVar

import msgspec

from dandelion.data import Bytes
from dandelion.polling import Polling

_HEADER = struct.Struct("<I")
MESSAGE_LIMIT_BYTES = 1 << 30
_BUFFER_BYTES = 64 * 1024
_COPY_BYTES = 64 * 1024
"""Longer data is sent from where it lies."""
LONG_S = 86400.0
"""The longest sleep in one piece: the system knows no limit beyond some weeks."""
_ENCODER = msgspec.msgpack.Encoder()
_Message = TypeVar("_Message")


class Ended(Exception):
    """The other side is gone, or sent an invalid message."""


class Channel(Generic[_Message]):
    """One end of the conversation: whole messages, never half of one.

    Nothing here waits unless it is told to: a reply is looked for by threads that have better to do
    than to sleep. One thread at a time sends, one at a time takes.

    Args:
        peer: a stream socket; it becomes non-blocking. The channel closes it.
        decoder: of what comes in.
        limit_bytes: of a message that comes in; a longer one is the end.
    """

    def __init__(
        self,
        peer: socket.socket,
        decoder: msgspec.msgpack.Decoder[_Message],
        limit_bytes: int = MESSAGE_LIMIT_BYTES,
    ) -> None:
        peer.setblocking(False)
        self.peer = peer
        self._limit_bytes = limit_bytes
        self._decoder = decoder
        self._out = bytearray(_HEADER.size)
        self._in = bytearray(_BUFFER_BYTES)
        self._view = memoryview(self._in)
        self._held = 0
        self._emptied = False

    def fileno(self) -> int:
        """Give the descriptor, to wait for it."""
        return self.peer.fileno()

    def close(self) -> None:
        """Close the socket; the other side takes that as the end."""
        self.peer.close()

    def post(self, *messages: msgspec.Struct | Bytes) -> list[memoryview]:
        """Send without waiting, all at once: messages, and data that follows them.

        Returns:
            What there was no room for; it has to be `push`ed before anything else.

        Raises:
            OSError: the other side is gone.
        """
        out = self._out
        at = 0
        full: list[memoryview] = []
        for message in messages:
            if isinstance(message, msgspec.Struct):
                start = at + _HEADER.size
                if len(out) < start:
                    out.extend(bytes(start - len(out)))
                _ENCODER.encode_into(message, out, start)
                _HEADER.pack_into(out, at, len(out) - start)
                at = len(out)
            elif len(message) <= _COPY_BYTES:
                out[at:] = message
                at = len(out)
            else:
                full += [memoryview(out), memoryview(message)]
                self._out = out = bytearray(_HEADER.size)
                at = 0
        if full:
            return full if not at else [*full, self._fresh_out()]
        try:
            sent = self.peer.send(out)
        except BlockingIOError:
            sent = 0
        if sent == at and at <= _BUFFER_BYTES:
            return []
        return [self._fresh_out()[sent:]]

    def _fresh_out(self) -> memoryview:
        """Take the buffer of what is sent, and go on with a new one."""
        out, self._out = self._out, bytearray(_HEADER.size)
        return memoryview(out)

    def push(self, pieces: Sequence[memoryview], limit_s: float | None = None) -> None:
        """Send what is left of messages, and wait until it is.

        Raises:
            OSError: the other side is gone, or takes longer than the limit.
        """
        for piece in pieces:
            at = 0
            while at < len(piece):
                if not self._wait(select.POLLOUT, limit_s):
                    raise TimeoutError("the other side does not read")
                with contextlib.suppress(BlockingIOError):
                    at += self.peer.send(piece[at:])

    def send(self, message: msgspec.Struct, limit_s: float | None = None) -> None:
        """Send a message and wait until it is sent; raises as `push`."""
        rest = self.post(message)
        if rest:
            self.push(rest, limit_s)

    def take(self) -> _Message | None:
        """Give the next message, or None if it is not here yet.

        Raises:
            Ended: there will be none.
        """
        while True:
            size = _HEADER.size
            if self._held >= size:
                size += _HEADER.unpack_from(self._in)[0]
                if size > self._limit_bytes:
                    raise Ended("a message beyond all limits")
                if self._held >= size:
                    return self._cut(size)
            self._make_room(size)
            try:
                got = self.peer.recv_into(self._view[self._held :])
            except BlockingIOError:
                return None
            except OSError as error:
                raise Ended(str(error)) from None
            if not got:
                raise Ended("the end of the stream")
            self._emptied = got < len(self._in) - self._held
            self._held += got

    @property
    def is_empty(self) -> bool:
        """Whether all that had come when it was last read was taken; saves asking again."""
        return self._emptied and not self._held

    def fill(self, data: memoryview) -> int:
        """Take data that follows a message, as much of it as is here; returns how many bytes.

        Raises:
            Ended: there will be no more.
        """
        at = min(self._held, len(data))
        if at:
            data[:at] = self._view[:at]
            self._drop(at)
        while at < len(data):
            try:
                got = self.peer.recv_into(data[at:])
            except BlockingIOError:
                break
            except OSError as error:
                raise Ended(str(error)) from None
            if not got:
                raise Ended("the end of the stream")
            at += got
        return at

    def wait(self, limit_s: float | None = None) -> bool:
        """Wait until there is something to read; False if that takes longer than the limit."""
        return self._wait(select.POLLIN, limit_s)

    def receive(
        self, limit_s: float | None = None, polling: Polling | None = None
    ) -> _Message | None:
        """Wait for the next message; None if it takes longer than the limit.

        Args:
            limit_s: how long in all; None waits for ever.
            polling: of this thread, which polls before it sleeps. It has no regard to the limit.

        Raises:
            Ended: there will be none.
        """
        message = self.take()
        if message is not None:
            return message
        polls = polling is not None and polling.begin()
        end = None if limit_s is None else time.monotonic() + limit_s
        while message is None:
            if polls and polling is not None:
                polls = polling.again()
            elif not self._wait(select.POLLIN, None if end is None else end - time.monotonic()):
                break
            message = self.take()
        if polling is not None:
            polling.ended()
        return message

    def _cut(self, size: int) -> _Message:
        try:
            message = self._decoder.decode(self._view[_HEADER.size : size])
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise Ended(f"a message that cannot be read: {error}") from None
        self._drop(size)
        return message

    def _drop(self, size: int) -> None:
        """Forget the first bytes of what is held."""
        rest = self._held - size
        if rest:
            self._view[:rest] = self._in[size : self._held]
        self._held = rest
        if len(self._in) > _BUFFER_BYTES and rest <= _BUFFER_BYTES:
            self._resize(_BUFFER_BYTES)

    def _make_room(self, size: int) -> None:
        """Grow with what really comes, not with what a header promises."""
        if self._held == len(self._in) and size > len(self._in):
            self._resize(min(size, 4 * len(self._in)))

    def _resize(self, size: int) -> None:
        grown = bytearray(size)
        grown[: self._held] = self._view[: self._held]
        self._in, self._view = grown, memoryview(grown)

    def _wait(self, events: int, limit_s: float | None) -> bool:
        poll = select.poll()
        try:
            poll.register(self.peer, events)
        except ValueError:
            raise OSError("the channel was closed") from None
        if limit_s is None:
            return bool(poll.poll())
        while limit_s > LONG_S:
            if poll.poll(LONG_S * 1e3):
                return True
            limit_s -= LONG_S
        return bool(poll.poll(max(0.0, limit_s) * 1e3))
