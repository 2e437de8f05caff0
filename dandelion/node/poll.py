"""What the node's loop waits for: descriptors of executors, and what other threads post."""

from __future__ import annotations

import contextlib
import os
import select
import time
from collections import deque
from collections.abc import Callable


class Poll:
    """One epoll, which the loop watches as a whole. On the loop, except for `post`.

    A blocking call on the loop's own thread can wait in `look`, too.

    Attributes:
        posted: what other threads posted and was not taken over yet.
        begun: what was taken over, in order.
        looked_ns: when `look` last returned.
        answered_ns: when something that another thread posted was last taken over.
        gathering: answers are being taken, and are worked on right after.
    """

    def __init__(self) -> None:
        self.posted: deque[Callable[[], None]] = deque()
        self.begun: deque[Callable[[], None]] = deque()
        self.looked_ns = 0
        self.answered_ns = 0
        self.gathering = False
        self._woken = False
        self._epoll = select.epoll()
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._epoll.register(self._wake, select.EPOLLIN)
        self._watched: dict[int, Callable[[], None]] = {self._wake: self.take_posted}

    def fileno(self) -> int:
        """Return the descriptor that is ready when anything is."""
        return self._epoll.fileno()

    def close(self) -> None:
        """Close descriptors; what is posted from here on is not worked on any more."""
        self._epoll.close()
        os.close(self._wake)
        self._wake = -1

    def post(self, event: Callable[[], None]) -> None:
        """Have something done on the loop soon. From any thread."""
        self.posted.append(event)
        if not self._woken:
            self._woken = True
            with contextlib.suppress(OSError):  # closed: nothing is worked on any more
                os.eventfd_write(self._wake, 1)

    def take_posted(self) -> None:
        """Take over what was posted."""
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self._wake)
        self._woken = False  # first: what is posted from here on wakes the loop again
        posted = self.posted
        if posted:
            self.answered_ns = time.monotonic_ns()
        while posted:
            self.begun.append(posted.popleft())

    def watch(self, fd: int, ready: Callable[[], None]) -> None:
        """Call `ready` whenever there is something to read."""
        self._watched[fd] = ready
        self._epoll.register(fd, select.EPOLLIN)

    def unwatch(self, fd: int) -> None:
        """Stop that; the descriptor is still open."""
        if self._watched.pop(fd, None) is not None:
            with contextlib.suppress(OSError):
                self._epoll.unregister(fd)

    def look(self, limit_s: float | None) -> bool:
        """Call `ready` of all descriptors that are ready; False if none was within the limit."""
        found = self._epoll.poll(limit_s)
        self.looked_ns = time.monotonic_ns()
        outer, self.gathering = self.gathering, True
        try:
            for fd, _ in found:
                ready = self._watched.get(fd)
                if ready is not None:
                    ready()
        finally:
            self.gathering = outer
        return bool(found)
