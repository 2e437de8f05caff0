"""Flow control of a connection: who waits for the client to read, and when input is not read."""

from __future__ import annotations

import asyncio


class FlowControl(asyncio.Protocol):
    """The part of a connection's protocol that pauses and resumes.

    Attributes:
        transport: of the connection.
        write_paused: whether the client does not read fast enough.
        read_paused: whether no input is read for now.
    """

    __slots__ = ("_writable", "read_paused", "transport", "write_paused")

    def __init__(self) -> None:
        self.transport: asyncio.Transport = None  # type: ignore[assignment]  # until it is made
        self.read_paused = False
        self.write_paused = False
        self._writable: asyncio.Event | None = None

    def update_wait(self) -> None:
        """What the connection waits for may have changed."""
        raise NotImplementedError

    def pause_writing(self) -> None:
        """Wait until the client reads."""
        self.write_paused = True
        self.update_wait()

    def resume_writing(self) -> None:
        """Continue."""
        self.resume_writer()
        self.update_wait()

    def resume_writer(self) -> None:
        """Have `drain` return, since the client has read enough or is gone."""
        self.write_paused = False
        if self._writable is not None:
            self._writable.set()

    async def drain(self) -> None:
        """Wait until the client has read enough, or the connection has ended."""
        while self.write_paused:
            if self._writable is None:
                self._writable = asyncio.Event()
            self._writable.clear()
            await self._writable.wait()

    def pause_reading(self) -> None:
        """Read no more input for now."""
        if not self.read_paused:
            self.read_paused = True
            self.transport.pause_reading()

    def resume_reading(self) -> None:
        """Read input again."""
        if self.read_paused:
            self.read_paused = False
            self.transport.resume_reading()
