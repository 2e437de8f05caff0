"""Sets made of Python values, and the checks of names, keys and types of their items."""

from __future__ import annotations

import dataclasses
import math
import operator
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from dandelion import arrays
from dandelion.arrays import Shape
from dandelion.data import (
    KEY_LIMIT,
    NAME_LIMIT_BYTES,
    Bytes,
    Item,
    ItemSet,
    Origin,
    SetSpec,
    Value,
    text_data,
)
from dandelion.errors import InvalidInput, nearest
from dandelion.errors.misfits import named_type
from dandelion.json_values import json_bytes, text_key

_SINGLE = (bytes, str, np.ndarray)


class InvalidReturnValue(Exception):
    """A function's return value is not valid as its outputs."""


def check_item(set_name: str, name: str, key: int) -> None:
    """Refuse item names and keys that the data model does not allow.

    Names are free text, up to 255 bytes of UTF-8 without NUL. They are data, never paths: nothing
    in the platform opens a file by an item's name.

    Raises:
        InvalidInput: the name is too long, has a NUL or is not valid Unicode; the key is not a u32.
    """
    if len(name) > NAME_LIMIT_BYTES or not name.isascii():  # else its bytes are its characters
        try:
            size = len(name.encode())
        except UnicodeEncodeError:
            message = "the item's name is not valid Unicode"
            raise InvalidInput(f"sets.{set_name}", message) from None
        if size > NAME_LIMIT_BYTES:
            message = f"an item's name has {size} bytes, more than 255"
            raise InvalidInput(f"sets.{set_name}", message)
    if "\0" in name:
        raise InvalidInput(f"sets.{set_name}", "an item's name has a NUL character")
    if not 0 <= key < KEY_LIMIT:
        raise InvalidInput(f"sets.{set_name}", f"key {key} is outside 0..{KEY_LIMIT - 1}")


def check_named(unnamed: Sequence[object]) -> None:
    """Refuse values of input sets that a caller gave by position.

    Raises:
        InvalidInput: there are some.
    """
    if unnamed:
        message = f"{named_type(unnamed[0])} was given by position, but input sets have names"
        hint = "write invoke(name, page=...), or **{...} if the values are in a dict"
        raise InvalidInput("sets", message, hint)


def check_mapping(sets: object) -> None:
    """Refuse what is given in place of the values by names of sets.

    Raises:
        InvalidInput: it is not a mapping.
    """
    if type(sets) is not dict and not isinstance(sets, Mapping):
        message = f"{named_type(sets)} was given, but input sets have names"
        raise InvalidInput("sets", message, 'write {"page": ...}')


def returned_sets(
    specs: Sequence[SetSpec], returned: Any, origin: Origin | None
) -> list[ItemSet | None]:
    """Make the output sets of a function: of a dict by name, or of the value of the only set.

    Args:
        specs: the declared output sets.
        returned: what the function returned. A generator is run here.
        origin: see `item_set`.

    Raises:
        InvalidReturnValue: a set is not declared, or a value does not fit its set.
    """
    names = [spec.name for spec in specs]
    if not isinstance(returned, dict):
        if len(specs) != 1 and (specs or returned is not None):
            expected = ", ".join(names) or "none"
            raise InvalidReturnValue(
                f"{named_type(returned)} was returned; return a dict from the names of the "
                f"output sets ({expected}) to their values"
            )
        returned = dict.fromkeys(names, returned)
    for name in returned:
        if name not in names:
            close = nearest(str(name), names)
            hint = f"; did you mean '{close}'?" if close else ""
            raise InvalidReturnValue(f"there is no output set {name!r}{hint}")
    try:
        return [item_set(spec.name, returned.get(spec.name), spec, origin) for spec in specs]
    except InvalidInput as error:
        raise InvalidReturnValue(str(error)) from None


def item_set(
    name: str, value: Value, spec: SetSpec | None = None, origin: Origin | None = None
) -> ItemSet | None:
    """Make a set from a Python value.

    Args:
        name: name of the set.
        value: None (absent); an `ItemSet`; bytes-like, str (UTF-8) or a numpy array or scalar (one
            item, named as the set, key 0); a number, or a list of numbers or of such lists (one
            item: an array if the set declares a dtype, else JSON); a sequence of any of these or of
            `Item` (item names "0", "1", ...); a mapping from item name to any of these. Within
            sequences and mappings, lists, dicts and None are JSON. If the form of the set is
            ``json``, a list or dict is one item. dataclasses and msgspec's structs are JSON.
        spec: the declaration. An array of another type is refused; Python's numbers, which have no
            type, become an array of the declared one if that loses nothing but digits of floats.
        origin: its key is the key of all items without one. Its name is the name of a single item
            without one; items of a sequence get it with the suffix ".0", ".1", ...

    Returns:
        The set, or None if there are no items. bytes are referenced, arrays are viewed if they are
        contiguous, else copied.

    Raises:
        InvalidInput: the value's type is not supported, or an item does not fit `spec`.
    """
    where = f"sets.{name}"
    if value is None:
        return None
    key = origin.key if origin is not None else 0
    named = origin.name if origin is not None else None
    if isinstance(value, ItemSet):
        items = tuple([_sound(where, item) for item in value.items])
        if value.dtype is not None:
            items = tuple([_declared(where, item, value.dtype, value.shape) for item in items])
    elif isinstance(value, _SINGLE) or is_json(value, spec):  # most frequent; the rest is slower
        items = (_item(where, name if named is None else named, key, value, spec),)
    elif isinstance(value, Mapping):
        items = tuple([_item(where, str(k), key, v, spec) for k, v in value.items()])
    elif is_sequence(value) and (has_many(spec) or not is_numbers(value)):
        items = tuple(
            [_item(where, _numbered(named, i), key, v, spec) for i, v in enumerate(value)]
        )
        _check_text_keys(where, value)
    else:
        items = (_item(where, name if named is None else named, key, value, spec),)
    return checked(name, items, spec)


def _check_text_keys(where: str, value: Value) -> None:
    """Refuse items whose keys are different texts with the same number."""
    texts: dict[int, str] = {}
    for item in value if isinstance(value, list | tuple) else ():
        key: object = item.key if type(item) is Item else None
        if isinstance(key, str) and texts.setdefault(text_key(key), key) != key:
            message = f"keys {texts[text_key(key)]!r} and {key!r} have the same number"
            raise InvalidInput(where, message, "give integer keys, see text_key")


def _numbered(named: str | None, index: int) -> str:
    """Name an element of a sequence; the origin's name is cut if the result is too long."""
    if named is None:
        return str(index)
    end = f".{index}"
    room = NAME_LIMIT_BYTES - len(end)
    if len(named) > room // 4:
        named = named.encode()[:room].decode(errors="ignore")
    return named + end


def has_many(spec: SetSpec | None) -> bool:
    """Tell whether a set is declared to have a value in each item."""
    return spec is not None and spec.form.endswith("[]")


def is_json(value: Value, spec: SetSpec | None) -> bool:
    """Tell whether a list or dict is one JSON value, by the declaration of its set."""
    if spec is None or spec.form != "json" or not isinstance(value, list | tuple | Mapping):
        return False
    parts = value.values() if isinstance(value, Mapping) else value
    return not any(isinstance(part, Item | bytes | np.ndarray) for part in parts)


def is_sequence(value: Value) -> bool:
    """Tell whether a value means several items."""
    return isinstance(value, Sequence | Iterator) and not isinstance(
        value, str | bytes | bytearray | memoryview
    )


def is_numbers(value: Value) -> bool:
    """Tell whether a value is a list of numbers, or of such lists: a literal array."""
    return (
        isinstance(value, list | tuple)
        and bool(value)
        and all(isinstance(v, bool | int | float) or is_numbers(v) for v in value)
    )


def checked(name: str, items: Iterable[Item], spec: SetSpec | None) -> ItemSet | None:
    """Check items against the data model and a declaration, and make a set from them.

    Raises:
        InvalidInput: a name, key, size or shape does not fit; the message names set and item.
    """
    items = tuple(items)
    if not items:
        return None
    for item in items:
        check_item(name, item.name, item.key)
    if spec is None or spec.dtype is None:
        return ItemSet(name, items)
    where, dtype, shape = f"sets.{name}", spec.dtype, spec.shape
    typed = tuple([_declared(where, item, dtype, shape) for item in items])
    return ItemSet(name, typed, dtype, shape)


def _declared(where: str, item: Item, dtype: str, shape: Shape | None) -> Item:
    """Check an item against a declared type; plain bytes become an array of it."""
    own = item.dtype
    if own is not None:
        differs = not arrays.same_dtype(own, dtype)
        if differs or not arrays.fits(item.shape, shape):
            found, wanted = arrays.text_of(own, item.shape), arrays.text_of(dtype, shape)
            message = f"item '{item.name}' is {found}, expected {wanted}"
            hint = f"convert it: array.astype('{dtype}')" if differs else ""
            if not hint and _can_be_reshaped(item.shape, shape):
                hint = "reshape it"
            raise InvalidInput(where, message, hint)
        if shape is None or item.shape is not None:
            return item
    element = arrays.declared_dtype(dtype)
    count, rest = divmod(item.size_bytes, element.itemsize)
    if rest:
        message = f"item '{item.name}' has {item.size_bytes} bytes, not a multiple of {dtype}"
        raise InvalidInput(where, message)
    try:
        filled = None if shape is None else arrays.filled_shape(shape, count)
    except ValueError:
        message = f"item '{item.name}' has {count} elements of {dtype}"
        raise InvalidInput(where, f"{message}, expected {arrays.text_of(dtype, shape)}") from None
    named = own or arrays.name_of(element)
    return item if named is None else Item(item.name, item.key, item.data, named, filled)


def _can_be_reshaped(found: Shape | None, wanted: Shape | None) -> bool:
    if found is None or wanted is None:
        return False
    try:
        arrays.filled_shape(wanted, math.prod(found))
    except ValueError:
        return False
    return True


def _item(where: str, name: str, key: int, value: Value, spec: SetSpec | None) -> Item:
    if isinstance(value, Item):
        return _sound(where, value)
    if isinstance(value, bytes):
        return Item(name, key, value)
    if isinstance(value, str):
        return Item(name, key, text_data(where, value))
    if isinstance(value, np.generic) and spec is not None and spec.shape is not None:
        count = len(spec.shape)  # a number, where a set has one
        return _array(where, name, key, np.asarray(value).reshape((1,) * count), spec)
    if isinstance(value, np.ndarray | np.generic):
        return _array(where, name, key, np.asarray(value), spec)
    if isinstance(value, bytearray | memoryview):
        return Item(name, key, _flat(value))
    declared = spec is not None and spec.dtype is not None
    if not declared and _may_be_json(value):
        try:
            return Item(name, key, json_bytes(value))
        except (TypeError, ValueError, RecursionError, OverflowError) as error:
            raise InvalidInput(where, f"item '{name}' cannot be written as JSON: {error}") from None
    if isinstance(value, bool | int | float | Sequence) and spec is not None and spec.dtype:
        try:
            array = arrays.of_numbers(where, value, arrays.declared_dtype(spec.dtype))
            if array.ndim > 1 and array.size:  # one list of numbers takes the declared shape
                return _array(where, name, key, array, spec)
            return Item(name, key, arrays.bytes_of(array))
        except (TypeError, ValueError) as error:
            message = f"item '{name}' is not a {spec.dtype} array: {error}"
            raise InvalidInput(where, message) from None
    raise InvalidInput(
        where,
        f"item '{name}' is {named_type(value)}",
        "give bytes, str, a numpy array, an Item, a JSON value, or a list or dict of these",
    )


def _may_be_json(value: Value) -> bool:
    if value is None or isinstance(value, bool | int | float | list | tuple | dict):
        return True
    return isinstance(value, msgspec.Struct) or (
        dataclasses.is_dataclass(value) and not isinstance(value, type)
    )


def _array(where: str, name: str, key: int, array: npt.NDArray[Any], spec: SetSpec | None) -> Item:
    dtype = arrays.name_of(array.dtype)
    if dtype is not None:
        return Item(name, key, arrays.bytes_of(array), dtype, array.shape)
    declared = spec.dtype if spec is not None else None
    if declared is not None and arrays.declared_dtype(declared) == array.dtype:
        return Item(name, key, arrays.bytes_of(array))
    message = f"item '{name}' is an array of {array.dtype}"
    expected = "" if declared is None else f", expected {declared}"
    raise InvalidInput(where, message + expected, "give numbers, or its bytes: array.tobytes()")


def _sound(where: str, item: Item) -> Item:
    """Check and normalize an item that a caller made."""
    if not isinstance(item, Item):
        raise InvalidInput(where, f"{named_type(item)} instead of an Item")
    data: object = item.data
    if not isinstance(item.name, str):
        raise InvalidInput(where, f"an item's name is {named_type(item.name)}, not a text")
    if not isinstance(data, bytes | bytearray | memoryview):
        kind = type(data).__name__
        message = f"item '{item.name}' has data of type {kind}"
        raise InvalidInput(where, message, "give bytes, or make it with Item.of(name, value)")
    given: object = item.key
    try:
        key = text_key(given) if isinstance(given, str) else operator.index(item.key)
    except (TypeError, UnicodeEncodeError):
        hint = "give an integer or a text"
        raise InvalidInput(where, f"item '{item.name}' has key {item.key!r}", hint) from None
    flat = data if isinstance(data, bytes) else _flat(data)
    dtype, shape = item.dtype, item.shape
    if dtype is not None or shape is not None:
        path = f"{where}: item '{item.name}'"
        dtype, shape = arrays.checked_type(path, dtype, shape, len(flat))
    if flat is item.data and key is item.key and dtype == item.dtype and shape == item.shape:
        return item
    return Item(item.name, key, flat, dtype, shape)


def _flat(data: bytearray | memoryview) -> Bytes:
    view = data if isinstance(data, memoryview) else memoryview(data)
    if not view.c_contiguous:
        return view.tobytes()
    if view.format != "B" or view.ndim != 1:
        view = view.cast("B")
    return view if view.readonly else view.toreadonly()
