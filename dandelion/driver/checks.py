"""Checks of what goes into an engine and what comes out of it."""

from __future__ import annotations

from typing import TypeAlias

from dandelion.data import ItemSet
from dandelion.errors import BadOutput, InvalidInput
from dandelion.function import Function, FunctionSpec
from dandelion.set_values import check_item, checked

InstanceSets: TypeAlias = tuple[ItemSet | None, ...]
"""The sets of one instance, by position of the declaration; None for an absent set."""


def check_inputs(function: Function, inputs: InstanceSets) -> InstanceSets:
    """Check inputs against the types that their sets declare.

    A caller's sets have been checked already, and carry the declared type. Sets of another function
    have not, unless its output set declares the same type.

    Raises:
        InvalidInput: an item has another type or size; the message names set and item.
    """
    result = list(inputs)
    for at in function.typed:
        declared, given = function.spec.inputs[at], inputs[at]
        if given is None or (given.dtype == declared.dtype and given.shape == declared.shape):
            continue
        result[at] = checked(declared.name, given.items, declared)
    return tuple(result)


def check_outputs(spec: FunctionSpec, outputs: InstanceSets) -> InstanceSets:
    """Check outputs against declaration and limits.

    Raises:
        BadOutput: wrong number of sets, or names, keys, sizes or counts that are not allowed.
    """
    if len(outputs) != len(spec.outputs):
        raise BadOutput(spec.name, f"{len(outputs)} sets instead of {len(spec.outputs)}")
    count = size = 0
    result: list[ItemSet | None] = []
    for declared, given in zip(spec.outputs, outputs, strict=True):
        if given is None or not given.items:
            result.append(None)
            continue
        items = given.items
        count += len(items)
        size += given.size_bytes
        try:
            if declared.dtype is None and given.dtype is None and given.name == declared.name:
                for item in items:
                    check_item(given.name, item.name, item.key)
                result.append(given)
            else:
                result.append(checked(declared.name, items, declared))
        except InvalidInput as error:
            raise BadOutput(spec.name, str(error)) from None
    if count > spec.limits.output_items:
        limit = f"its limit 'output_items', {spec.limits.output_items}"
        raise BadOutput(spec.name, f"{count} items are more than {limit}")
    if size > spec.limits.output_bytes:
        limit = f"its limit 'output_bytes', {spec.limits.output_bytes}"
        raise BadOutput(spec.name, f"{size} bytes are more than {limit}")
    return tuple(result)
