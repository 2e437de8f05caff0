"""Which functions' code and constants are in the node's memory, and which stay on devices.

Only this module decides this; executors carry it out. Both memories are limited in bytes, in total
and for each tenant.

When memory is full, the entries with the least use for their reload cost are evicted, see
`FunctionMemory`. An entry that calls need is pinned and stays.

A function for which there is no room waits in a queue. Queued functions have priority over calls of
present functions: a present function that must make room takes no new calls. When its pins have
ended it is evicted, and its new calls wait at the end of the queue. Otherwise functions with
constant load would starve all others. A function of which something is gone, such as its packages,
leaves in the same way, and is fetched again.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable

from dandelion.driver import Capacity
from dandelion.errors import QuotaExceeded
from dandelion.scheduler.actions import Action, Discard, Fetch
from dandelion.scheduler.counts import ConstantsCounts
from dandelion.scheduler.engine import EngineState
from dandelion.scheduler.function_memory import FunctionMemory
from dandelion.scheduler.records import CallState, Flow, Phase, Presence

_SMALLER = "make its code and static sets smaller, or ask the operator to raise"


class Residency:
    """The functions in memory and on devices, and the functions that wait for room.

    Args:
        memory_bytes: the node's memory for code and constants.
        actions: receives the actions for executors.

    Attributes:
        node: the node's memory.
        devices: memory for constants, by engine; engines without it are omitted. Engines of one
            device may share it.
        line: flows that wait for room in the node's memory, in order.
        leaving: present flows that take no new calls, since waiting flows need their room.
        outdated: present flows that take no new calls, since they are to be fetched again.
        counts: of copies to devices.
    """

    def __init__(self, memory_bytes: int, actions: Callable[[Action], None]) -> None:
        self.node = FunctionMemory(memory_bytes)
        self.devices: dict[EngineState, FunctionMemory] = {}
        self.line: OrderedDict[Flow, None] = OrderedDict()
        self.leaving: set[Flow] = set()
        self.outdated: set[Flow] = set()
        self._act = actions
        self._stayed: deque[Flow] = deque()
        self.counts = ConstantsCounts()

    # calls

    def pin(self, call: CallState) -> bool:
        """Pin a call's function in memory. False if the call is blocked until it is present."""
        flow = call.flow
        if flow.presence is Presence.PRESENT and not self._is_leaving(flow):
            flow.pins += 1
            call.pinned = True
            if flow.size_bytes:
                self.node.touch(flow)
            return True
        call.phase = Phase.BLOCKED
        flow.blocked[call] = None
        if flow.presence is Presence.ABSENT:
            flow.presence = Presence.WAITING
            self.line[flow] = None
        return False

    def unpin(self, call: CallState) -> None:
        """Unpin a call's function."""
        if call.pinned:
            call.pinned = False
            flow = call.flow
            flow.pins -= 1
            if flow in self.outdated and not flow.pins:
                self._evict(flow)
            elif flow.removed:
                self._drop_removed(flow)

    def mark_outdated(self, flow: Flow) -> bool:
        """Something that a function needs is gone: it leaves memory once no call uses it.

        Returns:
            Whether it was in memory, and is pinned.
        """
        if flow in self.node and flow.pins:
            self.outdated.add(flow)
        return flow in self.outdated

    def unblock(self, call: CallState) -> None:
        """A call that waits for its function is cancelled."""
        flow = call.flow
        flow.blocked.pop(call, None)
        self._drop_removed(flow)

    def keep_on_device(self, engine: EngineState, flow: Flow) -> tuple[tuple[Flow, ...], bool]:
        """Decide whether a device keeps a flow's constants, when a call is sent there.

        Returns:
            The flows that the device drops for them, and whether it keeps them.
        """
        place = self.devices.get(engine)
        if place is None:
            return (), False
        if flow in place:
            place.touch(flow)
            return (), True
        size_bytes = engine.capacity.bytes_of_constants(flow.constants_bytes)
        if not size_bytes:
            return (), False
        quota = flow.tenant.quota.device_bytes
        victims = place.victims(flow, size_bytes, quota, pinned=True)
        if not place.has_content(flow):
            self.counts.copies += 1
            self.counts.copied_bytes += size_bytes
        if victims is None:
            return (), False
        for victim in victims:
            place.remove(victim)
        if engine.capacity.constants_shared and not place.has_content(flow):
            place.loading[flow.constants] = engine
        place.add(flow, size_bytes)
        return tuple(victims), True

    def loaded(self, engine: EngineState, flow: Flow) -> None:
        """A call of an engine has ended: what it copied is there for the others."""
        if engine.loading.get(flow.constants) is engine:
            del self.devices[engine].loading[flow.constants]

    # devices

    def add_device(self, engine: EngineState, capacity: Capacity) -> None:
        """An engine is up: it keeps no constants yet, unless it shares those of others."""
        if capacity.constants_bytes:
            place = self._shared(engine) if capacity.constants_shared else None
            if place is None:
                place = FunctionMemory(capacity.constants_bytes, shares=True)
            self.devices[engine] = place
            engine.held, engine.contents, engine.loading = place.held, place.contents, place.loading

    def _shared(self, engine: EngineState) -> FunctionMemory | None:
        """Return the memory for constants that engines of a device share, if one has it."""
        for other, place in self.devices.items():
            if other.device == engine.device and other.capacity.constants_shared:
                return place
        return None

    def drop_device(self, engine: EngineState) -> None:
        """An engine is gone, and all constants if no other one of its device shares them."""
        place = self.devices.pop(engine, None)
        if place is not None:
            for content in [key for key, source in place.loading.items() if source is engine]:
                del place.loading[content]
        engine.held, engine.contents, engine.loading = (), (), {}

    # functions

    def fetched(self, flow: Flow) -> None:
        """Code and constants are in memory."""
        flow.presence = Presence.PRESENT
        flow.pins -= 1
        self._stayed.append(flow)
        self._drop_removed(flow)

    def fetch_failed(self, flow: Flow) -> list[CallState]:
        """They could not be loaded; return the calls that waited for them."""
        flow.presence = Presence.ABSENT
        flow.pins -= 1
        self.node.remove(flow)
        return _taken(flow.blocked)

    def forget(self, flow: Flow) -> None:
        """Drop a function that is no longer registered, once no call needs it."""
        flow.removed = True
        self._drop_removed(flow)

    def _drop_removed(self, flow: Flow) -> None:
        is_needed = flow.pins or flow.blocked or flow.presence is not Presence.PRESENT
        if flow.removed and not is_needed and flow.size_bytes:
            self._evict(flow)

    def misfit(self, flow: Flow) -> QuotaExceeded | None:
        """Return why a function can never be in the node's memory; None if it can."""
        tenant, size_bytes = flow.tenant, flow.size_bytes
        room, quota = self.node.capacity_bytes, tenant.quota.arena_bytes
        what = f"memory for code and constants of '{flow.spec.name}'"
        if size_bytes > quota:
            remedy = f"{_SMALLER} the tenant's quota 'arena_bytes'"
            return QuotaExceeded(tenant.label, what, size_bytes, quota, remedy)
        if size_bytes > room:
            remedy = f"{_SMALLER} the setting 'functions_bytes'"
            return QuotaExceeded("this node", what, size_bytes, room, remedy)
        return None

    def step(self) -> tuple[list[CallState], QuotaExceeded | None] | None:
        """Make room for waiting functions.

        Returns:
            Calls that continue, or that fail with the error; None if there is nothing to do.
        """
        if self._stayed:
            flow = self._stayed.popleft()
            if flow.presence is Presence.PRESENT and not self._is_leaving(flow):
                return _taken(flow.blocked), None
            return [], None
        if not self.line:
            self._leave_only(set())
            return ([], None) if self._stayed else None
        flow = next(iter(self.line))
        error = self.misfit(flow)
        if error is not None:
            del self.line[flow]
            flow.presence = Presence.ABSENT
            return _taken(flow.blocked), error
        quota = flow.tenant.quota.arena_bytes
        victims = self.node.victims(flow, flow.size_bytes, quota)
        if victims is not None:
            self._fetch(flow, victims)
            return [], None
        pinned = self.node.victims(flow, flow.size_bytes, quota, pinned=True)
        assert pinned is not None, "without all others there is room for it"
        self._leave_only({f for f in pinned if f.presence is Presence.PRESENT})
        return ([], None) if self._stayed else None

    def _is_leaving(self, flow: Flow) -> bool:
        return flow in self.leaving or flow in self.outdated

    def _leave_only(self, leaving: set[Flow]) -> None:
        self._stayed.extend(flow for flow in self.leaving if flow not in leaving)
        self.leaving = leaving

    def _fetch(self, flow: Flow, victims: list[Flow]) -> None:
        for victim in victims:
            self._evict(victim)
        del self.line[flow]
        self.node.add(flow, flow.size_bytes)
        flow.presence = Presence.FETCHING
        flow.pins += 1  # it is not evicted while it is loaded
        self._act(Fetch(flow))

    def _evict(self, flow: Flow) -> None:
        """Drop a function that no call needs from memory, and from all devices."""
        self.leaving.discard(flow)
        self.outdated.discard(flow)
        for place in self.devices.values():
            if flow in place:  # engines may share it
                place.remove(flow)
        self.node.remove(flow)
        flow.presence = Presence.ABSENT
        self._act(Discard(flow))
        if flow.blocked:
            flow.presence = Presence.WAITING
            self.line[flow] = None


def _taken(calls: dict[CallState, None]) -> list[CallState]:
    taken = list(calls)
    calls.clear()
    return taken
