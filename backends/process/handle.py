"""The node's handle of one sandbox."""

from __future__ import annotations

import os
import re
import select
import signal
import socket
import struct
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

SOON_NS = 5_000_000
"""Timeout of a receive from a sandbox's channel."""

_SOON = struct.pack("@ll", 0, SOON_NS // 1000)  # struct timeval
_CPU_LIMIT = re.compile(r"^Max cpu time +\S+ +(\d+) ", re.MULTILINE)  # the soft one, the hard one
_CPU_CLOCK = 2  # CPUCLOCK_SCHED of a process: linux/posix-timers.h


class NoSandbox(Exception):
    """No sandbox was ready in time."""


@dataclass(slots=True)
class Sandbox:
    """A child that waits for its one call, or runs it. Owns its descriptors.

    Attributes:
        pid: process id; may be reused once the zygote has reaped it.
        channel: connection to it.
        pidfd: identifies the process even when its id is reused.
        output: file into which it writes large replies.
        log: its standard output and error.
        listener: reports denied system calls; None if the kernel has no such listener.
    """

    pid: int
    channel: socket.socket
    pidfd: int
    output: int
    log: int
    listener: int | None = None
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        self.channel.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, _SOON)

    def cpu_s(self) -> float:
        """CPU time that it has used, in seconds; zero if it is gone."""
        try:
            return time.clock_gettime(~self.pid << 3 | _CPU_CLOCK)
        except OSError:
            return 0.0

    def cpu_limit_s(self) -> float | None:
        """CPU time at which the kernel kills it, also after it has ended; None if unknown.

        A function can lower this limit of its own process, but not raise it.
        """
        try:
            text = Path(f"/proc/{self.pid}/limits").read_text()
        except OSError:
            return None
        found = _CPU_LIMIT.search(text)
        return float(found[1]) if found else None

    def ended(self, timeout_s: float) -> bool:
        """Wait until it has ended."""
        poll = select.poll()
        poll.register(self.pidfd, select.POLLIN)
        return bool(poll.poll(timeout_s * 1000))

    def kill(self) -> None:
        """Kill it. Safe from any thread."""
        with self._lock:
            if self.pidfd < 0:
                return
            try:
                signal.pidfd_send_signal(self.pidfd, signal.SIGKILL)
            except ProcessLookupError:
                return

    def close(self, kill: bool = True) -> None:
        """Close its descriptors. May be called twice.

        Args:
            kill: kill it; otherwise its zygote does.
        """
        if kill:
            self.kill()
        with self._lock:
            if self.pidfd < 0:
                return
            os.close(self.pidfd)
            self.pidfd = -1
        self.channel.close()
        os.close(self.output)
        os.close(self.log)
        if self.listener is not None:
            os.close(self.listener)


def wait_readable(source: socket.socket, deadline_ns: int) -> None:
    """Wait until there is a message to receive.

    Raises:
        NoSandbox: there was none before `deadline_ns`.
    """
    left_ns = deadline_ns - time.monotonic_ns()
    poll = select.poll()
    poll.register(source, select.POLLIN)
    if left_ns <= 0 or not poll.poll(left_ns / 1e6):
        raise NoSandbox("no sandbox was ready in time")
