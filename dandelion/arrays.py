"""Types of arrays: an element type by its numpy name, and a shape.

An item made from an array has both, see `dandelion.data.Item`. A type describes bytes and never
changes them: where two types disagree, the item is refused, never converted.

Names are those of numpy: ``float32`` for an element type in the byte order of this machine,
``>f4`` for one in the other order. Only numbers and booleans are supported. Arrays of anything else
(dates, text, records) are refused; give their bytes instead. ``bfloat16`` is the type of the
package ml_dtypes, which numpy knows by that name as soon as this module is imported.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, TypeAlias

import ml_dtypes
import numpy as np
import numpy.typing as npt

from dandelion.errors import InvalidInput, nearest
from dandelion.errors.misfits import named_type

Array: TypeAlias = npt.NDArray[Any]
Shape: TypeAlias = tuple[int, ...]

DTYPES = (
    *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
    *("bfloat16", "float16", "float32", "float64", "complex64", "complex128"),
)
RANK_LIMIT = 32
"""Most dimensions of an array that every numpy supports."""

_EXACT = 2.0**53  # float64 has all integers up to here
ELEMENTS_LIMIT = 2**62
"""Most elements of an array without its empty dimensions: numpy's limit."""

_BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
_NAMES: dict[np.dtype[Any], str] = {np.dtype(name): name for name in DTYPES}
_TYPES: dict[str, np.dtype[Any]] = {name: dtype for dtype, name in _NAMES.items()}
for _native in _NAMES.keys() - {_BFLOAT16}:  # which has one byte order
    for _word in (f"<{_native.str[1:]}", f">{_native.str[1:]}"):
        _TYPES[_word] = _dtype = np.dtype(_word)
        _NAMES.setdefault(_dtype, _dtype.str)


def name_of(dtype: np.dtype[Any]) -> str | None:
    """Return the name of an element type; None if it is not supported."""
    return _NAMES.get(dtype)


def kind_of(dtype: np.dtype[Any]) -> str:
    """Return the kind of an element type as numpy writes it, such as ``f`` for floats.

    That of ``bfloat16`` is ``V`` in numpy, as of records; here it is ``f``.
    """
    return "f" if dtype == _BFLOAT16 else dtype.kind


def are_finite(array: Array | np.generic) -> Array:
    """Mark the numbers that are finite; without a warning for signaling NaNs of ``bfloat16``."""
    with np.errstate(invalid="ignore"):
        found: Array = np.isfinite(array)
        return found


def dtype_named(where: str, name: str) -> np.dtype[Any]:
    """Look up an element type by its name.

    Raises:
        InvalidInput: the name is unknown.
    """
    dtype = _TYPES.get(name)
    if dtype is None:
        shown = name if len(name) <= 80 else f"{name[:80]}..."
        close = nearest(shown, DTYPES)
        hint = f"did you mean '{close}'?" if close else f"use one of {', '.join(DTYPES)}"
        raise InvalidInput(where, f"unknown dtype '{shown}'", hint)
    return dtype


@lru_cache(maxsize=1024)
def declared_dtype(name: str) -> np.dtype[Any]:
    """Return the element type of a declaration, which may use any name that numpy reads."""
    return np.dtype(name)


def checked_type(where: str, dtype: str | None, shape: object, size_bytes: int) -> _Type:
    """Check a type from outside against the size of its data.

    Args:
        where: location for an error.
        dtype: name of the element type; None for plain bytes.
        shape: a sequence of sizes; None is one dimension.
        size_bytes: length of the data.

    Returns:
        The type with the usual name of its dtype, and with a tuple for its shape.

    Raises:
        InvalidInput: the type is unknown, or the data has another size.
    """
    if dtype is None:
        if shape is not None:
            raise InvalidInput(where, "it has a shape but no dtype", "give both")
        return None, None
    if not isinstance(dtype, str):
        raise InvalidInput(where, f"its dtype is {named_type(dtype)}", "give a name")
    element = dtype_named(where, dtype)
    if shape is None:
        if size_bytes % element.itemsize:
            message = f"{size_bytes} bytes are not a multiple of {dtype}"
            raise InvalidInput(where, message)
        return _NAMES[element], None
    sizes = _sizes(where, shape)
    if math.prod(sizes) * element.itemsize != size_bytes:
        message = f"{size_bytes} bytes are not the size of {text_of(dtype, sizes)}"
        raise InvalidInput(where, message)
    return _NAMES[element], sizes


_Type: TypeAlias = tuple[str | None, Shape | None]


def _sizes(where: str, shape: object) -> Shape:
    if not isinstance(shape, Sequence) or isinstance(shape, str | bytes):
        raise InvalidInput(where, f"its shape is {named_type(shape)}", "give a list of sizes")
    if len(shape) > RANK_LIMIT:
        raise InvalidInput(where, f"its shape has {len(shape)} dimensions, at most {RANK_LIMIT}")
    try:
        sizes = tuple(map(operator.index, shape))
    except TypeError:
        raise InvalidInput(where, "its shape has a size that is not an integer") from None
    if min(sizes, default=0) < 0 or math.prod(filter(None, sizes)) > ELEMENTS_LIMIT:
        raise InvalidInput(where, f"{list(sizes)} is not a valid shape")
    return sizes


def text_of(dtype: str | None, shape: Shape | None) -> str:
    """Format a type as in a declaration: ``float32[2, ?]``."""
    if dtype is None:
        return "bytes"
    if shape is None:
        return dtype
    return f"{dtype}[{', '.join('?' if size < 0 else str(size) for size in shape)}]"


def same_dtype(dtype: str, declared: str) -> bool:
    """Tell whether two names mean the same element type."""
    return dtype == declared or declared_dtype(dtype) == declared_dtype(declared)


def fits(shape: Shape | None, declared: Shape | None) -> bool:
    """Tell whether an array has a declared shape; its negative sizes are open, None fits all."""
    if shape is None or declared is None:
        return True
    return len(shape) == len(declared) and all(
        wanted < 0 or wanted == size for size, wanted in zip(shape, declared, strict=True)
    )


def filled_shape(declared: Shape, count: int) -> Shape | None:
    """Return the shape of `count` elements under a declared one; None if it is ambiguous.

    Raises:
        ValueError: no shape fits.
    """
    opened = [at for at, size in enumerate(declared) if size < 0]
    fixed = math.prod(size for size in declared if size >= 0)
    if not opened:
        if count != fixed:
            raise ValueError(f"{count} elements")
        return declared
    if not fixed or count % fixed:
        raise ValueError(f"{count} elements")
    if len(opened) > 1:
        return None
    at = opened[0]
    return (*declared[:at], count // fixed, *declared[at + 1 :])


def bytes_of(array: Array) -> memoryview:
    """View an array as flat bytes, row-major; it is copied if it is not contiguous."""
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data.toreadonly()


def of_lists(value: object) -> Array:
    """Make an array of a value, or of values in lists of any depth.

    Raises:
        ValueError: lists have different lengths.
        OverflowError: a number does not fit.
    """
    try:
        return np.asarray(value)
    except ValueError as error:
        if "inhomogeneous" in str(error):
            raise ValueError("its rows have different lengths") from None
        raise


def of_numbers(where: str, value: object, dtype: np.dtype[Any]) -> Array:
    """Make an array of Python's numbers, in lists of any depth, as `converted` does.

    An integer means the same as the float that is equal to it. Large ones beside floats keep their
    value, which numpy would round.

    Raises:
        InvalidInput: the conversion would lose more than digits of floats.
        TypeError, ValueError: the value is not an array of numbers.
    """
    made = of_lists(value)
    if kind_of(dtype) == "f":
        return _floats_of(where, value, made, dtype)
    if kind_of(made.dtype) != "f" or (np.abs(made) < _EXACT).all():
        return converted(where, made, dtype)
    exact = np.asarray(value, dtype=object)
    if not _are_equal(made, exact):
        try:
            made = exact.astype(dtype)
        except OverflowError:
            made = exact
        if not _are_equal(made, exact):
            raise _inexact(where, dtype)
    return converted(where, made, dtype)


def _floats_of(where: str, value: object, made: Array, dtype: np.dtype[Any]) -> Array:
    try:
        wide = made.astype(np.float64) if made.dtype.kind in "iuO" else made
    except OverflowError:
        raise InvalidInput(where, f"a number does not fit {dtype}") from None
    is_small = kind_of(wide.dtype) != "f" or (np.abs(wide) < _EXACT).all()
    if not (is_small or _are_equal(wide, np.asarray(value, dtype=object))):
        raise _inexact(where, dtype)
    try:
        return converted(where, wide, dtype)
    except InvalidInput:  # it names a type, and Python's numbers have none
        raise InvalidInput(where, f"a number does not fit {dtype}") from None


def _inexact(where: str, dtype: np.dtype[Any]) -> InvalidInput:
    return InvalidInput(where, f"numbers of these sizes do not fit {dtype} exactly")


def exact_integers(where: str, value: object, made: Array, dtype: np.dtype[Any]) -> Array:
    """Make an array of integers of Python's numbers, of which numpy made floats or objects.

    Args:
        where: of the value, for the error.
        value: numbers in lists of any depth.
        made: what numpy makes of them.
        dtype: of integers.

    Returns:
        `made`, if all of its numbers are small enough to be exact.

    Raises:
        InvalidInput: a number is not an integer of the dtype.
    """
    if kind_of(made.dtype) == "f" and (np.abs(made) < _EXACT).all():
        return made
    exact = np.asarray(value, dtype=object)
    low, high = np.iinfo(dtype).min, np.iinfo(dtype).max
    for number in exact.flat:
        if not (low <= number <= high and number == int(number)):
            raise InvalidInput(where, f"{_shown(number)} does not fit {dtype}")
    return exact.astype(dtype)


def _shown(number: object) -> str:
    try:
        text = str(number)
    except ValueError:  # Python writes integers of at most 4300 digits
        return "an integer"
    return text if len(text) <= 40 else f"{text[:40]}..."


def _are_equal(array: Array, exact: Array) -> bool:
    """Compare with Python's numbers, without rounding any."""
    found = array.astype(object)
    return bool(np.all((found == exact) | ((found != found) & (exact != exact))))


def converted(where: str, array: Array, dtype: np.dtype[Any]) -> Array:
    """Convert numbers without an element type of their own, such as Python's.

    Raises:
        InvalidInput: the conversion would lose more than digits of floats.
    """
    if array.dtype == dtype:
        return array
    if dtype.kind == "c" and np.can_cast(array.dtype, dtype):
        return array.astype(dtype)
    kinds = kind_of(array.dtype), kind_of(dtype)
    if all(kind in "biuf" for kind in kinds):
        with np.errstate(all="ignore"):
            result = array.astype(dtype)
            back = result.astype(array.dtype)
        if kinds == ("f", "f"):
            same = np.array_equal(are_finite(array), are_finite(result))
        else:  # both checks, since a number may wrap around and convert back
            same = np.array_equal(array, result) and np.array_equal(array, back)
        if same:
            return result
    if array.dtype.kind == "O":  # Python's integers of more than 64 bits, among others
        raise InvalidInput(where, f"a number does not fit {dtype}")
    raise InvalidInput(where, f"numbers of {array.dtype} do not fit {dtype}")
