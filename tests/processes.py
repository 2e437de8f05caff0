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
    return children_of(os.getpid())


def children_of(pid: int) -> set[int]:
    """Process ids of the children of a process, also of those that ended and were not reaped.

    Empty if the process has ended.
    """
    found = _children_of(pid)
    while (again := _children_of(pid)) != found:  # one that ends meanwhile may hide another one
        found = again
    return found


def _children_of(pid: int) -> set[int]:
    found: set[int] = set()
    with suppress(OSError):  # the process has ended
        for thread in Path(f"/proc/{pid}/task").iterdir():
            with suppress(OSError):  # the thread has ended
                found |= {int(child) for child in (thread / "children").read_text().split()}
    return found


def open_files(pid: int) -> list[str]:
    """What the descriptors of a process refer to, in their order.

    Except for libffi, which keeps its own file open since version 3.5.
    """
    descriptors = sorted(Path(f"/proc/{pid}/fd").iterdir(), key=lambda entry: int(entry.name))
    return [what for what in map(os.readlink, descriptors) if "/libffi." not in what]


def command_of(pid: int) -> bytes | None:
    """Command line of a process; None if the process has ended."""
    with suppress(FileNotFoundError, ProcessLookupError):
        command = Path(f"/proc/{pid}/cmdline").read_bytes()
        return command if lives(pid) else None
    return None


def lives(pid: int) -> bool:
    """Whether a process has not ended; one that was not reaped has ended."""
    with suppress(FileNotFoundError, ProcessLookupError):
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        return state not in ("Z", "X")
    return False


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
