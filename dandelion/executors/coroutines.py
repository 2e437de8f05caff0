"""An asynchronous engine on the node's event loop, many calls at once: I/O functions."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from dandelion.driver import AsyncEngine, Call, InstanceSets
from dandelion.errors import Cancelled, DandelionError
from dandelion.executors.contract import (
    Executor,
    StartedEngine,
    Surroundings,
    begin_call,
    finish,
    timed_out,
)
from dandelion.executors.failures import to_dandelion_error
from dandelion.scheduler import CallState, EngineState, Flow
from dandelion.trace_context import new_span_id

PLACES = 1024
"""How many calls it takes at once."""


class LoopExecutor(Executor):
    """Runs each call as a task.

    Args:
        make: makes the engine.
        loop: the node's loop.
    """

    def __init__(
        self,
        engine: EngineState,
        info: StartedEngine,
        around: Surroundings,
        make: Callable[[], AsyncEngine],
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        super().__init__(engine, info, around)
        self._make = make
        self._loop = loop
        self._engine: AsyncEngine | None = None
        self._tasks: dict[CallState, asyncio.Task[None]] = {}

    def start(self) -> None:
        try:
            self._engine = self._make()
        except Exception as error:
            self.events.start_failed(self.engine, to_dandelion_error(error, self.info.backend))
            return
        self.info.name = self._engine.name
        self.events.up(self.engine, self.info)

    def send(self, call: CallState, evict: tuple[Flow, ...] = (), keep: bool = False) -> None:
        begun = begin_call(self, call)
        span = call.invocation.span
        if span is not None:
            begun.trace_context = span.context
            if span.recorded:
                call.span_id = new_span_id()
                begun.trace_context = span.context.below(call.span_id)
        task = self._loop.create_task(self._run(call, begun))
        self._tasks[call] = task
        task.add_done_callback(lambda task: self._ended(call, task))

    def _ended(self, call: CallState, task: asyncio.Task[None]) -> None:
        del self._tasks[call]
        if task.cancelled():  # before its first step
            finish(self.events, call, None, Cancelled("before it began"))

    async def _run(self, state: CallState, call: Call) -> None:
        assert self._engine is not None, "it is up"
        outputs: InstanceSets | None = None
        failure: DandelionError | None = None
        try:
            async with asyncio.timeout(call.left_s()):
                outputs = await self._engine.run(call)
        except TimeoutError:
            failure = timed_out(call.function, call.limit_s)
        except asyncio.CancelledError:
            failure = Cancelled("its invocation ended")
        except (Exception, SystemExit) as error:
            failure = to_dandelion_error(error, self.info.name)
        finish(self.events, state, outputs, failure)

    def stop(self, call: CallState) -> None:
        task = self._tasks.get(call)
        if task is not None:
            task.cancel()

    def close(self) -> None:
        asyncio.run_coroutine_threadsafe(self._close(), self._loop).result()

    async def _close(self) -> None:
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._engine is not None:
            await self._engine.close()
