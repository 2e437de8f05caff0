"""The order in which steps of the store of asynchronous invocations are carried out."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest

from dandelion.asynchronous.actions import Erase, Save
from dandelion.asynchronous.records import KeptRecord, KeptRequest
from dandelion.asynchronous.store import Drop, MemoryKeptStore, Part, Put, StoreStep
from dandelion.data import Item, ItemSet
from dandelion.errors import DandelionError, DiskFull
from dandelion.node.kept_writer import LARGE_BYTES, PREPARED, THREADS, KeptWriter, PendingStep

LIMIT_S = 20.0


class SlowData(MemoryKeptStore):
    """Prepares data only when it is let; `fails` has what fails, and when."""

    is_durable = True

    def __init__(self) -> None:
        super().__init__()
        self.let = threading.Event()
        self.preparing = 0
        self.discarded: list[str] = []
        self.fails: set[tuple[str, str]] = set()

    def prepare(self, step: Put) -> Put:
        self.preparing += 1
        assert self.let.wait(LIMIT_S)
        self._fail("prepare", step.record.id)
        return super().prepare(step)

    def write(self, steps: Sequence[StoreStep]) -> None:
        for step in steps:
            self._fail("write", step.id if isinstance(step, Drop) else step.record.id)
        super().write(steps)

    def discard(self, step: Put) -> None:
        self.discarded.append(step.record.id)

    def _fail(self, what: str, id_: str) -> None:
        if (what, id_) in self.fails:
            raise DiskFull("store", "none left", 1, 0)


class Writing:
    """A writer, and what it said: ids in the order of their ends, with the errors."""

    def __init__(self, store: SlowData, pool: ThreadPoolExecutor) -> None:
        self.store = store
        self.ended: list[tuple[str, str]] = []
        self.writer = KeptWriter(store, pool, self._done, lambda: None)

    def _done(self, action: Save | Erase, error: DandelionError | None) -> None:
        kind = "erase" if isinstance(action, Erase) else "save"
        id_ = action.id if isinstance(action, Erase) else action.record.id
        self.ended.append((f"{kind} {id_}", type(error).__name__ if error else ""))

    def save(self, id_: str, size: int) -> None:
        record = KeptRecord(id=id_, tenant="acme", request=KeptRequest(name="f"))
        sets = {"x": ItemSet("x", (Item("x", 0, bytes(size)),))}
        self.writer.add(PendingStep(Save(record, Part.INPUTS), sets))

    def erase(self, id_: str) -> None:
        self.writer.add(PendingStep(Erase(id_)))

    async def until(self, so: Callable[[], bool]) -> None:
        async with asyncio.timeout(LIMIT_S):
            while not so():
                await asyncio.sleep(0.001)

    async def idle(self) -> None:
        self.store.let.set()
        future: Future[None] = Future()
        self.writer.when_idle(future)
        await asyncio.wait_for(asyncio.wrap_future(future), LIMIT_S)


def run(test: Callable[[Writing], Coroutine[Any, Any, None]]) -> None:
    async def in_loop() -> None:
        store = SlowData()
        with ThreadPoolExecutor(THREADS) as pool:
            try:
                await test(Writing(store, pool))
            finally:
                store.let.set()

    asyncio.run(in_loop())


def test_large_data_delays_no_others() -> None:
    async def test(writing: Writing) -> None:
        for number in range(PREPARED + 2):
            writing.save(f"large {number}", LARGE_BYTES + 1)
        writing.save("small", 10)
        await writing.until(lambda: writing.ended == [("save small", "")])
        await writing.until(lambda: writing.store.preparing == PREPARED)
        await writing.idle()
        assert len(writing.ended) == PREPARED + 3
        assert all(not error for _, error in writing.ended)

    run(test)


def test_steps_of_an_invocation_keep_their_order() -> None:
    async def test(writing: Writing) -> None:
        writing.save("a", LARGE_BYTES + 1)
        writing.erase("a")
        writing.save("a", LARGE_BYTES + 1)
        writing.save("b", 1)
        await writing.until(lambda: writing.ended == [("save b", "")])
        await writing.idle()
        assert [name for name, _ in writing.ended[1:]] == ["save a", "erase a", "save a"]
        assert [record.id for record in writing.store.load()] == ["b", "a"]

    run(test)


@pytest.mark.parametrize("when", ["prepare", "write"])
def test_data_that_does_not_fit_fails_alone(when: str) -> None:
    async def test(writing: Writing) -> None:
        writing.store.fails.add((when, "a"))
        writing.save("a", LARGE_BYTES + 1)
        writing.save("c", LARGE_BYTES + 1)
        writing.erase("a")
        writing.save("b", 1)
        await writing.until(lambda: len(writing.ended) == 1)
        writing.store.fails.add(("write", "x"))
        writing.store.let.set()
        await writing.idle()
        assert ("save a", "DiskFull") in writing.ended
        assert ("save b", "") in writing.ended
        assert ("save c", "") in writing.ended
        assert writing.store.discarded == (["a"] if when == "write" else [])

    run(test)
