"""Limits of a zygote's imports of packages of functions, which the node enforces.

After its imports a zygote has to start processes, to map memory and to raise limits for calls, so
there is nothing that it could give up beforehand to limit them. Therefore a thread of the node
measures its session ten times a second, until its first message, and ends all processes of the
session if they exceed a limit together. No process can leave the session, since the system calls
for that are denied. After the first message, the thread kills the processes that the imports left.

Memory is what processes of the session have mapped, but for files on disk, with what is swapped out
and the tables of pages. Pages that two processes share count for both. Memory files count once, if
the kernel lets the node see them, and once more where they are mapped.
"""

from __future__ import annotations

import os
import signal
import stat
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from .zygote_messages import process_fields

_INTERVAL_S = 0.1
_ROUNDS = 10  # a process may start another one while it is killed
_BLOCK_BYTES = 512  # of st_blocks
_PARENT, _SESSION, _THREADS = 1, 3, 17  # of the fields of a process from its state on
_USED = frozenset({b"RssAnon", b"RssShmem", b"VmSwap", b"VmPTE", b"HugetlbPages"})


@dataclass(frozen=True, slots=True)
class ImportLimits:
    """What the imports of one zygote may use.

    Attributes:
        wall_s: seconds from its start.
        memory_bytes: of all its processes together.
        processes: itself and all that it starts, at any one time.
        threads: of all these processes together.
    """

    wall_s: float = 60.0
    memory_bytes: int = 4 << 30
    processes: int = 64
    threads: int = 1024


LIMITS = ImportLimits()


@dataclass(frozen=True, slots=True)
class _Member:
    """A process of a session."""

    pid: int
    parent: int
    threads: int


class ImportWatch:
    """Watches the session of a zygote, from its start to its first message.

    Args:
        session: process id of the zygote, which is the id of its session.
        has_message: tells whether it has sent a message, or its connection is closed.
        stop: called once, with the reason, if a limit is exceeded. It kills the processes.
    """

    def __init__(
        self, session: int, has_message: Callable[[], bool], stop: Callable[[str], None]
    ) -> None:
        self._session = session
        self._has_message = has_message
        self._stop = stop
        self._limits = LIMITS
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="import-limits", daemon=True)
        self._thread.start()

    def finish(self) -> None:
        """End soon: the first message was received."""
        self._over.set()

    def close(self) -> None:
        """End now. Not called by `stop`."""
        self._over.set()
        self._thread.join()

    def _watch(self) -> None:
        deadline = time.monotonic() + self._limits.wall_s
        while not self._over.wait(_INTERVAL_S) and not self._has_message():
            reason = self._exceeded(time.monotonic() > deadline)
            if reason and not self._has_message():  # else its sandboxes were measured, too
                self._stop(reason)
                return
        self._end_others()

    def _exceeded(self, late: bool) -> str:
        """Return which limit is exceeded; empty if none is."""
        limits = self._limits
        if late:
            return f"its imports take more than {limits.wall_s:g} s"
        try:
            members = list(_members(self._session))
        except OSError:  # the node has no descriptor left; it is tried again
            return ""
        if len(members) > limits.processes:
            return f"its imports start more than {limits.processes} processes"
        if sum(member.threads for member in members) > limits.threads:
            return f"its imports start more than {limits.threads} threads"
        if _memory_bytes(members) > limits.memory_bytes:
            return f"its imports use more than {limits.memory_bytes >> 20} MiB of memory"
        return ""

    def _end_others(self) -> None:
        """Kill what the imports left; the zygote's own children are its sandboxes."""
        for _ in range(_ROUNDS):
            try:
                members = list(_members(self._session))
            except OSError:  # as in `_exceeded`
                time.sleep(_INTERVAL_S)
                continue
            others = [m for m in members if self._session not in (m.pid, m.parent)]
            if not others:
                return
            for member in others:
                _kill(member, self._session)


def _members(session: int) -> Iterator[_Member]:
    """List the processes of a session, those included that have ended and are not reaped."""
    for name in os.listdir("/proc"):
        if name.isdecimal():
            fields = _fields(int(name))
            if fields and int(fields[_SESSION]) == session:
                yield _Member(int(name), int(fields[_PARENT]), int(fields[_THREADS]))


def _fields(pid: int) -> list[bytes]:
    """Return the kernel's fields of a process, from its state on; empty if it is gone."""
    try:
        return process_fields(pid)
    except OSError:
        return []


def _memory_bytes(members: list[_Member]) -> int:
    total = 0
    files: dict[tuple[int, int], int] = {}
    for member in members:
        with suppress(OSError):
            total += _mapped_bytes(Path(f"/proc/{member.pid}/status").read_bytes())
        with suppress(OSError):
            folder = f"/proc/{member.pid}/fd"
            for descriptor in os.listdir(folder):
                with suppress(OSError):
                    found = os.stat(f"{folder}/{descriptor}")
                    if stat.S_ISREG(found.st_mode) and not found.st_nlink:
                        files[found.st_dev, found.st_ino] = found.st_blocks * _BLOCK_BYTES
    return total + sum(files.values())


def _mapped_bytes(status: bytes) -> int:
    """Add up what a process uses, by its file `status`, which counts in units of 1024 bytes."""
    total = 0
    for line in status.splitlines():
        name, _, value = line.partition(b":")
        if name in _USED:
            total += int(value.split()[0]) * 1024
    return total


def _kill(member: _Member, session: int) -> None:
    """Kill a process, unless its number is another one's by now."""
    with suppress(OSError):
        pidfd = os.pidfd_open(member.pid)
        try:
            fields = _fields(member.pid)
            if fields and int(fields[_SESSION]) == session:
                signal.pidfd_send_signal(pidfd, signal.SIGKILL)
        finally:
            os.close(pidfd)
