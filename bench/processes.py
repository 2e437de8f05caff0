"""Processes and the memory that is theirs alone, as Linux tells it.

Only pages that were written to count. Clean ones are copies of files, and who else has such a file
in use decides whether they count as private: a library's pages would come and go with neighbours.
"""

from __future__ import annotations

import ctypes
import gc
import os
from pathlib import Path

_GONE = (ProcessLookupError, FileNotFoundError)


def children(pid: int) -> list[int]:
    """List the children of a process, of all its threads."""
    found: list[int] = []
    for path in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            found += [int(word) for word in path.read_text().split()]
        except _GONE:
            continue  # that thread has just ended
    return found


def own_bytes(pid: int) -> int:
    """Tell the size of pages that it alone wrote to, and of its page tables; zero if it ended."""
    try:
        rollup = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
        status = Path(f"/proc/{pid}/status").read_text().splitlines()
    except _GONE:
        return 0
    lines = [line for line in rollup if line.startswith(("Private_Dirty", "Swap:"))]
    lines += [line for line in status if line.startswith("VmPTE")]
    return sum(int(line.split()[1]) for line in lines) * 1024


def settled_bytes() -> int:
    """Give back what this process can, and tell what is left of its own."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    return own_bytes(os.getpid())


def open_files(pid: int) -> int:
    """Count the file descriptors of a process."""
    return len(os.listdir(f"/proc/{pid}/fd"))
