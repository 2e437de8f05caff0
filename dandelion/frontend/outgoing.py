"""Python values as a client sends them.

The client does for a remote node what `dandelion.set_values.item_set` does in-process, with the
same values and names of items. Only the node knows the declared types of sets. So arrays are sent
with their dtype and shape, and plain values (numbers, lists and dicts that JSON can express) as
they are: by the declaration of the set the node makes an array, one JSON value or several items of
them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, is_dataclass
from typing import Any, TypeAlias

import msgspec
import numpy as np

from dandelion.arrays import kind_of
from dandelion.data import Item, ItemSet, Value, text_data
from dandelion.errors import InvalidInput
from dandelion.errors.misfits import named_type
from dandelion.frontend.codecs import PackItem
from dandelion.frontend.values import FIELDS
from dandelion.set_values import check_mapping, is_numbers, is_sequence, item_set

Outgoing: TypeAlias = Any
"""What `dandelion.frontend.set_encoding.encode_request` takes for a set."""


_NO_JSON = Item | ItemSet | bytes | bytearray | memoryview | np.ndarray


@dataclass(frozen=True, slots=True)
class Plain:
    """A set in its JSON form, see `dandelion.frontend.values`, or a plain JSON value."""

    value: Any


def outgoing_sets(sets: Mapping[str, Value]) -> tuple[dict[str, Outgoing], dict[str, Any]]:
    """Prepare all sets of a request.

    Returns:
        The sets that are sent as items, and the plain values that the node converts.

    Raises:
        InvalidInput: a value is of a type that cannot be an item, or no JSON value, or there are
            no names.
    """
    check_mapping(sets)
    items: dict[str, Outgoing] = {}
    values: dict[str, Any] = {}
    for name, value in sets.items():
        if isinstance(value, Plain) and not _is_set(value.value):
            values[name] = value.value
        elif isinstance(value, str | _NO_JSON | Plain) or value is None:
            items[name] = outgoing_set(name, value)
        elif _is_plain(value):
            values[name] = _built_in(name, value)
        else:
            items[name] = outgoing_set(name, value)
    return items, values


def _is_set(value: Any) -> bool:
    """Tell whether a JSON value has the form of a set, and not of a value."""
    if isinstance(value, dict):
        return bool(value) and value.keys() <= set(FIELDS)
    is_long = isinstance(value, list) and any(isinstance(part, dict) for part in value)
    return value is None or (is_long and all(isinstance(p, str) or _is_set(p) for p in value))


def _is_plain(value: Value) -> bool:
    """Tell whether the node has to decide what a value means."""
    if isinstance(value, list | tuple):
        return not any(isinstance(part, _NO_JSON | np.generic) for part in value)
    if isinstance(value, dict):
        return not any(isinstance(part, _NO_JSON | np.generic) for part in value.values())
    return isinstance(value, bool | int | float | msgspec.Struct) or is_dataclass(value)


def _built_in(name: str, value: Value) -> Any:
    """Convert a value to what MessagePack can express."""
    try:
        return msgspec.to_builtins(value, builtin_types=(bytes,), enc_hook=_numbers, str_keys=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidInput(f"sets.{name}", f"it is no JSON value: {error}") from None


def _numbers(value: object) -> object:
    if isinstance(value, np.generic | np.ndarray) and kind_of(value.dtype) in "biuf":
        return value.tolist()
    raise TypeError(f"{named_type(value)}")


def outgoing_set(name: str, value: Value) -> Outgoing:
    """Prepare one set. Accepts the values of `dandelion.set_values.item_set`, and `Plain`.

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
        return PackItem(memoryview(text_data(f"sets.{set_name}", value)), name)
    if isinstance(value, np.ndarray | np.generic):
        return _items(set_name, {name: value})[0]
    if isinstance(value, Sequence) and is_numbers(value):
        return {"name": name, "numbers": value}
    if value is None or isinstance(value, bool | int | float | list | tuple | dict):
        return {"name": name, "value": _built_in(set_name, value)}
    raise InvalidInput(
        f"sets.{set_name}",
        f"item '{name}' is {named_type(value)}",
        "give bytes, str, a numpy array, an Item, a JSON value, or a list or dict of these",
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
