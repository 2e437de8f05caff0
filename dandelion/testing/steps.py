"""Steps for scripts: calls that wait at a gate, and failures at chosen times."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

from dandelion.driver import Call, Engine, InstanceSets
from dandelion.testing.scripted import Run, Script, echo

_Result = TypeVar("_Result")


class Gate:
    """Holds calls until a test opens it. For engines in threads.

    Args:
        then: what a call does behind the gate.

    Attributes:
        script: steps with this gate; a call that is cancelled is let through.
    """

    def __init__(self, then: Run = echo) -> None:
        self._then = then
        self._entered = threading.Semaphore(0)
        self._cancelled = threading.Semaphore(0)
        self._open = threading.Semaphore(0)
        self.script = Script(run=self.run, cancel=self.cancel)

    def run(self, engine: Engine, call: Call) -> InstanceSets:
        """Enter, wait for the gate, go on: the step of a script."""
        self._entered.release()
        self._open.acquire()
        return self._then(engine, call)

    def cancel(self, call_id: int) -> bool:
        """Open for one call: the step of a script."""
        self._cancelled.release()
        self.open()
        return True

    def open(self, count: int = 1) -> None:
        """Let this many calls through, now or when they come."""
        self._open.release(count)

    def entered(self, limit_s: float = 20.0) -> bool:
        """Wait until one more call has entered; False if none does within the limit."""
        return self._entered.acquire(timeout=limit_s)

    def was_cancelled(self, limit_s: float = 20.0) -> bool:
        """Wait until one more call was cancelled; False if none is within the limit."""
        return self._cancelled.acquire(timeout=limit_s)


class Failures(Generic[_Result]):
    """Makes a step fail at chosen times: ``script.run = Failures(EngineDied(...), echo, after=2)``.

    Safe from any thread.

    Args:
        error: what is raised.
        otherwise: what the step does when it succeeds.
        after: how many times the step succeeds before.
        count: how many times it fails then.

    Attributes:
        left: how many failures are still to come.
    """

    def __init__(
        self,
        error: BaseException,
        otherwise: Callable[..., _Result],
        after: int = 0,
        count: int = 1,
    ) -> None:
        self._error = error
        self._after = after
        self.left = count
        self._otherwise = otherwise
        self._lock = threading.Lock()

    def __call__(self, *arguments: object) -> _Result:
        with self._lock:
            fails = self._after <= 0 < self.left
            self._after -= 1
            self.left -= fails
        if fails:
            raise self._error
        return self._otherwise(*arguments)
