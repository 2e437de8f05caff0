"""Which call runs next, and where: a first-in-first-out queue over engines that run some formats.

Pure bookkeeping, no clock, no lock; the node calls it from one thread at a time. A call may have
several code objects, so it may fit several hosts; it takes the first format, in the order of its
function, that has a free host. Otherwise it waits in line and goes to the first host that becomes
free and fits.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Generic, Protocol, TypeVar


class Place(Protocol):
    """What the queue needs of a host."""

    formats: frozenset[str]

    @property
    def free(self) -> int: ...


Waiting = TypeVar("Waiting")
Host = TypeVar("Host", bound=Place)


class FifoPlacement(Generic[Host, Waiting]):
    """First in, first out, over all formats."""

    def __init__(self) -> None:
        self._hosts: dict[str, list[Host]] = {}
        self._lines: dict[tuple[str, ...], deque[tuple[int, Waiting]]] = {}
        self._number = 0

    def add_host(self, host: Host) -> None:
        """A host may be used from now on."""
        for format_name in host.formats:
            self._hosts.setdefault(format_name, []).append(host)

    def remove_host(self, host: Host) -> None:
        """A host is never free again."""
        for format_name in host.formats:
            hosts = self._hosts.get(format_name, [])
            if host in hosts:
                hosts.remove(host)

    def hosts(self, formats: tuple[str, ...]) -> list[Host]:
        """Hosts that could run code of one of these formats, free or not."""
        return [host for name in formats for host in self._hosts.get(name, ())]

    def place(self, formats: tuple[str, ...]) -> tuple[Host, str] | None:
        """Find a free host, or None if the call must wait."""
        for name in formats:
            hosts = self._hosts.get(name)
            if hosts:
                best = hosts[0] if len(hosts) == 1 else max(hosts, key=_free)
                if best.free > 0:
                    return best, name
        return None

    def wait(self, formats: tuple[str, ...], waiting: Waiting) -> None:
        """Put a call at the end of the queue."""
        self._number += 1
        self._lines.setdefault(formats, deque()).append((self._number, waiting))

    def next_for(self, host: Host) -> tuple[Waiting, str] | None:
        """Take the oldest waiting call that fits a host."""
        fitting = [
            (line[0][0], formats)
            for formats, line in self._lines.items()
            if line and not host.formats.isdisjoint(formats)
        ]
        if not fitting:
            return None
        _, formats = min(fitting)
        line = self._lines[formats]
        _, waiting = line.popleft()
        if not line:
            del self._lines[formats]
        return waiting, next(name for name in formats if name in host.formats)

    def drop(self, waiting: Waiting) -> bool:
        """Take a call out of the queue. False if it does not wait."""
        for formats, line in self._lines.items():
            for entry in line:
                if entry[1] is waiting:
                    line.remove(entry)
                    if not line:
                        del self._lines[formats]
                    return True
        return False

    def waiting(self) -> Iterator[Waiting]:
        """All calls that wait."""
        for line in self._lines.values():
            for _, one in line:
                yield one

    def __len__(self) -> int:
        return sum(len(line) for line in self._lines.values())


def _free(host: Place) -> int:
    return host.free
