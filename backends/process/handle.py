"""The node's handle of one sandbox."""

from __future__ import annotations

import os
import select
import signal
import socket
import threading
import time
from dataclasses import dataclass, field

from . import wire

_CPU_CLOCK = 2  # CPUCLOCK_SCHED of a process: linux/posix-timers.h


class NoSandbox(Exception):
    """None became ready in time."""


@dataclass(slots=True)
class Sandbox:
    """A child that waits for its one call, or runs it. Owns its descriptors.

    Attributes:
        pid: process id; may be another's once the zygote has reaped it.
        channel: connection to it.
        pidfd: names the process, whatever becomes of its id.
        output: file into which it writes large replies.
        log: what it prints.
        listener: tells of denied system calls; None if the kernel cannot.
    """

    pid: int
    channel: socket.socket
    pidfd: int
    output: int
    log: int
    listener: int | None = None
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def cpu_s(self) -> float:
        """CPU time that it has used, in seconds; zero if it is gone."""
        try:
            return time.clock_gettime(~self.pid << 3 | _CPU_CLOCK)
        except OSError:
            return 0.0

    def ended(self, timeout_s: float) -> bool:
        """Wait until it has ended."""
        poll = select.poll()
        poll.register(self.pidfd, select.POLLIN)
        return bool(poll.poll(timeout_s * 1000))

    def kill(self) -> None:
        """End it, from any thread."""
        with self._lock:
            if self.pidfd < 0:
                return
            try:
                signal.pidfd_send_signal(self.pidfd, signal.SIGKILL)
            except ProcessLookupError:
                return

    def close(self) -> None:
        """End it and close its descriptors. May be called twice."""
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


def greet(pid: int, files: list[int], deadline_ns: int) -> Sandbox | None:
    """Take the first message of a new sandbox: that it is locked, and the listener.

    Args:
        pid: its process id.
        files: its socket, pidfd, output file and log.
        deadline_ns: on `time.monotonic_ns`.

    Returns:
        The sandbox; None if it is dead.

    Raises:
        NoSandbox: it was not ready in time, and was ended.
    """
    channel_fd, pidfd, output, log = files
    channel = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET, 0, fileno=channel_fd)
    sandbox = Sandbox(pid, channel, pidfd, output, log)
    try:
        while True:
            try:
                message, listeners = wire.receive(channel, 16, 1, socket.MSG_DONTWAIT)
                break
            except BlockingIOError:
                wait_readable(channel, deadline_ns)
    except (OSError, NoSandbox):
        sandbox.close()
        raise
    sandbox.listener = listeners[0] if listeners else None
    if not message or sandbox.ended(0):
        sandbox.close()
        return None
    return sandbox


def wait_readable(source: socket.socket, deadline_ns: int) -> None:
    """Wait until there is something to receive.

    Raises:
        NoSandbox: there was nothing before `deadline_ns`.
    """
    left_ns = deadline_ns - time.monotonic_ns()
    poll = select.poll()
    poll.register(source, select.POLLIN)
    if left_ns <= 0 or not poll.poll(left_ns / 1e6):
        raise NoSandbox("none was ready in time")
