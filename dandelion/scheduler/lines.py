"""Calls that wait for an engine: lanes of flows, in the order of a policy.

Calls that the same engines suit share a lane. In a lane each flow has one queue, and a heap orders
the queues by the policy's key. Entries of the heap are numbered; only the last number of a queue is
valid, so a queue is moved by pushing it again.

A queue whose tenant or flow has as many calls on engines as its quota allows is *parked*: it is in
no heap until one of these calls ends.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable

from dandelion.errors import Overloaded
from dandelion.scheduler.policy import Policy, engine_stays
from dandelion.scheduler.records import CallQueue, CallState, EngineState, Flow, Lane, Owner


def busy_owner(flow: Flow) -> Owner | None:
    """Return the tenant or flow that has as many calls on engines as it may have."""
    tenant = flow.tenant
    if tenant.calls >= tenant.quota.calls:
        return tenant
    return flow if flow.calls >= flow.quota.calls else None


def overfull(flow: Flow, more: int = 0) -> Overloaded | None:
    """Return why a call may not wait: with so `more` calls, too many of its tenant or flow wait."""
    owners: tuple[Owner, Owner] = (flow.tenant, flow)
    for owner in owners:
        limit = owner.quota.queue_length
        if owner.waiting + more > limit:
            return Overloaded(limit, limit, "calls that wait for an engine", owner.label)
    return None


class Lines:
    """All calls that wait for an engine.

    Args:
        policy: their order.
    """

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self._entry = 0
        self.waiting = 0

    def add(self, call: CallState, lane: Lane, front: bool = False) -> None:
        """Queue a call in a lane, behind the others of its flow or before them."""
        flow = call.flow
        queue = lane.queues.get(flow)
        if queue is None:
            queue = lane.queues[flow] = flow.queues[lane] = CallQueue(flow, lane)
        if front:
            queue.calls.appendleft(call)
        else:
            queue.calls.append(call)
        call.queue = queue
        self._count(flow, 1)
        if not queue.parked and (front or len(queue.calls) == 1):
            self._push(queue)

    def _count(self, flow: Flow, more: int) -> None:
        self.waiting += more
        flow.waiting += more
        flow.tenant.waiting += more

    def _push(self, queue: CallQueue) -> None:
        self._entry += 1
        queue.entry = self._entry
        heapq.heappush(queue.lane.heap, (self._policy.key(queue), self._entry, queue))

    def next_for(self, engine: EngineState) -> CallState | None:
        """Take the call that an engine should run next."""
        best: CallQueue | None = None
        best_key = (0.0, 0)
        for lane in engine.lanes:
            queue = self._top(lane)
            if queue is not None:
                key = (self._policy.key(queue), queue.calls[0].id)
                if best is None or key < best_key:
                    best, best_key = queue, key
        if best is None:
            return None
        queue = engine_stays(self._policy, engine, best)
        if queue is not best and busy_owner(queue.flow) is not None:
            queue = best  # the other one is not parked yet
        call = queue.calls[0]
        self.remove(call)
        return call

    def _top(self, lane: Lane) -> CallQueue | None:
        """Return the next queue of a lane; park queues over their quota on the way."""
        heap = lane.heap
        while heap:
            key, entry, queue = heap[0]
            if entry != queue.entry:
                heapq.heappop(heap)
                continue
            owner = busy_owner(queue.flow)
            if owner is not None:
                heapq.heappop(heap)
                queue.entry = 0
                queue.parked = owner
                owner.parked.append(queue)
                continue
            if self._policy.key(queue) > key:
                heapq.heappop(heap)
                self._push(queue)
                continue
            return queue
        return None

    def remove(self, call: CallState) -> None:
        """Take a call out of its queue."""
        queue = call.queue
        assert queue is not None, "it waits"
        call.queue = None
        self._count(call.flow, -1)
        head = queue.calls[0] is call
        if head:
            queue.calls.popleft()
        else:
            queue.calls.remove(call)
        if not queue.calls:
            self._forget(queue)
        elif head and not queue.parked:
            self._push(queue)

    def _forget(self, queue: CallQueue) -> None:
        queue.entry = 0
        if queue.parked is not None:
            queue.parked.parked.remove(queue)
            queue.parked = None
        del queue.lane.queues[queue.flow]
        del queue.flow.queues[queue.lane]
        if not queue.lane.queues:
            queue.lane.heap.clear()

    def reorder(self, flow: Flow) -> None:
        """The policy's key of a flow became smaller."""
        for queue in flow.queues.values():
            if not queue.parked:
                self._push(queue)

    def unpark(self, owner: Owner) -> list[Lane]:
        """Unpark the queues of a tenant or flow; return their lanes."""
        queues, owner.parked = owner.parked, []
        for queue in queues:
            queue.parked = None
            self._push(queue)
        return [queue.lane for queue in queues]

    def drain(self, lanes: Iterable[Lane]) -> list[CallState]:
        """Remove all calls from lanes that are no longer used; in order of arrival."""
        calls: list[CallState] = []
        for lane in lanes:
            for queue in list(lane.queues.values()):
                for call in list(queue.calls):
                    self.remove(call)
                    calls.append(call)
        return sorted(calls, key=lambda call: call.id)
