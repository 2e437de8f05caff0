"""Calls of one function that are run as one; see `dandelion.function.Batching`.

When an engine takes a call from a queue, the calls behind it that fit join it: a **batch** is a
`CallState` with `members`. It takes one place of the engine, and its executor joins the inputs and
divides the outputs. If a batch fails, its members are run one by one, so no caller gets an error
that another one caused. If it had not begun, they are queued again as they were.

New calls are gathered before they are queued: until the next `tick`, since callers who got their
results in one batch call again at the same time, and as long as the function says.
"""

from __future__ import annotations

from itertools import islice
from math import gcd
from typing import TypeAlias

from dandelion.data import ItemSet
from dandelion.scheduler.engine import EngineState
from dandelion.scheduler.lines import Lines
from dandelion.scheduler.records import CallState, Flow, InvocationState, Phase
from dandelion.timers import Timers

_LOOKED_AT = 4
"""How many waiting calls are looked at for each that a batch may have."""
_COMPARED_BYTES = 4096
"""Inputs that are not joined are compared up to this size; larger ones have to be the same."""

Key: TypeAlias = tuple[object, ...]


class Batches:
    """Forms batches.

    Args:
        lines: the waiting calls.

    Attributes:
        waits: until when the calls of flows wait for others.
    """

    def __init__(self, lines: Lines) -> None:
        self._lines = lines
        self.waits: Timers[Flow] = Timers()

    # waiting for others

    def gather(self, call: CallState, now_ns: int) -> bool:
        """Keep a new call that waits for others, at least until the next `tick`."""
        flow = call.flow
        batching = flow.spec.batching
        if batching is None or call.requeued:
            return False
        call.queued_ns = now_ns
        call.phase = Phase.GATHERING
        if not flow.gathering:
            flow.wait = self.waits.add(now_ns + int(batching.wait_s * 1e9), flow)
        flow.gathering[call] = None
        return True

    def leave(self, call: CallState) -> None:
        """Stop waiting for others with a call."""
        flow = call.flow
        del flow.gathering[call]
        if not flow.gathering and flow.wait is not None:
            self.waits.cancel(flow.wait)
            flow.wait = None

    # batches

    def members(self, call: CallState, engine: EngineState) -> tuple[CallState, ...]:
        """Take the calls out of their queues that an engine runs together with this one.

        Returns:
            All of them, this one first; none if it is run by itself.
        """
        batching = call.flow.spec.batching
        if batching is None or not engine.joins or not _joins(call):
            return ()
        key = _key(call)
        if key is None:
            return ()
        found = [call]
        room = _Room(call, engine)
        if not room.takes(call):
            return ()  # it fails, or runs alone
        for lane in engine.lanes:
            queue = lane.queues.get(call.flow)
            waiting = queue.calls if queue is not None else ()
            for other in islice(waiting, _LOOKED_AT * batching.calls):
                if len(found) == batching.calls:
                    break
                if _joins(other) and _key(other) == key and room.takes(other):
                    found.append(other)
        for other in found[1:]:
            self._lines.remove(other)
        return tuple(found) if found[1:] else ()

    @staticmethod
    def batch(members: tuple[CallState, ...], number: int) -> CallState:
        """Make the call that stands for several.

        Args:
            members: the calls, in order; they have the turn of the first one.
            number: the id of the new call.
        """
        first = members[0]
        latest = max(members, key=lambda call: call.invocation.deadline_ns).invocation
        invocation = InvocationState(
            first.invocation.id,
            first.flow.tenant,
            first.invocation.walk,
            (),
            latest.deadline_ns,
            latest.deadline_s,
        )
        batch = CallState(number, invocation, first.run, first.flow, members=members)
        batch.lane, batch.turn = first.lane, first.turn
        for call in members:
            call.phase = Phase.JOINED
            call.batch = batch
        return batch


class _Room:
    """Sums up what calls need together, and compares it with the limits of one call."""

    def __init__(self, call: CallState, engine: EngineState) -> None:
        quota = call.flow.tenant.quota.call_device_bytes
        capacity = engine.capacity.device_bytes
        self._device_bytes = min(quota, capacity) if capacity else quota
        self._output_bytes = call.flow.spec.limits.output_bytes
        batching = call.flow.spec.batching
        assert batching is not None, "its calls are joined"
        self._joined = call.flow.spec.input_names.index(batching.inputs[0])
        self._rows = batching.rows

    def takes(self, call: CallState) -> bool:
        """Add a call if there is room for it."""
        demand = call.demand
        device_bytes, output_bytes, rows = self._device_bytes, self._output_bytes, self._rows
        if demand is not None:
            device_bytes -= demand.device_bytes
            output_bytes -= demand.output_bytes or 0
        if rows is not None:
            rows -= _rows(call, self._joined)
        known = demand is not None
        if (known and (device_bytes < 0 or output_bytes < 0)) or (rows is not None and rows < 0):
            return False
        self._device_bytes, self._output_bytes, self._rows = device_bytes, output_bytes, rows
        return True


def _rows(call: CallState, position: int) -> int:
    """Count the rows of a call, by its joined input at a position."""
    item_set = call.run.inputs[position]
    assert item_set is not None, "such calls are not joined"
    shape = item_set.items[0].shape
    return shape[0] if shape else 1


def _key(call: CallState) -> Key | None:
    """Return what is equal for calls that can be joined; None if this one cannot be."""
    spec = call.flow.spec
    assert spec.batching is not None, "its calls are joined"
    key: list[object] = []
    first_bytes = 0
    for declared, item_set in zip(spec.inputs, call.run.inputs, strict=True):
        if declared.name not in spec.batching.inputs:
            key.append(None if item_set is None else _value(item_set))
            continue
        if item_set is None or len(item_set.items) != 1:
            return None
        item = item_set.items[0]
        size = item.size_bytes
        if not size or item.shape == ():
            return None  # it has no rows
        first_bytes = first_bytes or size
        common = gcd(size, first_bytes)
        # Without a shape it is not known what a row is, so only equal sizes can be joined.
        rest = size if item.shape is None else item.shape[1:]
        key += [item.dtype, rest, size // common, first_bytes // common]
    return tuple(key)


def _joins(call: CallState) -> bool:
    """Tell whether a call may be run with others: neither a batch with it nor an engine failed."""
    return not call.single and call.attempt == 1


def _value(item_set: ItemSet) -> object:
    if item_set.size_bytes > _COMPARED_BYTES:
        return id(item_set)
    return tuple([(i.name, i.key, bytes(i.data), i.dtype, i.shape) for i in item_set.items])
