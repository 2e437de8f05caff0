"""Ending a call from outside: a thread that advances the epoch of one wasmtime engine.

A call runs until the epoch changes. The thread changes it only at a deadline, or on `stop`. So it
sleeps through ordinary calls, and is woken only for a deadline that is earlier than the one that it
sleeps for.
"""

from __future__ import annotations

import math
import threading
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import wasmtime


class Interrupt:
    """Interrupts the call that runs, at its deadline or on demand.

    Args:
        engine: runs one call at a time.
        name: of the thread.
    """

    def __init__(self, engine: wasmtime.Engine, name: str) -> None:
        self._engine = engine
        self._changed = threading.Condition()
        self._deadline_ns: float = math.inf
        self._sleeps_until_ns: float = math.inf
        self._closed = True
        self._name = name
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Start the thread; before the first call."""
        self._closed = False
        self._thread = threading.Thread(target=self._main, name=self._name, daemon=True)
        self._thread.start()

    def arm(self, store: wasmtime.Store, deadline_ns: int) -> None:
        """Let a call run until its deadline, on `time.monotonic_ns`."""
        with self._changed:
            store.set_epoch_deadline(1)
            self._deadline_ns = deadline_ns
            if deadline_ns < self._sleeps_until_ns:
                self._changed.notify()

    def disarm(self) -> None:
        """Clear the deadline, since the call has ended."""
        with self._changed:
            self._deadline_ns = math.inf

    def stop(self) -> None:
        """End the call that runs, if there is one."""
        with self._changed:
            if self._deadline_ns < math.inf:
                self._engine.increment_epoch()

    def close(self) -> None:
        """End the thread; it may be started again. May be called twice."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        thread, self._thread = self._thread, None
        if thread is not None:
            thread.join()

    def _main(self) -> None:
        with self._changed:
            while not self._closed:
                now = time.monotonic_ns()
                if now >= self._deadline_ns:
                    self._engine.increment_epoch()
                    self._deadline_ns = math.inf
                self._sleeps_until_ns = self._deadline_ns
                left_s = (self._deadline_ns - now) / 1e9
                self._changed.wait(None if left_s == math.inf else left_s)
