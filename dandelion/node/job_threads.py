"""Threads for what takes time, all of them started with the node.

A pool that starts its threads when they are needed cannot take a job if the system has no thread
left then, and what waits for that job would wait for ever.
"""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor


class JobThreads(ThreadPoolExecutor):
    """A pool of threads.

    Args:
        count: of threads.
        name: of the threads.
    """

    def __init__(self, count: int, name: str) -> None:
        super().__init__(count, name)
        self._count = count

    def start(self) -> None:
        """Start all threads; before the first job.

        Raises:
            RuntimeError: the system has no thread left.
        """
        all_run = threading.Barrier(self._count)
        try:
            for _ in range(self._count):
                self.submit(all_run.wait)  # each thread takes one
        except BaseException:
            all_run.abort()
            raise
