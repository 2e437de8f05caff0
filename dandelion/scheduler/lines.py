"""Calls that wait for an engine: lanes of flows, in the order of a policy.

Calls that the same engines suit share a lane. In a lane each flow has one queue, and a heap orders
the queues by the policy's key. Entries of the heap are numbered; only the last number of a queue is
valid, so a queue is moved by pushing it again. Policies that choose by engine need no heap.

A queue whose tenant or flow has as many calls on engines as its quota allows is *parked*: it takes
no turn until one of these calls ends.

The turn of a queue may be used by a call of another queue that has a higher priority, of the same
tenant. The first queue then keeps its call, and gets the last slot of the other one.
"""

from __future__ import annotations

import heapq
from bisect import insort
from collections.abc import Iterable, Sequence
from itertools import islice
from operator import attrgetter

from mypy_extensions import mypyc_attr

from dandelion.errors import Overloaded
from dandelion.scheduler.engine import EngineState
from dandelion.scheduler.policy import NEVER, Policy
from dandelion.scheduler.records import CallQueue, CallState, Flow, Lane, Owner


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


_RANK = attrgetter("rank")
HELD_LOOKED_AT = 64
"""How many flows are looked at for one whose constants a device has."""


@mypyc_attr(allow_interpreted_subclasses=True)
class Lines:
    """All calls that wait for an engine.

    Args:
        policy: their order.
    """

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self._entry = 0
        self.waiting = 0

    def add(self, call: CallState, lane: Lane) -> None:
        """Queue a call in a lane."""
        flow = call.flow
        queue = lane.queues.get(flow)
        if queue is None:
            queue = lane.queues[flow] = flow.queues[lane] = CallQueue(flow, lane)
        place = self._policy.place(call)
        priority = call.invocation.priority
        call.rank = (-priority, place)
        if priority:
            flow.tenant.prioritized += 1
        calls, slots = queue.calls, queue.slots
        first = not slots or place < slots[0]
        if not slots or (calls[-1].rank <= call.rank and slots[-1] <= place):
            calls.append(call)
            slots.append(place)
        else:
            insort(calls, call, key=_RANK)
            insort(slots, place)
        call.queue = queue
        self._count(flow, 1)
        if first and not queue.parked:
            self._push(queue)

    def _count(self, flow: Flow, more: int) -> None:
        self.waiting += more
        flow.waiting += more
        flow.tenant.waiting += more

    def _push(self, queue: CallQueue) -> None:
        self._entry += 1
        queue.entry = self._entry
        if not self._policy.by_engine:
            heapq.heappush(queue.lane.heap, (self._policy.key(queue), self._entry, queue))

    def next_for(self, engine: EngineState) -> CallState | None:
        """Take the call that an engine should run next."""
        queue = self._best(engine)
        if queue is None:
            return None
        if queue.calls[0].attempt > 1:
            queue = self._before_suspect(engine, queue)
        call = queue.calls[0]
        if queue.flow.tenant.prioritized:
            call = self._first_by_priority(engine, call)
        own = call.queue
        assert own is not None, "it waits"
        queue.slots.popleft()
        if own is not queue:
            call.turn, call.lane = queue.flow, queue.lane
            insort(queue.slots, own.slots.pop())
            self._push(queue)
        self._take(call, own)
        return call

    def head_for(self, engine: EngineState) -> CallState | None:
        """Return the first call of the queue whose turn it is, without taking it."""
        queue = self._best(engine)
        return None if queue is None else queue.calls[0]

    def take_first(self, queue: CallQueue) -> CallState | None:
        """Take the first call of a queue out of its turn, if nothing speaks against that."""
        call, flow = queue.calls[0], queue.flow
        if queue.parked or flow.tenant.prioritized or call.attempt > 1 or busy_owner(flow):
            return None
        queue.slots.popleft()
        self._take(call, queue)
        return call

    def _first_by_priority(self, engine: EngineState, call: CallState) -> CallState:
        """Return the call of the same tenant that uses the turn of this one; perhaps this one."""
        tenant = call.flow.tenant
        heads = [q.calls[0] for q in self._open(engine) if q.flow.tenant is tenant]
        first = min(heads, key=_RANK)
        return first if first.rank[0] < call.rank[0] else call

    def _best(self, engine: EngineState) -> CallQueue | None:
        """Return the queue that has its turn on an engine."""
        contenders = [q for lane in engine.lanes for q in self._contenders(lane, engine.last)]
        if len(contenders) == 1 and not self._policy.by_engine:
            return self._ready(engine, contenders[0])
        best, best_rank = None, (NEVER, -NEVER)
        for queue in contenders:
            cost = self._policy.cost(engine, queue.flow, queue.lane)
            rank = (self._policy.key(queue) + cost, queue.slots[0])
            if rank < best_rank:
                best, best_rank = queue, rank
        return None if best is None else self._ready(engine, best)

    def _ready(self, engine: EngineState, best: CallQueue) -> CallQueue:
        """Return a queue whose flow's constants the device has, if `best` may wait for that."""
        lead = self._policy.lead(best.flow) if engine.lacks(best.flow) else 0.0
        if not lead:
            return best
        policy, queues, held = self._policy, best.lane.queues, engine.held
        start = policy.key(best) + policy.cost(engine, best.flow, best.lane)
        found, least = best, (start + lead, NEVER)
        for flow in islice(queues if len(queues) < len(held) else held, HELD_LOOKED_AT):
            queue = queues.get(flow)
            if queue is None or flow not in held or engine.lacks(flow):
                continue
            if queue.parked or busy_owner(flow) is not None:
                continue
            rank = (policy.key(queue), queue.slots[0])
            if rank < least:
                found, least = queue, rank
        return found

    def _before_suspect(self, engine: EngineState, suspect: CallQueue) -> CallQueue:
        """Return the queue of the oldest call that waited before a call that is run again.

        The engine may have died of that one, so calls that did no harm go first.
        """
        harmless = [queue for queue in self._open(engine) if queue.calls[0].attempt == 1]
        return min([suspect, *harmless], key=lambda queue: queue.calls[0].id)

    def _open(self, engine: EngineState) -> list[CallQueue]:
        """Return all queues from which an engine may take a call, also out of their turn."""
        return [
            queue
            for lane in engine.lanes
            for queue in lane.queues.values()
            if busy_owner(queue.flow) is None
            and self._policy.cost(engine, queue.flow, lane) < NEVER
        ]

    def _contenders(self, lane: Lane, last: Flow | None) -> Sequence[CallQueue]:
        """Return the queues of a lane whose costs count: all, or the first and that of a flow."""
        if self._policy.by_engine:
            return [q for q in lane.queues.values() if not q.parked and not self._parks(q)]
        top = self._top(lane)
        if top is None:
            return ()
        queue = None if last is None or last is top.flow else lane.queues.get(last)
        if queue is None or queue.parked or self._parks(queue):
            return (top,)
        return (top, queue)

    def _top(self, lane: Lane) -> CallQueue | None:
        """Return the next queue of a lane; park queues over their quota on the way."""
        heap = lane.heap
        while heap:
            key, entry, queue = heap[0]
            stale = entry != queue.entry
            later = not stale and self._policy.key(queue) > key
            if not stale and not later and not self._parks(queue):
                return queue
            heapq.heappop(heap)
            if later:
                self._push(queue)
        return None

    def _parks(self, queue: CallQueue) -> bool:
        """Park a queue if its tenant or flow is at its quota."""
        owner = busy_owner(queue.flow)
        if owner is None:
            return False
        queue.entry = 0
        queue.parked = owner
        owner.parked.append(queue)
        return True

    def remove(self, call: CallState) -> None:
        """Take a call out of its queue that is not sent."""
        queue = call.queue
        assert queue is not None, "it waits"
        try:
            queue.slots.remove(call.rank[1])
        except ValueError:  # another call used it
            queue.slots.pop()
        self._take(call, queue)

    def _take(self, call: CallState, queue: CallQueue) -> None:
        """Take a call out of its queue, which has given up a slot."""
        call.queue = None
        self._count(call.flow, -1)
        if call.invocation.priority:
            queue.flow.tenant.prioritized -= 1
        is_head = queue.calls[0] is call
        if is_head:
            queue.calls.popleft()
        else:
            queue.calls.remove(call)
        if not queue.calls:
            self._forget(queue)
        elif is_head and not queue.parked:
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
