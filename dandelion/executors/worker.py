"""A thread that does jobs one after the other, for as long as its executor lives.

A process that was told to end with its parent ends with the *thread* that started it, so what
starts engine processes must not be a short-lived thread.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from queue import SimpleQueue

log = logging.getLogger("dandelion.node")


class Worker:
    """One daemon thread with a queue. A program that ends closes its nodes, and they this.

    Args:
        name: of the thread.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._jobs: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._server: threading.Thread | None = None

    def submit(self, job: Callable[[], None]) -> None:
        """Have a job done after all earlier ones. For one thread at a time.

        Raises:
            RuntimeError: the system has no thread left; the next call tries it again.
        """
        if self._server is None:
            thread = threading.Thread(target=self._serve, name=self._name, daemon=True)
            thread.start()
            self._server = thread
        self._jobs.put(job)

    def _serve(self) -> None:
        while (job := self._jobs.get()) is not None:
            try:
                job()
            except Exception:  # a bug; the thread is needed all the same
                log.exception("%s: a job failed", self._name)
            del job  # the next wait must not keep the last call's memory

    def close(self, last: Callable[[], None] = lambda: None) -> None:
        """Wait until all jobs are done and this last one, and end the thread.

        Without a thread, the last job is done here.
        """
        if self._server is None or not self._server.is_alive():
            last()
            return
        self._jobs.put(last)
        self._jobs.put(None)
        self._server.join()
