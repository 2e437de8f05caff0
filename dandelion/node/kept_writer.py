"""Carries out the steps of the store of asynchronous invocations: many in one write.

Steps are taken in order. While one write is under way in a thread, further steps are collected, so
the flushes of a busy node are shared by many invocations. If a write of several steps fails, they
are written one by one, so that one that is too large for the disk fails alone. A store in memory
takes small data at once, on the loop.

Large data is written before its step by other threads, so that it delays only its own invocation.
Further steps of that invocation wait behind it.
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
LARGE_BYTES = 1024 * 1024
PREPARED = 2
"""For so many steps data is written at once, besides the steps that are carried out."""
THREADS = 1 + PREPARED


@dataclass(slots=True)
class PendingStep:
    """A step that is not carried out yet.

    Attributes:
        action: what is asked for.
        sets: the data, if there is some.
        prepared: what the store has to do, if its data is written already.
        size_bytes: about how many bytes it writes.
    """

    action: Save | Erase
    sets: Mapping[str, ItemSet | None] | None = None
    prepared: Put | None = None
    size_bytes: int = 0

    def __post_init__(self) -> None:
        if self.sets is not None:
            self.size_bytes = size_of(self.sets)

    @property
    def id(self) -> str:
        """Of the invocation."""
        return self.action.id if isinstance(self.action, Erase) else self.action.record.id

    def step(self) -> StoreStep:
        """Give what the store has to do."""
        if self.prepared is not None:
            return self.prepared
        action = self.action
        if isinstance(action, Erase):
            return Drop(action.id)
        return Put(action.record, action.part, () if self.sets is None else encode_sets(self.sets))


Done = Callable[[Save | Erase, DandelionError | None], None]


class KeptWriter:
    """Writes to one store. For the loop's thread.

    Args:
        store: that is written to.
        pool: whose threads write; `THREADS` are used at once.
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
        self._large: deque[PendingStep] = deque()
        self._preparing = 0
        self._behind: dict[str, list[PendingStep]] = {}  # by the invocation whose data is written
        self._is_writing = False
        self._idle: list[Future[None]] = []

    def add(self, step: PendingStep) -> None:
        """Carry out a step soon."""
        behind = self._behind.get(step.id)
        if behind is not None:
            behind.append(step)
            return
        if step.size_bytes > LARGE_BYTES:
            self._behind[step.id] = []
            self._large.append(step)
            self._prepare()
            return
        self._add(step)

    def _prepare(self) -> None:
        """Have data written before its step."""
        loop = asyncio.get_running_loop()
        while self._large and self._preparing < PREPARED:
            self._preparing += 1
            self._pool.submit(self._prepare_one, self._large.popleft(), loop)

    def _prepare_one(self, step: PendingStep, loop: asyncio.AbstractEventLoop) -> None:
        failed: DandelionError | None = None
        try:
            put = step.step()
            assert isinstance(put, Put), "it has data"
            step.prepared = self._store.prepare(put)
            step.sets = None
        except Exception as error:
            failed = to_dandelion_error(error, "store").with_traceback(None)
        loop.call_soon_threadsafe(self._is_prepared, step, failed)

    def _is_prepared(self, step: PendingStep, failed: DandelionError | None) -> None:
        self._preparing -= 1
        behind = self._behind.pop(step.id)
        if failed is None:
            self._add(step)
        else:
            self._done(step.action, failed)
        for one in behind:
            self.add(one)
        self._prepare()
        if failed is not None:
            self._after()
            self._end_idle()

    def _add(self, step: PendingStep) -> None:
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
        if self._is_writing or self._steps or self._behind:
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
        self._end_idle()

    def _end_idle(self) -> None:
        if self._is_writing or self._steps or self._behind:
            return
        idle, self._idle = self._idle, []
        for future in idle:
            future.set_result(None)

    def _written(self, batch: Sequence[PendingStep]) -> list[DandelionError | None]:
        try:
            self._store.write([step.step() for step in batch])
        except Exception as error:
            if len(batch) == 1:
                if batch[0].prepared is not None:
                    self._store.discard(batch[0].prepared)
                return [to_dandelion_error(error, "store").with_traceback(None)]
            return [self._written([step])[0] for step in batch]
        return [None] * len(batch)
