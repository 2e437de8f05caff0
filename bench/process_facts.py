"""The memory, files and children of processes, as Linux reports them.

Only pages that were written to count. Whether clean pages of a file are private depends on which
other processes use the file.
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
    """Give the size of its private written pages and of its page tables; 0 if it ended."""
    try:
        rollup = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
        status = Path(f"/proc/{pid}/status").read_text().splitlines()
    except _GONE:
        return 0
    lines = [line for line in rollup if line.startswith(("Private_Dirty", "Swap:"))]
    lines += [line for line in status if line.startswith("VmPTE")]
    return sum(int(line.split()[1]) for line in lines) * 1024


def trimmed_bytes() -> int:
    """Return unused memory of this process to the system, and give what it still has."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    return own_bytes(os.getpid())


def open_files(pid: int) -> int:
    """Count the file descriptors of a process."""
    return len(os.listdir(f"/proc/{pid}/fd"))


def processor_s(pid: int) -> float:
    """Give the time that a process and all its descendants have used, also those that have ended.

    A descendant counts if its parent waited for it, so zygotes have the time of their sandboxes.
    """
    total, found = 0, [pid]
    while found:
        one = found.pop()
        try:
            fields = Path(f"/proc/{one}/stat").read_text().rpartition(")")[2].split()
        except _GONE:
            continue
        total += sum(int(field) for field in fields[11:15])
        found += children(one)
    return total / os.sysconf("SC_CLK_TCK")
