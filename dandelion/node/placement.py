"""Which call runs next, and where: first in, first out, over engines that differ in what they run.

Pure bookkeeping, no clock, no lock; the node calls it from one thread at a time. A call may have
several code objects, so it may fit several hosts; it takes the first format, in the order of its
function, that has a free host. Otherwise it waits in line and goes to the first host that becomes
free and fits.

Where a device has both an engine of its own (sequential) and workers that share it (concurrent),
the rules are those of the thesis on GPU engines for Dandelion, section 5.5:

* a call that needs more device memory than a host has never goes there;
* a call that fills the device alone runs on the sequential engine;
* every other call runs on a worker if one is free, else on the sequential engine.

Source: the thesis' two conditions; that idle engines take what fits is ours.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Generic, TypeAlias, TypeVar

from dandelion.driver import Demand, InstanceSets
from dandelion.function import Function
from dandelion.node.hosts import EngineHost

LOOK_AHEAD = 32
"""How far behind the head of a line a free host looks for a call that fits it."""


@dataclass(frozen=True, slots=True)
class Needs:
    """What placement must know of a call.

    Attributes:
        formats: formats of its function's code objects, best first.
        demand: what it will need of a device; None if nobody had to ask.
        alone: it may not run where others share its fate.
    """

    formats: tuple[str, ...]
    demand: Demand | None = None
    alone: bool = False


Waiting = TypeVar("Waiting")
Ask: TypeAlias = Callable[[Function, InstanceSets], Demand]


class FifoPlacement(Generic[Waiting]):
    """First in, first out, over all formats."""

    def __init__(self) -> None:
        self._hosts: dict[str, list[EngineHost]] = {}
        self._asked: dict[str, Ask] = {}
        self._lines: dict[tuple[str, ...], deque[tuple[int, Needs, Waiting]]] = {}
        self._number = 0

    def add_host(self, host: EngineHost) -> None:
        """A host may be used from now on."""
        for format_name in host.formats:
            self._hosts.setdefault(format_name, []).append(host)
            if host.facts.demand is not None:
                self._asked.setdefault(format_name, host.facts.demand)

    def remove_host(self, host: EngineHost) -> None:
        """A host is never free again."""
        for format_name in host.formats:
            hosts = self._hosts.get(format_name, [])
            if host in hosts:
                hosts.remove(host)

    def hosts(self, formats: tuple[str, ...]) -> list[EngineHost]:
        """Hosts that run one of these formats, free or not."""
        return [host for name in formats for host in self._hosts.get(name, ())]

    def asked(self, formats: tuple[str, ...]) -> tuple[str, Ask] | None:
        """Find the format whose hosts differ in what they have, and who tells a call's demand."""
        for name in formats:
            ask = self._asked.get(name)
            if ask is not None:
                return name, ask
        return None

    def possible(self, needs: Needs) -> bool:
        """Tell whether any host could ever run a call; one that is starting could."""
        hosts = self.hosts(needs.formats)
        return any(_admits(host, needs) for host in hosts) or any(
            not host.facts.name for host in hosts
        )

    def place(self, needs: Needs) -> tuple[EngineHost, str] | None:
        """Find a free host, or None if the call must wait."""
        for name in needs.formats:
            hosts = self._hosts.get(name)
            if not hosts:
                continue
            if len(hosts) == 1:
                best = hosts[0]
                if best.free > 0 and _admits(best, needs):
                    return best, name
                continue
            fitting = [h for h in hosts if h.free > 0 and self._suits(h, needs)]
            if fitting:
                return max(fitting, key=_rank), name
        return None

    def _suits(self, host: EngineHost, needs: Needs) -> bool:
        """Tell whether a call should run on a host, now that it is free."""
        if not _admits(host, needs):
            return False
        return not (host.facts.worker and self._fills(host, needs))

    def _fills(self, host: EngineHost, needs: Needs) -> bool:
        """Tell whether a call fills the device of a worker alone, and has an engine for that."""
        demand, blocks = needs.demand, host.facts.capacity.blocks
        if demand is None or not blocks or demand.blocks < blocks:
            return False
        return any(
            not other.facts.worker
            and other.facts.backend == host.facts.backend
            and other.facts.resource == host.facts.resource
            and _admits(other, needs)
            for other in self.hosts(needs.formats)
        )

    def wait(self, needs: Needs, waiting: Waiting) -> None:
        """Put a call at the end of the queue."""
        self._number += 1
        line = self._lines.setdefault(needs.formats, deque())
        line.append((self._number, needs, waiting))

    def next_for(self, host: EngineHost) -> tuple[Waiting, str] | None:
        """Take the oldest waiting call that fits a host."""
        best: tuple[int, tuple[str, ...], int] | None = None
        for formats, line in self._lines.items():
            if host.formats.isdisjoint(formats):
                continue
            for at, (number, needs, _) in enumerate(line):
                if at >= LOOK_AHEAD or (best is not None and number > best[0]):
                    break
                if self._suits(host, needs):
                    best = (number, formats, at)
                    break
        if best is None:
            return None
        _, formats, at = best
        line = self._lines[formats]
        _, _, waiting = line[at]
        del line[at]
        if not line:
            del self._lines[formats]
        return waiting, next(name for name in formats if name in host.formats)

    def drop(self, waiting: Waiting) -> bool:
        """Take a call out of the queue. False if it does not wait."""
        for formats, line in self._lines.items():
            for entry in line:
                if entry[2] is waiting:
                    line.remove(entry)
                    if not line:
                        del self._lines[formats]
                    return True
        return False

    def waiting(self) -> Iterator[Waiting]:
        """All calls that wait."""
        for line in self._lines.values():
            for _, _, one in line:
                yield one

    def __len__(self) -> int:
        return sum(len(line) for line in self._lines.values())


def _admits(host: EngineHost, needs: Needs) -> bool:
    """Tell whether a host is able to run a call at all."""
    if needs.alone and host.facts.shared_fate:
        return False
    room = host.facts.capacity.device_bytes
    return needs.demand is None or not room or needs.demand.device_bytes <= room


def _rank(host: EngineHost) -> tuple[bool, int]:
    return host.facts.worker, host.free
