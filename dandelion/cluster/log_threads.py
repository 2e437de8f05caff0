"""The threads of one node's part of the log; the order within each is part of its contract."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol, TypeAlias

Work: TypeAlias = Callable[[], None]


class Workers(Protocol):
    """Where work that takes time is done."""

    def store(self, work: Work) -> None:
        """Store votes: one after the other."""

    def carry(self, work: Work) -> None:
        """Change the catalogue: one after the other, in this order."""

    def stage(self, work: Work) -> None:
        """Fetch and store blobs: several at a time."""

    def shutdown(self) -> None:
        """Begin nothing more, and wait for what has begun."""


class LogThreads:
    """See `Workers`."""

    def __init__(self) -> None:
        self._store = ThreadPoolExecutor(1, "dandelion-log")
        self._carry = ThreadPoolExecutor(1, "dandelion-catalogue")
        self._stage = ThreadPoolExecutor(2, "dandelion-blobs")

    def store(self, work: Work) -> None:
        _submit(self._store, work)

    def carry(self, work: Work) -> None:
        _submit(self._carry, work)

    def stage(self, work: Work) -> None:
        _submit(self._stage, work)

    def shutdown(self) -> None:
        for pool in (self._stage, self._store, self._carry):
            pool.shutdown(cancel_futures=True)


def _submit(pool: ThreadPoolExecutor, work: Work) -> None:
    with contextlib.suppress(RuntimeError):  # it was shut down, while the loop was blocked
        pool.submit(work)
