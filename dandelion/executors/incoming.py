"""Outputs of a confined process, which come behind its answer."""

from __future__ import annotations

from dandelion.data import Bytes
from dandelion.engine_process.messages import Done
from dandelion.errors import ContextFull, DandelionError
from dandelion.executors.contract import Surroundings
from dandelion.executors.processes import Process
from dandelion.executors.staging import INLINE_COPY_BYTES
from dandelion.memory import Context

HEAP_BYTES = 4096
"""Outputs of this size in total, and smaller ones, stay on the heap."""


class Incoming:
    """Outputs that are being received.

    Attributes:
        reply: the answer before them.
        data: where they go.
        error: there is no room for them; they are received and dropped.
    """

    __slots__ = ("_at", "_size", "context", "data", "error", "reply")

    def __init__(self, reply: Done) -> None:
        self.reply = reply
        self.context: Context | None = None
        self.data = memoryview(b"")
        self.error: DandelionError | None = None
        self._size = reply.data_bytes
        self._at = 0

    def make_room(self, around: Surroundings) -> None:
        """Find room: on the heap for few bytes, else in the arena."""
        if self._size <= HEAP_BYTES:
            self.data = memoryview(bytearray(self._size))
            return
        try:
            self.context = around.arena.acquire_to_fill(self._size)
        except ContextFull as error:
            self.error = error
            self.data = memoryview(bytearray(min(self._size, INLINE_COPY_BYTES)))
        else:
            self.data = self.context.view[: self._size]

    def take(self, process: Process) -> bool:
        """Take what is here; True if that was all."""
        while self._at < self._size:
            start = 0 if self.error is not None else self._at
            got = process.channel.fill(self.data[start : start + self._size - self._at])
            if not got:
                return False
            self._at += got
        return True

    def read(self, offset: int, size: int) -> Bytes:
        """Return a part.

        Raises:
            ValueError: it is outside.
        """
        if not 0 <= offset <= offset + size <= self._size:
            raise ValueError("an output outside of the data")
        if self.context is not None:
            return self.context.read(offset, size)
        return bytes(self.data[offset : offset + size])
