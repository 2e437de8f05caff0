"""Instances that wait before they are run again.

A walk asks for a pause when an instance failed and is to be tried again later. The failed call has
ended by then: a pause is no call. It has no place in a queue or on an engine, and its function may
leave the memory. It counts for its tenant, which may have as many pauses as waiting calls; then no
further one begins, and the instance has failed. Its inputs are charged to the tenant, as those of
calls are.

A pause ends when its time is over, or with its invocation, or if the walk cancels it. Entries of
pauses that ended early stay in the heap until their time is over, or until they are too many. They
name their invocation, and do not refer to it: it may have data.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field

from dandelion.dispatcher import Pause
from dandelion.scheduler.records import InvocationState

_KEPT = 64
"""The heap may have this many ended pauses, and one for each that has not ended."""


@dataclass(slots=True)
class _Paused:
    """An invocation, and the instances that pause, by their numbers within its walk."""

    invocation: InvocationState
    instances: set[int] = field(default_factory=set)


class Pauses:
    """All pauses of a node."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, str, int]] = []  # due, order, invocation, instance
        self._of: dict[str, _Paused] = {}  # by invocation
        self._order = 0
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def of(self, invocation: InvocationState) -> int:
        """Return how many pauses an invocation has."""
        paused = self._of.get(invocation.id)
        return 0 if paused is None else len(paused.instances)

    def begin(self, invocation: InvocationState, pause: Pause, now_ns: int) -> bool:
        """Begin a pause; False if the tenant has too many."""
        tenant = invocation.tenant
        if tenant.paused >= tenant.quota.queue_length:
            return False
        paused = self._of.get(invocation.id)
        if paused is None:
            paused = self._of[invocation.id] = _Paused(invocation)
        paused.instances.add(pause.instance)
        tenant.paused += 1
        self._count += 1
        self._order += 1
        due_ns = now_ns + int(pause.pause_s * 1e9)
        heapq.heappush(self._heap, (due_ns, self._order, invocation.id, pause.instance))
        return True

    def end(self, invocation: InvocationState, instance: int) -> bool:
        """End a pause; False if there is none."""
        paused = self._of.get(invocation.id)
        if paused is None or instance not in paused.instances:
            return False
        paused.instances.remove(instance)
        if not paused.instances:
            del self._of[invocation.id]
        invocation.tenant.paused -= 1
        self._count -= 1
        if len(self._heap) > 2 * self._count + _KEPT:
            self._heap = [entry for entry in self._heap if self._is_open(entry)]
            heapq.heapify(self._heap)
        return True

    def end_all(self, invocation: InvocationState) -> None:
        """End the pauses of an invocation that ended."""
        paused = self._of.get(invocation.id)
        if paused is not None:
            for instance in list(paused.instances):
                self.end(invocation, instance)

    def take_due(self, now_ns: int) -> tuple[InvocationState, int] | None:
        """End the first pause whose time is over, and return it."""
        while self._heap and self._heap[0][0] <= now_ns:
            _, _, name, instance = heapq.heappop(self._heap)
            paused = self._of.get(name)
            if paused is not None and self.end(paused.invocation, instance):
                return paused.invocation, instance
        return None

    @property
    def next_due_ns(self) -> int | None:
        """When the first pause ends; None if there is none."""
        heap = self._heap
        while heap and not self._is_open(heap[0]):
            heapq.heappop(heap)
        return heap[0][0] if heap else None

    def check(self) -> None:
        """Check the consistency, for tests.

        Raises:
            AssertionError: names the violated invariant.
        """
        entries = [entry[2:] for entry in self._heap if self._is_open(entry)]
        known = {(name, one) for name, paused in self._of.items() for one in paused.instances}
        assert len(entries) == len(known), "a pause ends twice, or never"
        assert set(entries) == known, "a pause never ends"
        assert len(known) == self._count, f"{self._count} pauses"
        assert len(self._heap) <= 2 * self._count + _KEPT + 2, "ended pauses are kept"

    def _is_open(self, entry: tuple[int, int, str, int]) -> bool:
        paused = self._of.get(entry[2])
        return paused is not None and entry[3] in paused.instances
