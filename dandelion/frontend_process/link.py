"""One end of a link: messages over a stream socket, in batches, without waiting.

Messages that are posted in one turn of the loop leave together, as one frame: its length in four
bytes, then a MessagePack list. Each is encoded when it is posted, so one that cannot be sent fails
alone, and its sender knows. What the socket does not take is sent when it does. One read takes
what is there, up to the size of the buffer, and all whole frames in it are given on at once; the
loop's other work gets its turn between two reads.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import struct
from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

import msgspec

from dandelion.errors import InvalidInput

log = logging.getLogger("dandelion.frontend")

_HEADER = struct.Struct("<I")
_LIST = struct.Struct(">BI")
_LIST_BYTE = 0xDD  # MessagePack: a list, whose length follows in four bytes
_START = _HEADER.size + _LIST.size
_BUFFER_BYTES = 64 * 1024  # some hundred invocations: more would take the loop for long
FRAME_LIMIT_BYTES = 1 << 30
_BATCH = 512
"""So many messages go into one frame at most."""

_encoder = msgspec.msgpack.Encoder()
_Message = TypeVar("_Message")


class BadMessage(Exception):
    """The other side sent what it must not send."""


class Link(Generic[_Message]):
    """Sends and receives messages. For the loop's thread alone.

    Args:
        loop: the running loop.
        peer: a stream socket; the link closes it.
        decoder: of a list of messages that come in.
        received: takes them; what it raises as `BadMessage` ends the link.
        lost: called once, with the reason, when the link ends by itself.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        peer: socket.socket,
        decoder: msgspec.msgpack.Decoder[list[_Message]],
        received: Callable[[list[_Message]], None],
        lost: Callable[[str], None],
    ) -> None:
        peer.setblocking(False)
        self._loop = loop
        self._peer = peer
        self._decoder = decoder
        self._received = received
        self._lost = lost
        self._frames: list[bytearray] = []  # with room for their heads
        self._counts: list[int] = []  # of the messages in each
        self._is_due = False
        self._unsent: deque[memoryview] = deque()
        self._in = bytearray(_BUFFER_BYTES)
        self._view = memoryview(self._in)
        self._held = 0
        self.is_open = True
        loop.add_reader(peer, self._read)

    def post(self, message: msgspec.Struct, *, ahead: bool = False) -> None:
        """Send a message, with all others of this turn.

        Args:
            message: what is sent.
            ahead: nothing waits for it, so it is sent together with the next message.

        Raises:
            InvalidInput: it has what cannot be sent, such as an integer of more than 64 bits. The
                other messages are sent.
        """
        if not self._frames or self._counts[-1] == _BATCH:
            self._frames.append(bytearray(_START))
            self._counts.append(0)
        frame = self._frames[-1]
        end = len(frame)
        try:
            _encoder.encode_into(message, frame, end)
        except Exception as error:
            del frame[end:]  # what was written of it
            if isinstance(error, ValueError | OverflowError | RecursionError):
                raise InvalidInput("request", f"it cannot be sent: {error}") from None
            raise
        self._counts[-1] += 1
        if not self._is_due and not ahead:
            self._is_due = True
            self._loop.call_soon(self.flush)

    def flush(self) -> None:
        """Send what was posted."""
        self._is_due = False
        frames, self._frames = self._frames, []
        counts, self._counts = self._counts, []
        for frame, count in zip(frames, counts, strict=True):
            if self.is_open and count:
                _HEADER.pack_into(frame, 0, len(frame) - _HEADER.size)
                _LIST.pack_into(frame, _HEADER.size, _LIST_BYTE, count)
                self._send(frame)

    def _send(self, frame: bytearray) -> None:
        if self._unsent:
            self._unsent.append(memoryview(frame))
            return
        try:
            sent = self._peer.send(frame)
        except (BlockingIOError, InterruptedError):
            sent = 0
        except OSError as error:
            self._end(str(error))
            return
        if sent < len(frame):
            self._unsent.append(memoryview(frame)[sent:])
            self._loop.add_writer(self._peer, self._send_rest)

    def _send_rest(self) -> None:
        while self._unsent:
            frame = self._unsent[0]
            try:
                sent = self._peer.send(frame)
            except (BlockingIOError, InterruptedError):
                return
            except OSError as error:
                self._end(str(error))
                return
            if sent < len(frame):
                self._unsent[0] = frame[sent:]
            else:
                self._unsent.popleft()
        self._loop.remove_writer(self._peer)

    def _read(self) -> None:
        try:
            got = self._peer.recv_into(self._view[self._held :])
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            self._end(str(error))
            return
        if not got:
            self._end("the other side is gone")
            return
        self._held += got
        try:
            self._take()
        except BadMessage as error:
            self._end(str(error))
            return
        except Exception:
            log.exception("a message could not be handled")
            self._end("a message could not be handled")
            return
        if self._is_due:  # answers that are there already leave in this turn
            self.flush()

    def _take(self) -> None:
        """Give on all whole frames, and keep the rest."""
        start = 0
        held = self._held
        while held - start >= _HEADER.size and self.is_open:
            size = _HEADER.size + _HEADER.unpack_from(self._in, start)[0]
            if size > FRAME_LIMIT_BYTES:
                raise BadMessage(f"a frame of {size} bytes, {FRAME_LIMIT_BYTES} are allowed")
            if held - start < size:
                if size > len(self._in):
                    self._grow(start, size)
                    return
                break
            try:
                batch = self._decoder.decode(self._view[start + _HEADER.size : start + size])
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
                raise BadMessage(f"a message that cannot be read: {error}") from None
            self._received(batch)
            start += size
        self._keep(start)

    def _keep(self, start: int) -> None:
        """Move the rest to the beginning."""
        rest = self._held - start
        if len(self._in) > _BUFFER_BYTES and rest <= _BUFFER_BYTES:
            self._resize(start, _BUFFER_BYTES)
        elif start and rest:
            self._view[:rest] = self._in[start : self._held]
        self._held = rest

    def _grow(self, start: int, size: int) -> None:
        """Make room for a long frame: for what comes, not for what its head announces."""
        rest = self._held - start
        if rest == len(self._in):
            self._resize(start, min(size, 4 * rest))
        elif start:
            self._view[:rest] = self._in[start : self._held]
        self._held = rest

    def _resize(self, start: int, size: int) -> None:
        resized = bytearray(size)
        resized[: self._held - start] = self._view[start : self._held]
        self._in, self._view = resized, memoryview(resized)

    def _end(self, reason: str) -> None:
        if self.is_open:
            self.close()
            self._lost(reason)

    def close(self) -> None:
        """Close the socket; `lost` is not called. May be called twice."""
        if not self.is_open:
            return
        self.is_open = False
        self._loop.remove_reader(self._peer)
        self._loop.remove_writer(self._peer)
        self._unsent.clear()
        with contextlib.suppress(OSError):
            self._peer.close()
