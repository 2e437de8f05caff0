"""Simulated memory of devices for constants: what is there, whatever the scheduler counts."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field

from dandelion.driver import Capacity
from dandelion.scheduler.engine import EngineState
from dandelion.scheduler.records import Flow


@dataclass
class _Memory:
    holders: dict[Hashable, set[Flow]] = field(default_factory=dict)
    sizes: dict[Hashable, int] = field(default_factory=dict)


class SimulatedDevices:
    """The devices of all engines that are up."""

    def __init__(self) -> None:
        self._memories: dict[EngineState, _Memory] = {}

    def up(self, engine: EngineState, capacity: Capacity) -> None:
        """An engine was started; nothing is on its device, unless others share its memory."""
        memory = _Memory()
        if capacity.constants_shared:
            shared = (m for e, m in self._memories.items() if e.device == engine.device)
            memory = next(shared, memory)
        self._memories[engine] = memory

    def lost(self, engine: EngineState) -> None:
        """An engine has died."""
        self._memories.pop(engine, None)

    def send(self, engine: EngineState, flow: Flow, evict: Iterable[Flow], keep: bool) -> None:
        """Run a call after the ones before it: drop constants, then copy those that are to stay."""
        memory = self._memories[engine]
        for victim in evict:
            _evict(memory, victim)
        if keep:
            size = engine.capacity.bytes_of_constants(flow.constants_bytes)
            memory.sizes.setdefault(_key(flow), size)
            memory.holders.setdefault(_key(flow), set()).add(flow)
            total = sum(memory.sizes.values())
            assert total <= engine.capacity.constants_bytes, f"{total} bytes on device {engine.id}"

    def discard(self, flow: Flow) -> None:
        """A function leaves the node's memory, and all devices."""
        for memory in self._memories.values():
            _evict(memory, flow)


def _evict(memory: _Memory, flow: Flow) -> None:
    key = _key(flow)
    holders = memory.holders.get(key, set())
    holders.discard(flow)
    if not holders:
        memory.sizes.pop(key, None)


def _key(flow: Flow) -> Hashable:
    return flow.constants or flow
