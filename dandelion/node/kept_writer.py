"""Carries out the steps of the store of asynchronous invocations: many in one write.

Steps are taken in order. While one write is under way in a thread, further steps are collected, so
the flushes of a busy node are shared by many invocations. If a write of several steps fails, they
are written one by one, so that one that is too large for the disk fails alone. A store in memory
takes small data at once, on the loop.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor, Future
from dataclasses import dataclass

from dandelion.asynchronous.actions import Erase, Save
from dandelion.asynchronous.store import Drop, KeptStore, Put, StoreStep
from dandelion.asynchronous.stored_sets import encode_sets, size_of
from dandelion.data import ItemSet
from dandelion.errors import DandelionError
from dandelion.executors import to_dandelion_error

BATCH = 512
BATCH_BYTES = 64 * 1024 * 1024
INLINE_BYTES = 64 * 1024


@dataclass(slots=True)
class PendingStep:
    """A step that is not carried out yet.

    Attributes:
        action: what is asked for.
        sets: the data, if there is some.
    """

    action: Save | Erase
    sets: Mapping[str, ItemSet | None] | None = None

    @property
    def size_bytes(self) -> int:
        """About how many bytes it writes."""
        return 0 if self.sets is None else size_of(self.sets)

    def step(self) -> StoreStep:
        """Give what the store has to do."""
        action = self.action
        if isinstance(action, Erase):
            return Drop(action.id)
        return Put(action.record, action.part, () if self.sets is None else encode_sets(self.sets))


Done = Callable[[Save | Erase, DandelionError | None], None]


class KeptWriter:
    """Writes to one store. For the loop's thread.

    Args:
        store: that is written to.
        pool: whose threads write.
        done: called with each action, and why it failed.
        after: called after some of them.
    """

    def __init__(
        self, store: KeptStore, pool: Executor, done: Done, after: Callable[[], None]
    ) -> None:
        self._store = store
        self._pool = pool
        self._done = done
        self._after = after
        self._steps: deque[PendingStep] = deque()
        self._is_writing = False
        self._idle: list[Future[None]] = []

    def add(self, step: PendingStep) -> None:
        """Carry out a step soon."""
        busy = self._is_writing or self._steps
        if not self._store.is_durable and not busy and step.size_bytes <= INLINE_BYTES:
            [error] = self._written([step])
            self._done(step.action, error)
            return
        self._steps.append(step)
        if not self._is_writing:
            self._is_writing = True
            asyncio.get_running_loop().call_soon(self._begin)  # with what comes in the same turn

    def when_idle(self, idle: Future[None]) -> None:
        """Resolve a future when all steps are carried out."""
        if self._is_writing or self._steps:
            self._idle.append(idle)
        else:
            idle.set_result(None)

    def _begin(self) -> None:
        batch: list[PendingStep] = []
        size = 0
        while self._steps and len(batch) < BATCH and size < BATCH_BYTES:
            batch.append(self._steps.popleft())
            size += batch[-1].size_bytes
        loop = asyncio.get_running_loop()

        def work() -> None:
            errors = self._written(batch)
            loop.call_soon_threadsafe(self._end, batch, errors)

        self._pool.submit(work)

    def _end(self, batch: list[PendingStep], errors: Sequence[DandelionError | None]) -> None:
        self._is_writing = False
        for step, error in zip(batch, errors, strict=True):
            self._done(step.action, error)
        self._after()
        if self._is_writing:
            return  # what was added just now has begun
        if self._steps:
            self._is_writing = True
            self._begin()
            return
        idle, self._idle = self._idle, []
        for future in idle:
            future.set_result(None)

    def _written(self, batch: Sequence[PendingStep]) -> list[DandelionError | None]:
        try:
            self._store.write([step.step() for step in batch])
        except Exception as error:
            if len(batch) == 1:
                return [to_dandelion_error(error, "store").with_traceback(None)]
            return [self._written([step])[0] for step in batch]
        return [None] * len(batch)
