"""Datatypes of the protocol, and the binary form of tensors.

A tensor in binary form is its elements, row-major and little-endian; a BOOL is one byte. An element
of BYTES is its length in four bytes, then the bytes.

Source: Open Inference Protocol (KServe v2), "Tensor Data Types"; its binary tensor data extension.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable

from dandelion.arrays import declared_dtype, name_of
from dandelion.data import Bytes, SetSpec
from dandelion.errors import InvalidInput, TooLarge, TooMany
from dandelion.frontend.asgi import clipped, did_you_mean

BYTES = "BYTES"

_DTYPES = {
    "BOOL": "bool",
    **{f"INT{bits}": f"int{bits}" for bits in (8, 16, 32, 64)},
    **{f"UINT{bits}": f"uint{bits}" for bits in (8, 16, 32, 64)},
    **{f"FP{bits}": f"float{bits}" for bits in (16, 32, 64)},
    "BF16": "bfloat16",
}
_DATATYPES = {dtype: datatype for datatype, dtype in _DTYPES.items()}
DATATYPES = (*_DTYPES, BYTES)

LENGTH = struct.Struct("<I")
"""The length of an element of BYTES."""
ELEMENT_LIMIT_BYTES = 2**32 - 1


def dtype_of(where: str, datatype: str) -> str | None:
    """Return the dtype of an item with this datatype; None for BYTES.

    Raises:
        InvalidInput: there is no such datatype.
    """
    if datatype == BYTES:
        return None
    dtype = _DTYPES.get(datatype)
    if dtype is None:
        close = did_you_mean(datatype.upper(), DATATYPES)
        hint = close or f"datatypes are {', '.join(DATATYPES)}"
        raise InvalidInput(where, f"unknown datatype '{clipped(datatype)}'", hint)
    return dtype


def datatype_of(dtype: str | None) -> str:
    """Return the datatype of a dtype; BYTES for plain bytes, and for dtypes that have none."""
    if dtype is None:
        return BYTES
    return _DATATYPES.get(name_of(declared_dtype(dtype)) or "", BYTES)


def tensor_type(spec: SetSpec) -> tuple[str, tuple[int, ...]]:
    """Return datatype and shape of a declared set; -1 is any size."""
    datatype = datatype_of(spec.dtype)
    if datatype == BYTES or spec.shape is None:
        return datatype, (-1,)
    return datatype, tuple(max(size, -1) for size in spec.shape)


def split_elements(where: str, data: Bytes, count: int, limit: int) -> list[Bytes]:
    """Split a BYTES tensor into its elements, as views.

    Args:
        where: location for an error.
        data: the tensor in binary form.
        count: how many elements its shape has.
        limit: how many it may have.

    Raises:
        TooMany: it has more than the limit.
        InvalidInput: lengths and data differ.
    """
    if count > limit:
        raise TooMany(where, "elements", count, limit)
    view = memoryview(data)
    size = len(view)
    elements: list[Bytes] = []
    end = 0
    for index in range(count):
        start = end + LENGTH.size
        if start > size:
            raise _short(where, f"element {index} of {count} has no length")
        end = start + LENGTH.unpack_from(view, end)[0]
        if end > size:
            raise _short(where, f"element {index} of {count} ends at {end}")
        elements.append(view[start:end])
    if end != size:
        raise _short(where, f"{count} elements end at {end}")
    return elements


def element_pieces(where: str, elements: Iterable[Bytes]) -> list[Bytes]:
    """Write elements of BYTES in binary form, in pieces that follow each other.

    Raises:
        TooLarge: the length of an element does not fit in four bytes.
    """
    pieces: list[Bytes] = []
    for index, element in enumerate(elements):
        if len(element) > ELEMENT_LIMIT_BYTES:
            place = f"{where}: element {index}"
            remedy = "use POST /v1/invoke/NAME"
            raise TooLarge(place, len(element), ELEMENT_LIMIT_BYTES, remedy)
        pieces += LENGTH.pack(len(element)), element
    return pieces


def _short(where: str, message: str) -> InvalidInput:
    hint = "each element is its length in 4 bytes, little-endian, and its bytes"
    return InvalidInput(where, f"{message}, which is not the end of the data", hint)
