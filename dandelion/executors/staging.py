"""Calls are prepared before they are sent to an engine process.

Their inputs have to lie in the arena, and they need a context for their outputs there. If that
takes microseconds, the loop does it (`Stager.prepared`). Otherwise a thread does it
(`Stager.prepare`); it may wait for memory that a lost process uses until it is gone.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from dandelion.data import Bytes
from dandelion.driver import InstanceSets
from dandelion.engine_process.messages import WireItem, WireSet, WireSets
from dandelion.errors import ContextFull, DandelionError, EngineDied
from dandelion.executors.batches import is_joined, join, joined_bytes
from dandelion.executors.contract import StartedEngine, Surroundings
from dandelion.executors.failures import to_dandelion_error
from dandelion.executors.processes import Processes
from dandelion.function import Function
from dandelion.memory import ArenaMap, Context, Transfers
from dandelion.scheduler import CallState, Flow

LIGHT_BYTES = 64 * 1024 * 1024
"""How much device memory there is beside a process that ends, for sure."""
INLINE_COPY_BYTES = 512 * 1024
"""How much of the arena the loop itself fills for a call. Many small items count by what they take
there, since copying one takes as long as copying a longer one."""


class Placed:
    """The inputs of a call in the arena.

    Attributes:
        wire: where they are.
        copies: keeps those that were copied there; None if there are none.
    """

    __slots__ = ("copies", "wire")

    def __init__(self, wire: WireSets, copies: Context | None) -> None:
        self.wire = wire
        self.copies = copies


class Order:
    """A call before it is sent to its process.

    Attributes:
        is_plan: it is to be planned, not run.
        evict, keep: see `dandelion.scheduler.actions.Send`.
        result: the context for its outputs, once it has one.
        binary: what a confined process runs; once it is known, if the process lacks it.
        behind: id of the call that the process comes to before it plans this one; 0 if there is
            none.
    """

    __slots__ = ("behind", "binary", "call", "evict", "function", "is_plan", "keep", "result")

    def __init__(
        self,
        call: CallState,
        function: Function,
        is_plan: bool = False,
        evict: tuple[Flow, ...] = (),
        keep: bool = False,
    ) -> None:
        self.call = call
        self.function = function
        self.is_plan = is_plan
        self.evict = evict
        self.keep = keep
        self.result: Context | None = None
        self.binary: Bytes | None = None
        self.behind = 0


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
        if not is_joined(order.call):
            size = joined_bytes([member.run for member in order.call.members])
            if size > INLINE_COPY_BYTES or 2 * size > arena.largest_free_bytes:
                return False
            join(order.call, arena, self._transfers)
        if order.call.placed is None:
            given = _given(order)
            offsets, size = _located(given, arena.map)
            if size > INLINE_COPY_BYTES or 2 * size > arena.largest_free_bytes:
                return False
            self._place(order, given, offsets, size)
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
        join(order.call, self._arena, self._transfers)
        if order.call.placed is None:
            given = _given(order)
            self._place(order, given, *_located(given, self._arena.map))
        if not order.is_plan and order.result is None:
            order.result = self._arena.acquire(_result_bytes(order))

    def _place(
        self, order: Order, given: InstanceSets, offsets: Sequence[int | None], size_bytes: int
    ) -> None:
        """Name inputs by their place, and copy those to the arena that are not there.

        Args:
            order: the call.
            given: its inputs.
            offsets, size_bytes: as `_located` returns them.
        """
        copies = self._arena.acquire_to_fill(size_bytes) if size_bytes else None
        end = copies_count = copied_bytes = 0
        wire: list[WireSet | None] = []
        position = iter(offsets)
        for item_set in given:
            if item_set is None:
                wire.append(None)
                continue
            items: list[WireItem] = []
            for item in item_set.items:
                offset = next(position)
                size = item.size_bytes
                if offset is None:
                    assert copies is not None, "its size was counted"
                    offset = copies.offset_bytes + end
                    self._transfers.fill(item.data, copies, end)
                    end += Transfers.aligned(size)
                    copies_count += 1
                    copied_bytes += size
                items.append(WireItem(item.name, item.key, offset, size, item.dtype, item.shape))
            wire.append(WireSet(item_set.name, tuple(items), item_set.dtype, item_set.shape))
        self._transfers.count(copies_count, copied_bytes, len(offsets) - copies_count)
        order.call.placed = Placed(tuple(wire), copies)

    @staticmethod
    def wire(order: Order) -> WireSets:
        """Return where the inputs of a prepared call are."""
        placed = order.call.placed
        assert isinstance(placed, Placed), "it is prepared"
        return placed.wire

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
    """Return the inputs that come with a call."""
    inputs = order.call.run.inputs
    return tuple([inputs[position] for position in order.function.given])


def _located(sets: InstanceSets, arena: ArenaMap) -> tuple[list[int | None], int]:
    """Find the items that are in the arena.

    Returns:
        For each item its offset there, or None; and how many bytes the copies of the others take.
    """
    offsets: list[int | None] = []
    copies_bytes = 0
    for item_set in sets:
        if item_set is not None:
            for item in item_set.items:
                size = item.size_bytes
                offset = arena.locate(item.data) if size else 0
                if offset is None:
                    copies_bytes += Transfers.aligned(size)
                offsets.append(offset)
    return offsets, copies_bytes


def _result_bytes(order: Order) -> int:
    demand = order.call.demand
    if demand is None or demand.output_bytes is None:
        return max(1, order.function.spec.limits.output_bytes)
    return max(1, demand.output_bytes)
