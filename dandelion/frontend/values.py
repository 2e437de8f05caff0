"""Conversion of plain values from JSON and MessagePack bodies to sets.

The long form of a set is a list of objects. Other forms are shorthands::

    {"sets": {"image": [{"name": "a.png", "key": 7, "data": ...}, ...]}}

=========================== ================================================================
value of a set              items
=========================== ================================================================
null or []                  none: the set is absent
object                      one; its name is that of the set unless it has a ``name``
string, binary              one, named as the set
number, list of numbers     one, where the set declares a dtype; nested lists are row-major
list of the above           one for each element, named ``"0"``, ``"1"``, ... by default
=========================== ================================================================

An object has exactly one of ``data`` (base64 in JSON, binary in MessagePack), ``text`` (UTF-8),
``numbers`` and ``value`` (any JSON value, which becomes JSON text). ``name`` and ``key`` are
optional. ``dtype`` and ``shape`` are the type of an array in ``data`` or ``numbers``; an array that
differs from its declaration is refused. Numbers without a dtype are converted to the declared one
if only precision is lost.
"""

from __future__ import annotations

import binascii
from collections.abc import Iterable, Mapping
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from dandelion.arrays import (
    Shape,
    bytes_of,
    checked_type,
    declared_dtype,
    dtype_named,
    exact_integers,
    kind_of,
    name_of,
    of_lists,
)
from dandelion.data import Bytes, Item, ItemSet, SetSpec
from dandelion.errors import InvalidInput
from dandelion.errors.misfits import named_type
from dandelion.frontend.asgi import clipped, did_you_mean
from dandelion.json_values import json_bytes
from dandelion.set_values import checked

_KINDS: dict[type, str] = {
    str: "a string",
    bytes: "binary",
    bool: "a boolean",
    int: "an integer",
    float: "a number",
    list: "an array",
    dict: "an object",
    type(None): "null",
}

# What msgspec decodes without a type: None, bool, int, float, str, bytes, list, dict, extensions.
Plain: TypeAlias = Any
Array: TypeAlias = npt.NDArray[Any]

FIELDS = ("name", "key", "data", "text", "numbers", "value", "dtype", "shape")
_CONTENTS = ("data", "text", "numbers", "value")


def set_of(name: str, value: Plain, spec: SetSpec | None = None) -> ItemSet | None:
    """Read one set.

    Args:
        name: of the set.
        value: as in the module's text.
        spec: the declaration, if there is one.

    Raises:
        InvalidInput: `where` is the path to the part at fault, such as ``sets.image[3].data``.
    """
    where = f"sets.{name}"
    if value is None:
        return None
    if isinstance(value, list) and not _is_array(value, spec):
        items = [_item(f"{where}[{i}]", str(i), element, spec) for i, element in enumerate(value)]
    else:
        items = [_item(where, name, value, spec)]
    return checked(name, items, spec)


def _is_array(value: list[Plain], spec: SetSpec | None) -> bool:
    if spec is None or spec.dtype is None or not value:
        return False
    return isinstance(value[0], int | float | list)


def _item(where: str, name: str, value: Plain, spec: SetSpec | None) -> Item:
    if isinstance(value, dict):
        return _object(where, name, value, spec)
    if isinstance(value, str):
        return Item(name, 0, value.encode())
    if isinstance(value, bytes):
        return Item(name, 0, value)
    if isinstance(value, int | float | list):
        if spec is None or spec.dtype is None:
            raise InvalidInput(
                where, "the set declares no dtype for numbers", "give text, or data, or a dtype"
            )
        return _numbers(where, Item(name), value, None, None, spec)
    raise InvalidInput(
        where, f"{_kind(value)} is not an item", "give a string, or an object with data"
    )


def _object(where: str, name: str, value: Mapping[Plain, Plain], spec: SetSpec | None) -> Item:
    check_fields(where, value, FIELDS)
    given = [c for c in _CONTENTS if value.get(c) is not None or (c == "value" and c in value)]
    if len(given) != 1:
        found = " and ".join(given) or "none"
        raise InvalidInput(
            where, f"give exactly one of data, text, numbers and value; found {found}"
        )
    name = _typed(f"{where}.name", value.get("name"), str, "a string", name)
    key = _typed(f"{where}.key", value.get("key"), int, "an integer", 0)
    dtype = _typed(f"{where}.dtype", value.get("dtype"), str, "a string", None)
    if dtype is not None:
        dtype_named(f"{where}.dtype", dtype)
    shape = _typed(f"{where}.shape", value.get("shape"), list, "a list", None)
    (kind,) = given
    content = value[kind]
    where = f"{where}.{kind}"
    if kind == "text":
        if dtype is not None or shape is not None:
            raise InvalidInput(where, "text is not an array and has no dtype or shape")
        text: str = _typed(where, content, str, "a string", "")
        return Item(name, key, text.encode())
    if kind == "value":
        return _json_value(where, Item(name, key), content, dtype, shape)
    if kind == "numbers":
        return _numbers(where, Item(name, key), content, dtype, shape, spec)
    if isinstance(content, str):
        content = _base64(where, content)
    data: bytes = _typed(where, content, bytes, "base64 or binary", b"")
    return Item(name, key, data, *item_type(where, dtype, shape, len(data), spec))


def _json_value(where: str, item: Item, value: Plain, dtype: str | None, shape: Plain) -> Item:
    if dtype is not None or shape is not None:
        raise InvalidInput(where, "a JSON value has no dtype or shape", "use numbers for an array")
    try:
        return Item(item.name, item.key, json_bytes(value))
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidInput(where, f"it cannot be written as JSON: {error}") from None


def item_type(
    where: str, dtype: str | None, shape: object, size_bytes: int, spec: SetSpec | None
) -> tuple[str | None, Shape | None]:
    """Check the type that was sent with an item. A shape without dtype has the declared dtype.

    Raises:
        InvalidInput: the type is unknown, or the data has another size.
    """
    if dtype is None and shape is not None and spec is not None and spec.dtype is not None:
        dtype = name_of(declared_dtype(spec.dtype))
    return checked_type(where, dtype, shape, size_bytes)


def _numbers(
    where: str, item: Item, value: Plain, dtype: str | None, shape: Plain, spec: SetSpec | None
) -> Item:
    """Make an item from a number or from lists of numbers, row-major.

    Nested lists have a shape, unless one is given; a number or one list takes the declared one.
    """
    declared = spec.dtype if spec is not None else None
    if dtype is not None:
        element = dtype_named(where, dtype)
    elif declared is not None:
        element = declared_dtype(declared)
    else:
        raise InvalidInput(where, "the set declares no dtype for numbers", "give a dtype")
    array = number_array(where, value, element)
    nested = array.ndim > 1 and array.size > 0
    if shape is None and (nested or (dtype is not None and declared is None)):
        shape = list(array.shape)
    data = cast_numbers(where, array, element)
    return Item(item.name, item.key, data, *item_type(where, dtype, shape, len(data), spec))


def number_array(where: str, value: Plain, target: np.dtype[Any]) -> Array:
    """Read a number or nested lists of numbers, row-major.

    Args:
        where: of the value, for errors.
        value: the numbers.
        target: to which they will be converted. For integers no digit is lost, also where numpy
            makes floats, as of 2**63 or more beside smaller ones.

    Raises:
        InvalidInput: there is something else in them, lists have different lengths, or a large
            number does not fit integers of the target.
    """
    try:
        array = of_lists(value)
    except (ValueError, OverflowError) as error:
        raise InvalidInput(where, f"not an array: {error}") from None
    if not array.size:
        array = array.astype(np.uint8)
    # An object array of numbers has integers of more than 64 bits; JavaScript writes floats so.
    if array.dtype.kind not in "biuf" and not all(isinstance(v, int | float) for v in array.flat):
        raise InvalidInput(where, "an array has numbers only, in lists of equal length")
    if target.kind in "iu" and array.dtype.kind in "fO":
        return exact_integers(where, value, array, target)
    if array.dtype.kind == "O":
        try:
            return array.astype(np.float64)
        except OverflowError:
            raise InvalidInput(where, f"an integer does not fit {target}") from None
    return array


def cast_numbers(where: str, array: Array, target: np.dtype[Any]) -> Bytes:
    """Convert numbers without a dtype of their own to one, and give their bytes.

    Raises:
        InvalidInput: a number loses more than precision.
    """
    if array.dtype != target:
        misfit = _misfits(array, target)
        if misfit.any():
            value = np.ravel(array)[int(np.argmax(np.ravel(misfit)))]
            raise InvalidInput(where, f"{value} does not fit {target}")
        with np.errstate(all="ignore"):
            array = array.astype(target)
    return bytes_of(array)


def _misfits(array: Array, target: np.dtype[Any]) -> Array:
    """Mark the elements whose conversion loses more than precision."""
    if kind_of(target) in "fc":
        with np.errstate(all="ignore"):
            overflown: Array = np.isfinite(array) & ~np.isfinite(array.astype(target))
            return overflown
    if array.dtype.kind == "b":
        return np.zeros(array.shape, bool)
    low, high = (0, 1) if target.kind == "b" else (np.iinfo(target).min, np.iinfo(target).max)
    if array.dtype.kind != "f":
        outside: Array = (array < low) | (array > high)
        return outside
    exact = array.astype(np.float64)
    misfit: Array = (exact < low) | (exact >= high + 1) | (exact != np.floor(exact))
    return misfit


def _base64(where: str, text: str) -> bytes:
    try:
        return binascii.a2b_base64(text, strict_mode=True)
    except (binascii.Error, ValueError) as error:
        raise InvalidInput(where, f"not valid base64: {error}", "for text, use 'text'") from None


def check_fields(where: str, value: Mapping[Plain, Plain], known: Iterable[str]) -> None:
    """Refuse unknown fields.

    Raises:
        InvalidInput: with the nearest known field.
    """
    known = tuple(known)
    for field in value:
        if field not in known:
            name = str(field)
            hint = did_you_mean(name, known) or f"fields are {', '.join(known)}"
            raise InvalidInput(f"{where}.{clipped(name)}", "no such field", hint)


def _typed(where: str, value: Plain, cls: type, wanted: str, default: Plain) -> Plain:
    if value is None:
        return default
    if not isinstance(value, cls) or isinstance(value, bool):
        raise InvalidInput(where, f"expected {wanted}, found {_kind(value)}")
    return value


def _kind(value: Plain) -> str:
    return _KINDS.get(type(value)) or named_type(value)
