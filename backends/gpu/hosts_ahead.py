"""Kernel hosts that are started before they are needed.

Starting one takes about half a second of a processor: a device, and a compiler that has compiled
once. So one waits for the next new function. When it is taken, another is started, but not
at once: that would compete with the call that took it. A thread does it in the first pause between
calls, or after a while if there is none.
"""

from __future__ import annotations

import contextlib
import errno
import threading
import time
from collections.abc import Callable

from dandelion.errors import EngineDied

from .host_process import HostProcess

PAUSE_S = 3.0
LONGEST_S = 30.0


class HostsAhead:
    """Keeps one host waiting.

    Args:
        start: starts a host, without waiting for it; called by one thread at a time.
        end: ends one that was not used.

    Raises:
        OSError: there can be no further process or thread.
    """

    def __init__(
        self, start: Callable[[], HostProcess], end: Callable[[HostProcess], None]
    ) -> None:
        self._start = start
        self._end = end
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._closed = False
        self._wanted = False
        self._called_s = 0.0
        host = start()
        self._waiting: HostProcess | None = host
        self._thread = threading.Thread(target=self._serve, name="hosts-ahead", daemon=True)
        try:
            self._thread.start()
        except RuntimeError as error:
            end(host)
            raise OSError(errno.EAGAIN, str(error)) from None

    def peek(self) -> HostProcess | None:
        """Give the host that waits, which stays."""
        return self._waiting

    def take(self) -> HostProcess:
        """Give the host that waits, or a new one; it may not be ready yet."""
        with self._changed:
            host, self._waiting = self._waiting, None
            self._wanted = True
            self._called_s = time.monotonic()
            self._changed.notify()
            return self._start() if host is None else host

    def called(self) -> None:
        """Note that there was a call just now: this is no pause."""
        self._called_s = time.monotonic()

    def _serve(self) -> None:
        while True:
            with self._changed:
                while not (self._wanted or self._closed):
                    self._changed.wait()
                latest_s = time.monotonic() + LONGEST_S
                while not self._closed:
                    now_s = time.monotonic()
                    left_s = min(self._called_s + PAUSE_S, latest_s) - now_s
                    if left_s <= 0:
                        break
                    self._changed.wait(left_s)
                if self._closed:
                    return
                self._wanted = False
                if self._waiting is None:
                    with contextlib.suppress(
                        OSError, EngineDied
                    ):  # `take` tries again, and raises it
                        self._waiting = self._start()

    def close(self) -> None:
        """End the host that waits, and the thread. May be called twice."""
        with self._changed:
            self._closed = True
            self._changed.notify()
            host, self._waiting = self._waiting, None
        if host is not None:
            self._end(host)
        self._thread.join()
