"""What arrives: counted before it is received, then put into a context of its own."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field

from dandelion.data import Bytes
from dandelion.errors import TooLarge, TooMany
from dandelion.function import Limits
from dandelion.memory import Context, MemoryDomain

HEAP_BYTES = 1024
"""Bodies up to this size stay on the heap, where they cost less than a context."""


@dataclass(slots=True)
class OutputBudget:
    """What the outputs of one call may still take.

    Attributes:
        function: for errors.
        limits: of the function.
        domain: where bodies lie.
    """

    function: str
    limits: Limits
    domain: MemoryDomain
    bytes_taken: int = 0
    items_taken: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)  # files are read in threads

    def take(self, item: str, size_bytes: int) -> None:
        """Count bytes that will be received for an item.

        Raises:
            TooLarge: the outputs would exceed the function's ``output_bytes``.
        """
        with self._lock:
            self.bytes_taken += size_bytes
        if self.bytes_taken > self.limits.output_bytes:
            where = f"function '{self.function}', result of item '{item}'"
            remedy = "raise 'output_bytes' in the limits of the function"
            raise TooLarge(where, self.bytes_taken, self.limits.output_bytes, remedy)

    def give_back(self, size_bytes: int) -> None:
        """Stop counting bytes that were taken, but did not arrive."""
        with self._lock:
            self.bytes_taken -= size_bytes

    def count(self, item: str, items: int) -> None:
        """Count output items; raises `TooMany` above the function's ``output_items``."""
        self.items_taken += items
        if self.items_taken > self.limits.output_items:
            where = f"function '{self.function}', result of item '{item}'"
            raise TooMany(where, "items", self.items_taken, self.limits.output_items)

    def context(self, size_bytes: int) -> Context:
        """Acquire a context for a body. It has any content: show it when it is full only."""
        return self.domain.acquire_to_fill(size_bytes)

    def placed(self, data: Bytes) -> Bytes:
        """Copy a body that was received into a context; a small one stays on the heap."""
        if len(data) <= HEAP_BYTES:
            return bytes(data)
        context = self.context(len(data))
        context.write(0, data)
        return context.read(0, len(data))
