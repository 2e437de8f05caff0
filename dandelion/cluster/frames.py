"""Frames over a connection: received without copies, sent without copies.

A frame is 8 bytes (length of the message, length of the data, both little-endian), the message, and
the data. What arrives is read into a small buffer; the data of a frame is read straight into the
memory that the receiver chose for it (`Frames.sink`), except for what came with the message.

What the transport does not take waits here (`_Waiting`): heartbeats first, then the rest in order.
So the queue is no deeper than one frame where it matters, and calls of any size may follow each
other. A peer that takes nothing for `STALL_NS` is given up, and so is one that makes this end queue
more than `QUEUE_LIMIT_BYTES` of answers that it asked for.

A peer that breaks the rules gets its connection ended. Nothing that it sends is larger in memory
than the limits in `messages`, and no frame is read before the peer has proved its membership.
"""

from __future__ import annotations

import asyncio
import logging
import struct
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import cast

import msgspec

from dandelion.cluster.handshake import BadPeer, Handshake
from dandelion.cluster.messages import (
    CONTROL_LIMIT_BYTES,
    DATA_LIMIT_BYTES,
    Message,
    decode,
    encode,
)
from dandelion.data import Bytes
from dandelion.errors import TooLarge

_HEAD = struct.Struct("<II")
_BUFFER_BYTES = 64 * 1024
QUEUE_LIMIT_BYTES = 64 << 20
"""A peer that asks for more than this, and reads nothing, is broken."""
HIGH_WATER_BYTES = 1 << 20
"""The transport takes no further frame while it has more than this."""
STALL_NS = 10_000_000_000
"""After so long without any progress a connection on which something waits is given up."""
SMALL_BYTES = 4096
"""So much data is put into one buffer with its message, which costs less than a second one."""

log = logging.getLogger("dandelion.cluster")


@dataclass(frozen=True, slots=True, eq=False)
class _Waiting:
    """A frame that the transport has not taken; `counted` bytes are in the limit."""

    buffers: list[Bytes]
    counted: int


class Frames(asyncio.BufferedProtocol):
    """One connection.

    Args:
        secret: of the cluster.
        opener: whether this end opened it.
        open_: has this as long as the connection is there.

    Attributes:
        proved: called when the other end has proved its membership.
        sink: gives the memory for the data of a message.
        received: called with each message, and its data.
        lost: called once at the end, with the reason.
        sent_bytes, received_bytes: counters.
    """

    def __init__(self, secret: bytes, opener: bool, open_: set[Frames] | None = None) -> None:
        self._open = set() if open_ is None else open_
        self._handshake: Handshake | None = Handshake(secret, opener)
        self._transport: asyncio.Transport | None = None
        self._buffer = bytearray(_BUFFER_BYTES)
        self._view = memoryview(self._buffer)
        self._start = self._end = 0
        self._message: Message | None = None
        self._data: memoryview | None = None
        self._filled = 0
        self._reason = ""
        self.proved: Callable[[], None] = _nothing
        self.sink: Callable[[Message, int], memoryview] = _heap
        self.received: Callable[[Message, memoryview | None], None] = _ignored
        self.lost: Callable[[str], None] = lambda reason: None
        self.sent_bytes = self.received_bytes = 0
        self._paused = False
        self._urgent: deque[_Waiting] = deque()
        self._queue: deque[_Waiting] = deque()
        self._queued_bytes = 0
        self._left_bytes = 0  # what the transport had when progress was looked at
        self._moved_ns = 0

    # --- the transport's side -----------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=HIGH_WATER_BYTES)
        self._open.add(self)
        if self._reason:
            self._transport.abort()
            return
        assert self._handshake is not None, "it begins with it"
        first = self._handshake.begin()
        if first:
            self._transport.write(first)

    def connection_lost(self, error: Exception | None) -> None:
        self._transport = None
        self._open.discard(self)
        self._data = self._message = None
        self._queue.clear()
        self._urgent.clear()
        lost, self.lost = self.lost, lambda reason: None
        self.proved, self.received, self.sink = _nothing, _ignored, _heap
        lost(self._reason or str(error or "the connection was closed"))

    def pause_writing(self) -> None:
        self._paused = True

    def resume_writing(self) -> None:
        self._paused = False
        self._moved_ns = 0
        while not self._paused and (self._urgent or self._queue):
            waiting = (self._urgent or self._queue).popleft()
            self._queued_bytes -= waiting.counted
            self._write(waiting.buffers)

    def get_buffer(self, size_hint: int) -> memoryview:
        if self._data is not None:
            return self._data[self._filled :]
        return self._view[self._end :]

    def buffer_updated(self, count: int) -> None:
        self.received_bytes += count
        try:
            if self._data is not None:
                self._filled += count
                if self._filled == self._data.nbytes:
                    self._finish()
                return
            self._end += count
            self._read()
        except BadPeer as error:
            self.close(str(error))
        except Exception as error:  # a bug, or a peer that found one: only this connection ends
            log.exception("a frame could not be handled")
            self.close(f"{type(error).__name__}: {error}")

    # --- reading --------------------------------------------------------------------------------

    def _read(self) -> None:
        """Take everything out of the buffer that is complete."""
        while self._transport is not None:
            if self._handshake is not None:
                if not self._shake():
                    break
            elif not self._frame():
                break
        if self._start == self._end:
            self._start = self._end = 0
            if len(self._buffer) > _BUFFER_BYTES:
                self._resize(_BUFFER_BYTES)

    def _shake(self) -> bool:
        handshake = self._handshake
        assert handshake is not None, "it is not over"
        if self._end - self._start < handshake.wanted:
            return False
        end = self._start + handshake.wanted
        answer = handshake.received(bytes(self._view[self._start : end]))
        self._start = end
        if answer and self._transport is not None:
            self._transport.write(answer)
        if not handshake.wanted:
            self._handshake = None
            self.proved()
        return True

    def _frame(self) -> bool:
        """Read one frame, or begin to read its data. False if more has to arrive first."""
        there = self._end - self._start
        if there < _HEAD.size:
            self._make_room(_HEAD.size)
            return False
        length, data_bytes = _HEAD.unpack_from(self._buffer, self._start)
        if length > CONTROL_LIMIT_BYTES or data_bytes > DATA_LIMIT_BYTES:
            raise BadPeer(f"a frame of {length} and {data_bytes} bytes is too long")
        if there < _HEAD.size + length:
            self._make_room(_HEAD.size + length)
            return False
        begin = self._start + _HEAD.size
        try:
            message = decode(self._view[begin : begin + length])
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise BadPeer(f"a message cannot be read: {error}") from None
        self._start = begin + length
        if not data_bytes:
            self.received(message, None)
            return True
        self._message, self._data = message, self.sink(message, data_bytes)
        count = min(self._end - self._start, data_bytes)
        self._data[:count] = self._view[self._start : self._start + count]
        self._start += count
        self._filled = count
        if count < data_bytes:
            return False
        self._finish()
        return True

    def _finish(self) -> None:
        message, data = self._message, self._data
        assert message is not None
        self._message = self._data = None
        self.received(message, data)

    def _make_room(self, size: int) -> None:
        """Move what is there to the beginning of a buffer that has room for a whole message."""
        if self._start + size > len(self._buffer):
            self._resize(max(size, _BUFFER_BYTES))

    def _resize(self, size: int) -> None:
        left = self._view[self._start : self._end]
        buffer = bytearray(size)
        buffer[: left.nbytes] = left
        self._start, self._end = 0, left.nbytes
        self._buffer, self._view = buffer, memoryview(buffer)

    # --- writing --------------------------------------------------------------------------------

    def send(
        self,
        message: Message,
        pieces: list[Bytes] | None = None,
        urgent: bool = False,
        limited: bool = True,
    ) -> None:
        """Send a message, and perhaps data. The data must not change afterwards.

        Args:
            message: what to send.
            pieces: the data.
            urgent: it does not wait for other messages that wait.
            limited: the peer makes this end send it, so it counts against `QUEUE_LIMIT_BYTES`.

        Raises:
            TooLarge: the message exceeds `CONTROL_LIMIT_BYTES`; nothing was sent.
        """
        if self._transport is None:
            return
        body = encode(message)
        size = sum([len(p) if isinstance(p, bytes) else p.nbytes for p in pieces or ()])
        if len(body) > CONTROL_LIMIT_BYTES:
            raise TooLarge("a message to another node", len(body), CONTROL_LIMIT_BYTES)
        head = _HEAD.pack(len(body), size) + body
        self.sent_bytes += len(head) + size
        buffers: list[Bytes] = [head, *(pieces or ())]
        if pieces and size <= SMALL_BYTES:
            buffers = [b"".join(buffers)]
        if not self._paused:
            self._write(buffers)
            return
        counted = len(head) + size if limited else 0
        (self._urgent if urgent else self._queue).append(_Waiting(buffers, counted))
        self._queued_bytes += counted
        if self._queued_bytes > QUEUE_LIMIT_BYTES:
            self.close("it reads too slowly")

    def _write(self, buffers: list[Bytes]) -> None:
        transport = self._transport
        if transport is not None:
            for buffer in buffers:
                transport.write(buffer)

    def is_moving(self, now_ns: int) -> bool:
        """Look whether the peer takes what waits; called now and then. A stalled one is given up.

        Returns:
            Whether it took something since the last time.
        """
        transport = self._transport
        if transport is None or not self._paused:
            self._moved_ns = 0
            return False
        left = transport.get_write_buffer_size()
        moved, self._left_bytes = left != self._left_bytes, left
        if moved or not self._moved_ns:
            self._moved_ns = now_ns
        elif now_ns - self._moved_ns > STALL_NS:
            self.close(f"it has read nothing for {STALL_NS / 1e9:.0f} s")
        return moved

    @property
    def is_open(self) -> bool:
        """Whether messages can be sent."""
        return self._transport is not None and self._handshake is None

    @property
    def is_proved(self) -> bool:
        """Whether the other end has proved its membership."""
        return self._handshake is None

    @property
    def peer(self) -> str:
        """The address of the other end, for logs."""
        name = None if self._transport is None else self._transport.get_extra_info("peername")
        return f"{name[0]}:{name[1]}" if isinstance(name, tuple) else "?"

    def close(self, reason: str = "", politely: bool = False) -> None:
        """End the connection: at once, or after what was sent has left.

        One that has not begun ends when it begins.
        """
        transport = self._transport
        self._reason = self._reason or reason
        if transport is None:
            return
        if politely:
            for waiting in (*self._urgent, *self._queue):
                self._write(waiting.buffers)
            self._urgent.clear()
            self._queue.clear()
            transport.close()
        else:
            transport.abort()


def _heap(message: Message, size: int) -> memoryview:
    return memoryview(bytearray(size))


def _nothing() -> None:
    """Nothing is expected any more."""


def _ignored(message: Message, data: memoryview | None) -> None:
    """Nothing is expected any more."""
