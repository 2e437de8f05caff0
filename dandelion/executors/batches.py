"""Several calls of one function as one: their inputs are joined, its outputs are divided.

Rows are joined along the first dimension, which for row-major arrays means that the bytes are put
one after the other. Each call has one row or more, and its part of every output is as large as its
part of the joined inputs. See `dandelion.function.Batching`.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from dandelion import arrays
from dandelion.arrays import Shape
from dandelion.data import Item, ItemSet
from dandelion.dispatcher import Run
from dandelion.driver import InstanceSets
from dandelion.errors import BadOutput
from dandelion.function import FunctionSpec
from dandelion.memory import MemoryDomain, Transfers
from dandelion.scheduler import CallState


def is_joined(call: CallState) -> bool:
    """Tell whether a call has its inputs; those of a batch have to be joined first."""
    return not call.members or call.run is not call.members[0].run


def join(call: CallState, domain: MemoryDomain, transfers: Transfers) -> None:
    """Join the inputs of a batch; raises as `joined`."""
    if not is_joined(call):
        inputs = joined([member.run for member in call.members], domain, transfers)
        call.run = msgspec.structs.replace(call.run, inputs=inputs)


def joined_bytes(runs: Sequence[Run]) -> int:
    """Return how many bytes `joined` copies."""
    total = 0
    for position in _joined_positions(runs[0].function):
        for run in runs:
            total += _only(run.inputs[position]).size_bytes
    return total


def joined(runs: Sequence[Run], domain: MemoryDomain, transfers: Transfers) -> InstanceSets:
    """Join the inputs of several instances.

    Args:
        runs: instances of one function that can be joined.
        domain: where the joined items are copied to.
        transfers: copies them.

    Returns:
        The inputs of one instance; those that are not joined are those of the first run.

    Raises:
        ContextFull: the domain has no room.
    """
    inputs = list(runs[0].inputs)
    for position in _joined_positions(runs[0].function):
        first = runs[0].inputs[position]
        assert first is not None, "such calls are not joined"
        items = [_only(run.inputs[position]) for run in runs]
        data = transfers.join([item.data for item in items], domain)
        head = items[0]
        shape = None
        if head.shape is not None:
            shape = (sum((item.shape or (0,))[0] for item in items), *head.shape[1:])
        item = Item(head.name, head.key, data, head.dtype, shape)
        inputs[position] = ItemSet(first.name, (item,), first.dtype, first.shape)
    return tuple(inputs)


def divided(runs: Sequence[Run], outputs: InstanceSets) -> list[InstanceSets]:
    """Divide the outputs of joined instances; nothing is copied.

    An item that has the name and key of a joined input of the first instance gets those of that
    input of the instance that the part belongs to.

    Args:
        runs: the instances, in the order in which they were joined.
        outputs: of all together.

    Returns:
        The outputs of each instance.

    Raises:
        BadOutput: an output set has more than one item, or does not have rows for each instance.
    """
    positions = _joined_positions(runs[0].function)
    inputs = [[_only(run.inputs[position]) for position in positions] for run in runs]
    total = sum(own[0].size_bytes for own in inputs)
    parts: list[list[ItemSet | None]] = [[] for _ in runs]
    for item_set in outputs:
        if item_set is None:
            for part in parts:
                part.append(None)
            continue
        item = _output_of(runs[0].function, item_set)
        start = 0
        for part, run, own in zip(parts, runs, inputs, strict=True):
            length, shape = _share(runs[0].function, item_set, own[0].size_bytes, total)
            name, key = _identity(item, runs[0], run, inputs[0], own)
            data = memoryview(item.data)[start : start + length]
            divided_item = Item(name, key, data, item.dtype, shape)
            part.append(ItemSet(item_set.name, (divided_item,), item_set.dtype, item_set.shape))
            start += length
    return [tuple(part) for part in parts]


def _joined_positions(function: FunctionSpec) -> list[int]:
    assert function.batching is not None, "its calls are joined"
    names = function.input_names
    return [names.index(name) for name in dict.fromkeys(function.batching.inputs)]


def _only(item_set: ItemSet | None) -> Item:
    assert item_set is not None, "such calls are not joined"
    return item_set.only()


def _output_of(function: FunctionSpec, item_set: ItemSet) -> Item:
    if len(item_set.items) != 1:
        message = f"set '{item_set.name}' has {len(item_set.items)} items for joined calls, not one"
        raise BadOutput(function.name, message)
    return item_set.items[0]


def _share(
    function: FunctionSpec, item_set: ItemSet, part: int, total: int
) -> tuple[int, Shape | None]:
    """Return the bytes, and the shape, of an instance's part of the only item of a set."""
    [item] = item_set.items
    # Without a shape it is not known what a row is, so only elements are not divided.
    unit = 1 if item.dtype is None else arrays.declared_dtype(item.dtype).itemsize
    rows = item.size_bytes // unit if item.shape is None else item.shape[0] if item.shape else 1
    share, rest = divmod(rows * part, total)
    if rest:
        message = f"set '{item_set.name}' does not have a row for each row of the joined inputs"
        raise BadOutput(function.name, message)
    if item.shape is None:
        return share * unit, None
    return item.size_bytes * part // total, (share, *item.shape[1:])


def _identity(
    item: Item, first: Run, run: Run, heads: Sequence[Item], own: Sequence[Item]
) -> tuple[str, int]:
    for head, given in zip(heads, own, strict=True):
        if (item.name, item.key) == (head.name, head.key):
            return given.name, given.key
    origin, mine = first.origin, run.origin
    if origin is not None and mine is not None and item.name == origin.name and mine.name:
        return mine.name, mine.key if item.key == origin.key else item.key
    return item.name, item.key
