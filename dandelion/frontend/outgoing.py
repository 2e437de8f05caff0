"""Python values as a client sends them.

The client does for a remote node what `dandelion.data.item_set` does in-process, with the same
values and names of items. Only the node knows the declared types of sets. So arrays are sent with
their dtype and shape, and Python numbers as ``numbers``, which the node converts to an array.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from dandelion.data import Item, ItemSet, Value, is_numbers, is_sequence, item_set
from dandelion.errors import InvalidInput
from dandelion.frontend.codecs import PackItem

Outgoing: TypeAlias = Any
"""What `dandelion.frontend.codecs.encode_request` takes for a set."""


@dataclass(frozen=True, slots=True)
class Plain:
    """A set in its JSON form, with shorthands; see `dandelion.frontend.values`."""

    value: Any


def outgoing_set(name: str, value: Value) -> Outgoing:
    """Prepare one set. Accepts the values of `dandelion.data.item_set`, and `Plain`.

    Raises:
        InvalidInput: the value is of a type that cannot be an item.
    """
    if isinstance(value, Plain):
        return value.value
    if value is None:
        return None
    if isinstance(value, ItemSet):
        return _items(name, value)
    if isinstance(value, Mapping):
        items = [_item(name, str(k), v) for k, v in value.items()]
    elif is_sequence(value) and not is_numbers(value):
        items = [_item(name, str(i), v) for i, v in enumerate(value)]
    else:
        items = [_item(name, name, value)]
    packed = tuple(item for item in items if not isinstance(item, dict))
    return packed if len(packed) == len(items) else [_plain(item) for item in items]


def _item(set_name: str, name: str, value: Value) -> Item | PackItem | dict[str, Any]:
    if isinstance(value, Item):
        return _items(set_name, value)[0]
    if isinstance(value, bytes | bytearray | memoryview):
        return PackItem(memoryview(value).cast("B"), name)
    if isinstance(value, str):
        return PackItem(memoryview(value.encode()), name)
    if isinstance(value, np.ndarray | np.generic):
        return _items(set_name, {name: value})[0]
    if isinstance(value, bool | int | float | Sequence):
        return {"name": name, "numbers": value}
    raise InvalidInput(
        f"sets.{set_name}",
        f"item '{name}' is a {type(value).__name__}",
        "give bytes, str, a numpy array, an Item, or a list or dict of these",
    )


def _items(set_name: str, value: Value) -> tuple[Item, ...]:
    """Convert items and arrays as in-process."""
    made = item_set(set_name, value)
    return () if made is None else made.items


def _plain(item: Item | PackItem | dict[str, Any]) -> dict[str, Any]:
    if isinstance(item, dict):
        return item
    plain: dict[str, Any] = {"name": item.name, "key": item.key, "data": item.data}
    if item.dtype is not None:
        plain |= {"dtype": item.dtype, "shape": item.shape}
    return plain
