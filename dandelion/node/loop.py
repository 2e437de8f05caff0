"""The node's event loop: in a thread of its own, or the caller's. It also keeps the arena clean."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Executor as Pool
from concurrent.futures import Future
from functools import partial
from typing import TypeVar

import uvloop

from dandelion.memory import SharedDomain
from dandelion.node.runtime import Runtime

T = TypeVar("T")
CLEAN_S = 0.1
"""How often contexts that were returned are zeroed in the background."""
TASKS_S = 1.0
"""How long tasks that are left at the end may take to be cancelled."""


class NodeLoop:
    """Starts and stops the loop.

    Args:
        runtime: works on it.
        arena: zeroed in the background.
        pool: does that.
    """

    def __init__(self, runtime: Runtime, arena: SharedDomain, pool: Pool) -> None:
        self._runtime = runtime
        self._arena = arena
        self._pool = pool
        self._loop: asyncio.AbstractEventLoop | None = None
        self._own_thread: threading.Thread | None = None
        self._ident = 0
        # Held for microseconds: nothing is posted to a loop that has stopped.
        self._posting = threading.Lock()
        self._timer: asyncio.TimerHandle | None = None
        self._zeroing: Future[int] | None = None

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The loop, once it is started."""
        assert self._loop is not None, "it was started"
        return self._loop

    @property
    def is_current(self) -> bool:
        """Whether the caller runs on the loop's thread."""
        return threading.get_ident() == self._ident

    def start(self, loop: asyncio.AbstractEventLoop | None) -> None:
        """Use a running loop, whose thread calls this, or without one run a loop in a thread."""
        if loop is not None:
            self._begin(loop)
            return
        own = uvloop.new_event_loop()
        self._own_thread = threading.Thread(
            target=own.run_forever, name="dandelion-loop", daemon=True
        )
        self._own_thread.start()
        begun = threading.Event()

        def begin() -> None:
            self._begin(own)
            begun.set()

        own.call_soon_threadsafe(begin)
        begun.wait()

    def _begin(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._ident = threading.get_ident()
        self._runtime.start(loop)
        self._timer = loop.call_later(CLEAN_S, self._clean)

    def _clean(self) -> None:
        if self._loop is None:
            return
        if self._arena.dirty and (self._zeroing is None or self._zeroing.done()):
            self._zeroing = self._pool.submit(self._arena.recycle)
        self._timer = self._loop.call_later(CLEAN_S, self._clean)

    def call(self, function: Callable[[], T]) -> T:
        """Call a function on the loop and give its result; from any thread.

        Before the start, and after the loop has stopped, it is called here.
        """
        if self.is_current:
            return function()
        answer: Future[T] = Future()
        is_posted = self.post(partial(_answer, answer, function))
        return answer.result() if is_posted else function()

    def post(self, event: Callable[[], None]) -> bool:
        """Have something done on the loop soon, from any thread; False if there is no loop."""
        with self._posting:
            if self._loop is None:
                return False
            self._runtime.post(event)
        return True

    def left_behind(self) -> None:
        """There is no loop any more: this is a forked process, which has only the caller's thread.

        Nothing is closed, since it is still used by the parent.
        """
        self._posting = threading.Lock()  # another thread may have held it
        self._loop = self._own_thread = self._timer = None
        self._ident = 0

    def stop(self) -> None:
        """Stop what runs on the loop, and the loop if it is ours. Not from the loop itself."""
        loop = self._loop
        if loop is None:
            return
        stopped = threading.Event()

        def stop() -> None:
            with self._posting:
                self._loop = None
            while not self._runtime.work():
                pass  # what was posted before
            self._runtime.stop()
            if self._timer is not None:
                self._timer.cancel()
            stopped.set()

        loop.call_soon_threadsafe(stop)
        stopped.wait()
        if self._own_thread is not None:
            loop.call_soon_threadsafe(loop.stop)
            self._own_thread.join()
            _end_tasks(loop)
            loop.close()
        self._runtime.close()


def _end_tasks(loop: asyncio.AbstractEventLoop) -> None:
    """Cancel what was not over in time on a loop that has stopped."""
    left = asyncio.all_tasks(loop)
    for task in left:
        task.cancel()
    if left:
        loop.run_until_complete(asyncio.wait(left, timeout=TASKS_S))


def _answer(answer: Future[T], function: Callable[[], T]) -> None:
    try:
        answer.set_result(function())
    except BaseException as error:
        answer.set_exception(error)
