"""Information about this process and its children, for tests."""

import os
import resource
import select
import signal
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path


def children() -> set[int]:
    """Process ids of the children of this process."""
    found: set[int] = set()
    for thread in Path("/proc/self/task").iterdir():
        with suppress(OSError):  # the thread has ended
            found |= {int(pid) for pid in (thread / "children").read_text().split()}
    return found


def children_of(pid: int) -> list[int]:
    """Process ids of the children of another process that has one thread."""
    return [int(p) for p in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def opened(pids: Iterable[int]) -> list[int]:
    """Descriptors of those of these processes that have not ended; the caller closes them."""
    found = []
    for pid in pids:
        with suppress(ProcessLookupError):
            found.append(os.pidfd_open(pid))
    return found


def kill(pidfds: list[int]) -> None:
    """Kill these processes; those that have ended already are left out."""
    for pidfd in pidfds:
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(pidfd, signal.SIGKILL)


def gone(pidfds: list[int], timeout_s: float = 20.0) -> bool:
    """Wait until all of these processes have ended; closes the descriptors."""
    deadline = time.monotonic() + timeout_s
    try:
        for pidfd in pidfds:
            poll = select.poll()
            poll.register(pidfd, select.POLLIN)
            if not poll.poll(max(0.0, deadline - time.monotonic()) * 1000):
                return False
        return True
    finally:
        for pidfd in pidfds:
            os.close(pidfd)


def peak_bytes() -> int:
    """Return the peak memory of this process."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
