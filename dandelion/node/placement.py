"""Which call runs next, and where: first in, first out, over engines that differ in what they run.

Pure bookkeeping, no clock, no lock; the node calls it from one thread at a time. A call may have
several code objects, so it may fit several hosts; it takes the first format, in the order of its
function, that has a free host. Otherwise it waits in line and goes to the first host that becomes
free and fits.

Where a device has both an engine of its own (sequential) and workers that share it (concurrent),
the rules are those of the thesis on GPU engines for Dandelion, section 5.5:

* a call that needs more device memory than a host has never goes there;
* a call that fills the device alone runs on the sequential engine: one with a launch of so many
  blocks that no compute unit could hold another one (by threads; local memory is not counted);
* every other call runs on a worker: an idle one if there is one, best the one that ran the function
  last, where its code and constants are.

While an engine of the kind that a call wants is not up, the other kind takes it. Workers that share
their fate are up together: if one was lost to a fault, the others are about to notice that they
were, too. An idle sequential
engine does not help out: it would take turns with the workers and slow all of them down (measured
with MPS: two workers gave 1.14 times the throughput of none, where they give twice as much alone).

Source: the thesis' two conditions.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Generic, TypeVar

from dandelion.driver import Demand, Driver
from dandelion.node.hosts import EngineHost, State

LOOK_AHEAD = 32
"""How far behind the head of a line a free host looks for a call that fits it."""


@dataclass(frozen=True, slots=True)
class Needs:
    """What placement must know of a call.

    Attributes:
        formats: formats of its function's code objects, best first.
        demand: what it will need of a device; None if nobody had to ask.
        driver: who told that.
        alone: it may not run where others share its fate.
        function: identity of its function, if that was asked for.
    """

    formats: tuple[str, ...]
    demand: Demand | None = None
    alone: bool = False
    function: str = ""
    driver: Driver | None = None


Waiting = TypeVar("Waiting", bound=Hashable)


class FifoPlacement(Generic[Waiting]):
    """First in, first out, over all formats."""

    def __init__(self) -> None:
        self._hosts: dict[str, list[EngineHost]] = {}
        self._lines: dict[tuple[str, ...], OrderedDict[int, tuple[Needs, Waiting]]] = {}
        self._tickets: dict[Waiting, tuple[tuple[str, ...], int]] = {}
        self._number = 0

    def add_host(self, host: EngineHost) -> None:
        """A host may be used from now on. It may have been added before."""
        for format_name in host.formats:
            hosts = self._hosts.setdefault(format_name, [])
            if host not in hosts:
                hosts.append(host)

    def remove_host(self, host: EngineHost) -> None:
        """A host is not free again, unless it is added once more."""
        for format_name in host.formats:
            hosts = self._hosts.get(format_name, [])
            if host in hosts:
                hosts.remove(host)

    def hosts(self, formats: tuple[str, ...]) -> list[EngineHost]:
        """Hosts that run one of these formats, free or not."""
        return [host for name in formats for host in self._hosts.get(name, ())]

    def siblings(self, host: EngineHost) -> list[EngineHost]:
        """Other hosts that share the fate of a host."""
        return [
            other
            for other in self.hosts(tuple(host.formats)[:1])
            if other is not host
            and other.facts.shared_fault_domain
            and other.facts.device == host.facts.device
        ]

    def asked(self, formats: tuple[str, ...]) -> tuple[str, Driver] | None:
        """Find the format whose hosts differ in what they have, and who tells a call's demand.

        That is the driver of a host that is up. While all are starting it may be another one than
        these will have; see `renew`.
        """
        for name in formats:
            starting: Driver | None = None
            for host in self._hosts.get(name, ()):
                driver = host.driver
                if driver is not None and host.state is State.READY:
                    return name, driver
                starting = starting or driver
            if starting is not None:
                return name, starting
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
            free = _standing([h for h in hosts if h.free > 0 and _admits(h, needs)], hosts)
            fitting = [h for h in free if _prefers(h, needs)]
            if not fitting:
                fitting = [h for h in free if not self._has_other_kind(h, needs)]
            if fitting:
                return max(fitting, key=lambda h: _rank(h, needs)), name
        return None

    def _suits(self, host: EngineHost, needs: Needs) -> bool:
        """Tell whether a call should run on a host, now that it is free."""
        return _admits(host, needs) and (
            _prefers(host, needs) or not self._has_other_kind(host, needs)
        )

    def _has_other_kind(self, host: EngineHost, needs: Needs) -> bool:
        """Tell whether the device of a host has an engine of the other kind that takes a call."""
        hosts = self.hosts(needs.formats)
        others = [
            other
            for other in hosts
            if other.facts.worker != host.facts.worker
            and other.facts.device == host.facts.device
            and other.state is State.READY
            and _admits(other, needs)
        ]
        return bool(_standing(others, hosts))

    def wait(self, needs: Needs, waiting: Waiting) -> None:
        """Put a call at the end of the queue; it waits once at most."""
        self._number += 1
        line = self._lines.setdefault(needs.formats, OrderedDict())
        line[self._number] = (needs, waiting)
        self._tickets[waiting] = (needs.formats, self._number)

    def renew(self, needs: Needs, waiting: Waiting) -> bool:
        """More is known of a call; it keeps its place in the queue. False if it does not wait.

        Its formats are the same.
        """
        if waiting not in self._tickets:
            return False
        formats, number = self._tickets[waiting]
        self._lines[formats][number] = (needs, waiting)
        return True

    def next_for(self, host: EngineHost) -> tuple[Waiting, str] | None:
        """Take the oldest waiting call that fits a host."""
        if host.facts.shared_fault_domain and not _standing(
            [host], self.hosts(tuple(host.formats))
        ):
            return None
        best: tuple[int, Waiting] | None = None
        for formats, line in self._lines.items():
            if host.formats.isdisjoint(formats):
                continue
            for number, (needs, waiting) in islice(line.items(), LOOK_AHEAD):
                if best is not None and number > best[0]:
                    break
                if self._suits(host, needs):
                    best = (number, waiting)
                    break
        if best is None:
            return None
        formats = self._take(best[1])
        return best[1], next(name for name in formats if name in host.formats)

    def drop(self, waiting: Waiting) -> bool:
        """Take a call out of the queue. False if it does not wait."""
        if waiting not in self._tickets:
            return False
        self._take(waiting)
        return True

    def _take(self, waiting: Waiting) -> tuple[str, ...]:
        formats, number = self._tickets.pop(waiting)
        line = self._lines[formats]
        del line[number]
        if not line:
            del self._lines[formats]
        return formats

    def waiting(self) -> Iterator[Waiting]:
        """All calls that wait."""
        return iter(self._tickets)

    def __len__(self) -> int:
        return len(self._tickets)


def _standing(hosts: list[EngineHost], among: list[EngineHost]) -> list[EngineHost]:
    """Leave out those that share their fate with one that is not up."""
    fallen = {
        h.facts.device for h in among if h.facts.shared_fault_domain and h.state is State.STARTING
    }
    if not fallen:
        return hosts
    return [h for h in hosts if not h.facts.shared_fault_domain or h.facts.device not in fallen]


def _admits(host: EngineHost, needs: Needs) -> bool:
    """Tell whether a host is able to run a call at all."""
    if needs.alone and host.facts.shared_fault_domain:
        return False
    room = host.facts.capacity.device_bytes
    return needs.demand is None or not room or needs.demand.device_bytes <= room


def _prefers(host: EngineHost, needs: Needs) -> bool:
    """Tell whether a host is of the kind, worker or sequential, that a call should have."""
    if needs.demand is None:
        return True
    return host.facts.worker != host.facts.capacity.saturated_by(needs.demand)


def _rank(host: EngineHost, needs: Needs) -> tuple[bool, bool, int, int]:
    """Order hosts for a call: idle ones first, and there one that knows the function."""
    return host.facts.worker, not host.busy, host.knows(needs.function), host.free
