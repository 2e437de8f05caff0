"""Sets as plain values: what JSON and MessagePack bodies say, and how it becomes items.

The long form of a set is a list of objects; everything else is a shorthand for it::

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

An object has exactly one of ``data`` (base64 in JSON, binary in MessagePack), ``text`` (UTF-8) and
``numbers``; ``name`` and ``key`` are optional. ``dtype`` says what ``data`` or ``numbers`` consist
of, if that differs from the declaration or nothing is declared; values are converted to the
declared dtype only if that loses nothing but precision.
"""

from __future__ import annotations

import binascii
import re
from collections.abc import Iterable, Mapping
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from dandelion.data import Bytes, Item, ItemSet, SetSpec, checked
from dandelion.errors import InvalidInput
from dandelion.frontend.asgi import clipped, did_you_mean

_WITH_ORDER = re.compile("[<>]([iu][1248]|f[248]|c8|c16)")

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

_FIELDS = ("name", "key", "data", "text", "numbers", "dtype")
_CONTENTS = ("data", "text", "numbers")
DTYPES = (
    *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
    *("float16", "float32", "float64", "complex64", "complex128"),
)


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
        return Item(name, 0, numbers_to_bytes(where, value, spec.dtype, spec.dtype))
    raise InvalidInput(where, f"{_kind(value)} is no item", "give a string, or an object with data")


def _object(where: str, name: str, value: Mapping[Plain, Plain], spec: SetSpec | None) -> Item:
    check_fields(where, value, _FIELDS)
    given = [c for c in _CONTENTS if value.get(c) is not None]
    if len(given) != 1:
        found = " and ".join(given) or "none"
        raise InvalidInput(where, f"exactly one of data, text, numbers is needed, there is {found}")
    name = _typed(f"{where}.name", value.get("name"), str, "a string", name)
    key = _typed(f"{where}.key", value.get("key"), int, "an integer", 0)
    dtype = _typed(f"{where}.dtype", value.get("dtype"), str, "a string", None)
    if dtype is not None:
        numeric_dtype(f"{where}.dtype", dtype)
    kind = given[0]
    return Item(name, key, _content(f"{where}.{kind}", kind, value[kind], dtype, spec))


def _content(where: str, kind: str, value: Plain, dtype: str | None, spec: SetSpec | None) -> Bytes:
    declared = spec.dtype if spec is not None else None
    if kind == "numbers":
        source = dtype or declared
        if source is None:
            raise InvalidInput(where, "the set declares no dtype for numbers", "give a dtype")
        return numbers_to_bytes(where, value, source, declared or source)
    if kind == "text":
        text: str = _typed(where, value, str, "a string", "")
        return text.encode()
    if isinstance(value, str):
        value = _base64(where, value)
    data: bytes = _typed(where, value, bytes, "base64 or binary", b"")
    return converted(where, data, dtype, declared)


def converted(where: str, data: Bytes, dtype: str | None, declared: str | None) -> Bytes:
    """Convert the data of one item from the dtype that it was sent in to the declared one.

    Without `dtype`, or if both are the same, the data is given back as it is.

    Raises:
        InvalidInput: the dtype is unknown, or a value cannot be converted.
    """
    if dtype is None or declared is None or dtype == declared:
        return data
    element = numeric_dtype(where, dtype)
    if len(data) % element.itemsize:
        raise InvalidInput(where, f"{len(data)} bytes are no multiple of {dtype}")
    return _cast(where, np.frombuffer(data, dtype=element), declared)


def numbers_to_bytes(where: str, value: Plain, dtype: str, declared: str) -> Bytes:
    """Make the bytes of one item from a number or nested lists of numbers, row-major.

    Raises:
        InvalidInput: a list is ragged, an element is no number, or does not fit the dtype.
    """
    numeric_dtype(where, dtype)
    try:
        array = np.asarray(value)
    except (ValueError, OverflowError) as error:
        raise InvalidInput(where, f"this is no array: {error}") from None
    if not array.size:
        array = array.astype(np.uint8)
    if array.dtype.kind not in "biuf":
        raise InvalidInput(where, "an array has numbers only, in lists of equal length")
    data = _cast(where, array, dtype)
    return converted(where, data, dtype, declared)


def numeric_dtype(where: str, name: str) -> np.dtype[Any]:
    """Look up a dtype by its numpy name.

    Raises:
        InvalidInput: there is none of that name, or its elements are not numbers.
    """
    if name not in DTYPES and not _WITH_ORDER.fullmatch(name):
        hint = did_you_mean(name, DTYPES) or f"dtypes are {', '.join(DTYPES)}"
        raise InvalidInput(where, f"there is no dtype '{clipped(name)}'", hint)
    return np.dtype(name)


def _cast(where: str, array: Array, dtype: str) -> Bytes:
    target = np.dtype(dtype)
    if array.dtype != target:
        misfit = _misfits(array, target)
        if misfit.any():
            value = np.ravel(array)[int(np.argmax(np.ravel(misfit)))]
            raise InvalidInput(where, f"{value} does not fit {dtype}")
        with np.errstate(all="ignore"):
            array = array.astype(target)
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data.toreadonly()


def _misfits(array: Array, target: np.dtype[Any]) -> Array:
    """Mark the elements that would lose more than precision."""
    if array.dtype.kind == "c" and target.kind != "c":
        return np.ones(array.shape, bool)
    if target.kind in "fc":
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
        raise InvalidInput(where, f"this is no base64: {error}", "for text, use 'text'") from None


def check_fields(where: str, value: Mapping[Plain, Plain], known: Iterable[str]) -> None:
    """Refuse fields that are not known.

    Raises:
        InvalidInput: with the nearest known field.
    """
    known = tuple(known)
    for field in value:
        if field not in known:
            name = str(field)
            hint = did_you_mean(name, known) or f"fields are {', '.join(known)}"
            raise InvalidInput(f"{where}.{clipped(name)}", "there is no such field", hint)


def _typed(where: str, value: Plain, cls: type, wanted: str, default: Plain) -> Plain:
    if value is None:
        return default
    if not isinstance(value, cls) or isinstance(value, bool):
        raise InvalidInput(where, f"expected {wanted}, found {_kind(value)}")
    return value


def _kind(value: Plain) -> str:
    return _KINDS.get(type(value), f"a {type(value).__name__}")
