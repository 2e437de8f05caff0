"""Calls are prepared before they are sent to an engine process.

Their inputs have to lie in the arena, and they need a context for their outputs there. If that
takes microseconds, the loop does it (`Stager.prepared`). Otherwise a thread does it
(`Stager.prepare`); it may wait for memory that a lost process uses until it is gone.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

from dandelion.driver import InstanceSets
from dandelion.engine_process.messages import WireItem, WireSet, WireSets
from dandelion.errors import ContextFull, DandelionError, EngineDied
from dandelion.executors.contract import StartedEngine, Surroundings
from dandelion.executors.failures import to_dandelion_error
from dandelion.executors.processes import Processes
from dandelion.function import Function
from dandelion.memory import ArenaMap, Context
from dandelion.scheduler import CallState, Flow

LIGHT_BYTES = 64 * 1024 * 1024
"""How much device memory there is beside a process that ends, for sure."""
INLINE_COPY_BYTES = 256 * 1024
"""How much the loop itself copies into the arena for a call."""


@dataclass(slots=True, eq=False)
class Order:
    """A call before it is sent to its process.

    Attributes:
        is_plan: it is to be planned, not run.
        evict, keep: see `dandelion.scheduler.actions.Send`.
        wire: its inputs by their place in the arena, once all are there.
        result: the context for its outputs, once it has one.
        behind: id of the call that the process comes to before it plans this one; 0 if there is
            none.
    """

    call: CallState
    function: Function
    is_plan: bool = False
    evict: tuple[Flow, ...] = ()
    keep: bool = False
    wire: WireSets | None = None
    result: Context | None = None
    behind: int = 0


class Stager:
    """Prepares the calls of one engine process.

    Args:
        info: of the engine, for errors.
        around: what all executors share.
        processes: of the engine.
    """

    def __init__(self, info: StartedEngine, around: Surroundings, processes: Processes) -> None:
        self._info = info
        self._arena = around.arena
        self._transfers = around.transfers
        self._processes = processes

    def prepared(self, order: Order) -> bool:
        """Prepare a call if that takes microseconds. False if it takes longer."""
        arena = self._arena
        if not order.is_plan and self._processes.ending and _needs_room(order):
            return False
        if order.wire is None:
            given = _given(order)
            order.wire, moving, kept = _wired(given, arena.map)
            if moving > INLINE_COPY_BYTES or 2 * moving > arena.largest_free_bytes:
                return False
            if moving:
                self._place(order)
            elif order.call.placed is None:
                order.call.placed = given
                self._transfers.count_references(kept)
        if not order.is_plan and order.result is None:
            order.result = arena.acquire_clean(_result_bytes(order))
        return order.is_plan or order.result is not None

    def prepare(self, order: Order) -> DandelionError | None:
        """Prepare a call, however long that takes; in a thread.

        Returns:
            Why it cannot be prepared.
        """
        try:
            if not order.is_plan and self._processes.ending and _needs_room(order):
                self._wait_for_ends(order)
            try:
                self.place_all(order)
            except ContextFull:
                if not self._processes.ending:
                    raise
                self._wait_for_ends(order)  # what they keep may be enough
                self.place_all(order)
        except BaseException as failure:
            return to_dandelion_error(failure, self._info.name)
        return None

    def place_all(self, order: Order) -> None:
        """Copy the inputs and acquire the context for the outputs.

        Raises:
            ContextFull: the arena has no room.
        """
        if order.wire is None:
            self._place(order)
        if not order.is_plan and order.result is None:
            order.result = self._arena.acquire(_result_bytes(order))

    def _place(self, order: Order) -> None:
        """Copy inputs into the arena that are not there."""
        order.call.placed = placed = self._transfers.place(_given(order), self._arena)
        order.wire, _, _ = _wired(placed, self._arena.map)

    def _wait_for_ends(self, order: Order) -> None:
        """Wait until processes that end have given their memory back.

        Raises:
            EngineDied: the engine is being closed.
        """
        left_s = (order.call.invocation.deadline_ns - time.monotonic_ns()) / 1e9
        self._processes.wait_for_ends(max(0.0, left_s))
        if self._processes.leaving:
            raise EngineDied(self._info.name, "it is being closed")


def _needs_room(order: Order) -> bool:
    demand = order.call.demand
    return bool(order.function.static) or (demand is not None and demand.device_bytes > LIGHT_BYTES)


def _given(order: Order) -> InstanceSets:
    """Give the inputs that come with a call, in the arena if they were copied there."""
    call = order.call
    if call.placed is not None:
        return call.placed
    inputs = call.run.inputs
    return tuple([inputs[position] for position in order.function.given])


def _wired(sets: InstanceSets, arena: ArenaMap) -> tuple[WireSets | None, int, int]:
    """Name sets by their place in the arena.

    Returns:
        The names, or None; the bytes that have to be copied there; how many items are there.
    """
    moving = kept = 0
    locate = arena.locate
    wire: list[WireSet | None] = []
    for item_set in sets:
        if item_set is None:
            wire.append(None)
            continue
        items: list[WireItem] = []
        for item in item_set.items:
            data = item.data
            offset = locate(data)
            size = item.size_bytes
            if offset is None:
                moving += size
                offset = 0
            else:
                kept += 1
            items.append(WireItem(item.name, item.key, offset, size, item.dtype, item.shape))
        wire.append(WireSet(item_set.name, tuple(items), item_set.dtype, item_set.shape))
    return None if moving else tuple(wire), moving, kept


def _result_bytes(order: Order) -> int:
    demand = order.call.demand
    if demand is None or demand.output_bytes is None:
        return max(1, order.function.spec.limits.output_bytes)
    return max(1, demand.output_bytes)
