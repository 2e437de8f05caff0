"""An asynchronous engine on the node's event loop: I/O functions."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from dandelion.driver import AsyncEngine, InstanceSets
from dandelion.errors import Cancelled, DandelionError, TimedOut
from dandelion.node.failures import typed
from dandelion.node.hosts import EngineHost, HostFacts, State, Work


class LoopHost(EngineHost):
    """Runs an asynchronous engine on the node's event loop, many calls at once.

    Args:
        loop: the loop; `close` must be called from another thread, or `aclose` on the loop.
        engine: what runs.
    """

    def __init__(
        self,
        facts: HostFacts,
        formats: frozenset[str],
        changed: Callable[[EngineHost], None],
        loop: asyncio.AbstractEventLoop,
        engine: AsyncEngine,
        places: int = 1024,
    ) -> None:
        super().__init__(facts, formats, places, changed)
        self._loop = loop
        self._engine = engine
        self._tasks: dict[Work, asyncio.Task[None]] = {}
        facts.name = engine.name
        self._settle_state(State.READY)

    def _submit(self, work: Work) -> None:
        if _running_loop() is self._loop:
            self._spawn(work)
        else:
            self._loop.call_soon_threadsafe(self._spawn, work)

    def _spawn(self, work: Work) -> None:
        running = self._loop.create_task(self._run(work))
        self._tasks[work] = running
        running.add_done_callback(lambda _: self._ended(work))

    def _ended(self, work: Work) -> None:
        del self._tasks[work]
        if not work.ended_ns:  # cancelled before its first step
            work.started_ns = time.monotonic_ns()
            self._finish(work, None, Cancelled("before it began"))

    async def _run(self, work: Work) -> None:
        work.started_ns = time.monotonic_ns()
        outputs: InstanceSets | None = None
        failure: DandelionError | None = None
        try:
            async with asyncio.timeout(work.call.left_s()):
                outputs = await self._engine.run(work.call)
        except TimeoutError:
            failure = TimedOut(work.call.function.spec.name, "wall", work.call.limit_s)
        except asyncio.CancelledError:
            failure = Cancelled("its invocation ended")
        except Exception as error:
            failure = typed(error, self.facts.name)
        self._finish(work, outputs, failure)

    def cancel(self, work: Work) -> None:
        super().cancel(work)
        self._loop.call_soon_threadsafe(self._stop, work)

    def _stop(self, work: Work) -> None:
        running = self._tasks.get(work)
        if running is not None:
            running.cancel()

    async def aclose(self) -> None:
        """Stop all calls and close the engine; on the loop."""
        self.state = State.CLOSED
        running = list(self._tasks.values())
        for one in running:
            one.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        await self._engine.close()

    def close(self) -> None:
        asyncio.run_coroutine_threadsafe(self.aclose(), self._loop).result()


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None
