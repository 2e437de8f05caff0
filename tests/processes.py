"""Information about this process and its children, for tests."""

import resource
from contextlib import suppress
from pathlib import Path


def children() -> set[int]:
    """Process ids of the children of this process."""
    found: set[int] = set()
    for thread in Path("/proc/self/task").iterdir():
        with suppress(OSError):  # the thread has ended
            found |= {int(pid) for pid in (thread / "children").read_text().split()}
    return found


def peak_bytes() -> int:
    """Return the peak memory of this process."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
