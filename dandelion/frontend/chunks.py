"""A long document in pieces, so that large data in it is not copied."""

from __future__ import annotations

from dandelion.data import Bytes

CHUNK_BYTES = 32 * 1024
"""Items of at least this size are separate chunks. Smaller ones are cheaper to copy."""


class Chunks:
    """Collects small pieces in one chunk, and large data in chunks of its own.

    Attributes:
        small: the chunk that small pieces are added to.
    """

    __slots__ = ("_chunks", "small")

    def __init__(self) -> None:
        self.small = bytearray()
        self._chunks: list[Bytes] = []

    def large(self, data: Bytes) -> None:
        """Add data without a copy."""
        self.flush()
        self._chunks.append(data)

    def flush(self) -> None:
        """Begin a new chunk."""
        if self.small:
            self._chunks.append(bytes(self.small))
            self.small = bytearray()

    def done(self) -> list[Bytes]:
        """Return all chunks."""
        self.flush()
        return self._chunks
