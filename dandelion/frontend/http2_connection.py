"""The state of an HTTP/2 connection: its transport, its place in the table, its end.

The `ConnectionTable` sees one connection, however many streams it has. It waits for a head until
the first request is complete, then for the next request while there are no streams. It waits for
its client if all streams do. While a request runs, it does not wait, so it is not evicted.

A connection that is closed for a reason gets GOAWAY and lingers: its sending half is closed, and
further input is discarded for some time, so that a reset does not destroy the reason.

GOAWAY without an error, from either side, ends nothing that runs (RFC 9113, 6.8). But h2 closes its
state at GOAWAY and then sends nothing, so `GracefulH2Connection` only reports a received one.

A malformed request is an error of its stream (RFC 9113, 8.1.1). h2 checks all rules of heads,
trailers and lengths of bodies, but ends the connection for each. `GracefulH2Connection` resets the
stream instead. All other errors still end the connection: of frames, of flow control, of ids and
numbers of streams, and of the header compression, whose state both sides share.

Rejected: ``validate_inbound_headers=False`` with rules of our own, which could be weaker than h2's.
"""

from __future__ import annotations

import abc
import asyncio
from typing import TypeAlias

import h2.connection
import h2.events
from h2.errors import ErrorCodes
from h2.exceptions import InvalidBodyLengthError, ProtocolError
from h2.stream import StreamClosedBy, StreamState
from hyperframe.frame import DataFrame, Frame, GoAwayFrame, HeadersFrame, RstStreamFrame

from dandelion.frontend.acceptor import Newcomer
from dandelion.frontend.admission import Peer, Wait, acknowledged_bytes, reset
from dandelion.frontend.http2_stream import Http2Stream
from dandelion.frontend.problem import Stalled
from dandelion.frontend.problem_response import RETRY_AFTER_S

_Received: TypeAlias = tuple[list[Frame], list[h2.events.Event]]
"""Frames to send, and events."""
_CAUSES = (type(None), KeyError, ValueError)
"""What h2's errors for malformed heads come from; those of the header compression have others."""


class LateDataReceived(h2.events.Event):
    """DATA for a stream that is closed; h2 has discarded it.

    Args:
        size_bytes: as flow control counts it.
    """

    def __init__(self, size_bytes: int) -> None:
        self.size_bytes = size_bytes


class GracefulH2Connection(h2.connection.H2Connection):
    """An h2 connection that stays open after a received GOAWAY, and after a malformed request.

    It reports the former as an event, the latter as a reset that is not of the client. DATA for
    streams that are closed is an event, too; h2 answers it with a reset.
    """

    def _receive_goaway_frame(self, frame: GoAwayFrame) -> _Received:
        event = h2.events.ConnectionTerminated()
        event.error_code = frame.error_code
        return [], [event]

    def _receive_headers_frame(self, frame: HeadersFrame) -> _Received:
        try:
            return super()._receive_headers_frame(frame)
        except ProtocolError as error:
            is_general = type(error) is ProtocolError and type(error.__cause__) in _CAUSES
            if not is_general or frame.stream_id not in self.streams:
                raise
            return self._reset_malformed(frame.stream_id)

    def _receive_data_frame(self, frame: DataFrame) -> _Received:
        try:
            frames, events = super()._receive_data_frame(frame)
            if any(isinstance(answer, RstStreamFrame) for answer in frames):
                events.append(LateDataReceived(frame.flow_controlled_length))
            return frames, events
        except InvalidBodyLengthError:
            dropped = h2.events.DataReceived(
                stream_id=frame.stream_id,
                data=b"",
                flow_controlled_length=frame.flow_controlled_length,  # windows have counted it
            )
            frames, events = self._reset_malformed(frame.stream_id)
            return frames, [dropped, *events]

    def _reset_malformed(self, stream_id: int) -> _Received:
        machine = self.streams[stream_id].state_machine
        machine.state = StreamState.CLOSED  # h2 has done so after some errors, without the next
        machine.stream_closed_by = StreamClosedBy.SEND_RST_STREAM
        code = ErrorCodes.PROTOCOL_ERROR
        event = h2.events.StreamReset(stream_id=stream_id, error_code=code, remote_reset=False)
        return [RstStreamFrame(stream_id, error_code=code)], [event]


class Http2Connection(asyncio.Protocol, abc.ABC):
    """What a connection is besides its frames.

    Args:
        newcomer: its place in the table is taken by this connection.
    """

    _transport: asyncio.Transport

    def __init__(self, newcomer: Newcomer) -> None:
        self._newcomer: Newcomer | None = newcomer
        self._table = newcomer.table
        self._loop = asyncio.get_running_loop()
        self._streams: dict[int, Http2Stream] = {}
        self._can_write = asyncio.Event()
        self._can_write.set()
        self._received_bytes = 0
        self._last_stream = 0
        self._served = self._lingers = self._held = self._choked = False
        # Used by the table:
        self.address = newcomer.address
        self.wait: Wait | None = None
        self.since = 0.0
        self.mark = 0
        self.peer: Peer | None = None

    @abc.abstractmethod
    def _look_at_streams(self) -> None:
        """End streams that wait for their client without progress."""

    def _enter_table(self) -> None:
        if self._newcomer is not None:
            self._table.replace(self._newcomer, self, self._loop.time())
            self._newcomer = None

    def pause_writing(self) -> None:
        """Wait until the client reads."""
        self._can_write.clear()
        self._update_wait()

    def resume_writing(self) -> None:
        """Continue."""
        self._can_write.set()
        self._choked = False
        self._resume_reading()
        self._update_wait()

    # --- for the table --------------------------------------------------------------------------

    def _update_wait(self) -> None:
        wait = self._waits_for()
        if wait is not self.wait:
            self._table.enter(self, wait, self._loop.time())

    def _waits_for(self) -> Wait | None:
        if self._lingers:
            return Wait.LINGER
        if self._transport.is_closing():
            return Wait.RESPONSE
        if not self._can_write.is_set():
            return Wait.RESPONSE
        if self._streams:
            return Wait.BODY if all(s.waits for s in self._streams.values()) else None
        return Wait.IDLE if self._served else Wait.HEAD

    def moved(self) -> int:
        """Return the number of bytes received, or read by the client while it reads."""
        if self.wait is Wait.RESPONSE:
            return acknowledged_bytes(self._transport)
        return self._received_bytes

    def blocked(self) -> bool:
        """Return whether the node does not read."""
        return self._held

    def expire(self) -> None:
        """Close the connection after a time-out."""
        if self._lingers or self._transport.is_closing() or not self._can_write.is_set():
            self.abort()
        elif self._streams:
            self._look_at_streams()
            self._update_wait()
        elif self._served:
            self._fail(ErrorCodes.NO_ERROR, "the connection was idle")
        else:
            self._fail(ErrorCodes.NO_ERROR, str(Stalled("head", self._table.limits.head_s)))

    def abort(self) -> None:
        """Close the connection at once; drop unsent data, also in the kernel."""
        kernel = self._transport.get_extra_info("socket")
        if kernel is not None:
            reset(kernel)
        self._transport.abort()

    def _fail(self, code: ErrorCodes, reason: str) -> None:
        """Send GOAWAY and linger; requests that run are cancelled."""
        self._write(goaway(code, self._last_stream, reason))
        self._linger()

    def _linger(self) -> None:
        for stream in list(self._streams.values()):
            stream.leave()
        self._streams.clear()
        self._lingers = True
        self._received_bytes = 0
        if self._transport.can_write_eof():
            self._transport.write_eof()
        else:
            self._transport.close()
        self._resume_reading()
        self._update_wait()

    # --- reading and writing ---------------------------------------------------------------------

    async def drain(self) -> None:
        """Wait until the client has read enough."""
        if not self._can_write.is_set():
            await self._can_write.wait()

    def hold(self) -> None:
        """Read further requests after `RETRY_AFTER_S`, since one was refused."""
        if not self._held:
            self._held = True
            self._transport.pause_reading()
            self._loop.call_later(RETRY_AFTER_S, self._release_hold)

    def _release_hold(self) -> None:
        self._held = False
        self._resume_reading()

    def _resume_reading(self) -> None:
        if not (self._held or self._choked or self._transport.is_closing()):
            self._transport.resume_reading()

    def _write(self, data: bytes) -> None:
        if not (self._transport.is_closing() or self._lingers):
            self._transport.write(data)


def goaway(code: ErrorCodes, last_stream: int, reason: str) -> bytes:
    """Write a frame that ends a connection, with the reason in words."""
    frame = GoAwayFrame(
        stream_id=0,
        last_stream_id=last_stream,
        error_code=code,
        additional_data=reason.encode()[:1024],
    )
    return frame.serialize()
