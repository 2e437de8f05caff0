"""Tensors as sets, and sets as tensors.

An input tensor becomes items of the set of its name:

- BYTES: each element is an item of plain bytes, named ``"0"``, ``"1"``, ... No elements leave the
  set absent. For a set that declares a dtype, BYTES is refused.
- any other datatype: one item with dtype and shape, a view into the body.
- if the set declares a shape and the tensor has one dimension more, the first one is a **batch**:
  each entry along it is an item.

An output set becomes one tensor: items of plain bytes are the elements of BYTES; one array is a
tensor of its shape; several arrays of equal type are stacked along a new first dimension. If an
input was a batch, that dimension is there also for one item. A set without items has no elements.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from dandelion.arrays import checked_type, text_of
from dandelion.data import Bytes, Item, ItemSet, SetSpec
from dandelion.errors import InvalidInput, TooMany
from dandelion.frontend.asgi import clipped, did_you_mean
from dandelion.frontend.codecs import SetMap, Specs
from dandelion.frontend.kserve.datatypes import (
    BYTES,
    LENGTH,
    datatype_of,
    dtype_of,
    element_pieces,
    split_elements,
    tensor_type,
)
from dandelion.frontend.problem import NotAcceptable
from dandelion.set_values import checked


@dataclass(frozen=True, slots=True)
class InputTensor:
    """A tensor of a request, in binary form."""

    name: str
    datatype: str
    shape: Sequence[int]
    data: Bytes


@dataclass(frozen=True, slots=True)
class OutputTensor:
    """A tensor of a response.

    Attributes:
        chunks: its data: for BYTES the elements, else pieces that follow each other.
    """

    name: str
    datatype: str
    shape: tuple[int, ...]
    chunks: list[Bytes] = field(default_factory=list)

    @property
    def size_bytes(self) -> int:
        """Size in binary form."""
        lengths = LENGTH.size * len(self.chunks) if self.datatype == BYTES else 0
        return lengths + sum(map(len, self.chunks))

    def binary(self) -> list[Bytes]:
        """Give the binary form, in pieces.

        Raises:
            TooLarge: an element of BYTES has 4 GiB or more.
        """
        if self.datatype != BYTES:
            return self.chunks
        return element_pieces(f"outputs.{self.name}", self.chunks)


# --- requests -------------------------------------------------------------------------------------


def sets_of(
    tensors: Iterable[InputTensor], specs: Specs, static: Sequence[str], items_limit: int
) -> tuple[SetMap, bool]:
    """Convert the tensors of a request.

    Args:
        tensors: in binary form.
        specs: the input sets that a caller gives.
        static: input sets that are fixed at registration.
        items_limit: how many items there may be.

    Returns:
        The sets, and whether one of the tensors is a batch.

    Raises:
        InvalidInput: a tensor does not fit its set, or its data does not fit its shape; a name is
            unknown (with the nearest one), given twice, or missing and not optional.
        TooMany: there are more items than the limit.
    """
    sets: SetMap = {}
    is_batch = False
    left = items_limit
    for tensor in tensors:
        name = tensor.name
        where = f"inputs.{clipped(name)}"
        spec = specs.get(name)
        if spec is None:
            raise _unknown_input(name, specs, static)
        if name in sets:
            raise InvalidInput(where, "the input is given twice")
        items, is_split = _items(where, tensor, spec, left)
        left -= len(items)
        is_batch = is_batch or is_split
        sets[name] = checked(name, items, spec)
    for name, spec in specs.items():
        if name not in sets and not spec.optional:
            hint = f"inputs are: {', '.join(specs)}"
            raise InvalidInput("inputs", f"the input '{name}' is missing", hint)
    return sets, is_batch


def _unknown_input(name: str, specs: Specs, static: Sequence[str]) -> InvalidInput:
    where = f"inputs.{clipped(name)}"
    if name in static:
        return InvalidInput(where, "the set is fixed at registration; leave it out")
    hint = did_you_mean(name, specs) or f"inputs are: {', '.join(specs) or 'none'}"
    return InvalidInput(where, "no such input", hint)


def _items(where: str, tensor: InputTensor, spec: SetSpec, limit: int) -> tuple[list[Item], bool]:
    """Make the items of a tensor; return also whether it is a batch."""
    dtype = dtype_of(f"{where}.datatype", tensor.datatype)
    data = tensor.data
    if dtype is None:
        _, shape = checked_type(where, "uint8", tensor.shape, _product(where, tensor.shape))
        assert shape is not None
        if datatype_of(spec.dtype) != BYTES:
            message = f"a BYTES tensor for a set of {text_of(spec.dtype, spec.shape)}"
            raise InvalidInput(where, message, f"send {datatype_of(spec.dtype)}")
        elements = split_elements(where, data, _product(where, shape), limit)
        return [Item(str(i), 0, element) for i, element in enumerate(elements)], False
    dtype, shape = checked_type(where, dtype, tensor.shape, len(data))
    assert shape is not None
    if spec.dtype is None or spec.shape is None or len(shape) != len(spec.shape) + 1:
        return [Item(spec.name, 0, data, dtype, shape)], False
    count, rest = shape[0], shape[1:]
    if count > limit:
        raise TooMany(where, "items", count, limit)
    view = memoryview(data)
    size = len(data) // count if count else 0
    return [
        Item(str(i), 0, view[i * size : (i + 1) * size], dtype, rest) for i in range(count)
    ], True


def _product(where: str, shape: Sequence[int]) -> int:
    """Count the elements of a shape; a bad shape counts as none, and is refused by its check."""
    total = 1
    for size in shape:
        if not 0 <= size < 2**62:
            raise InvalidInput(where, f"{clipped(str(list(shape)))} is not a valid shape")
        total = min(total * size, 2**62)
    return total


# --- responses ------------------------------------------------------------------------------------


def tensors_of(
    sets: Mapping[str, ItemSet | None], specs: Specs, names: Iterable[str], is_batch: bool
) -> list[OutputTensor]:
    """Convert output sets.

    Args:
        sets: the result.
        specs: the output sets as declared.
        names: of the outputs that the client wants, in its order.
        is_batch: whether an input was a batch.

    Raises:
        NotAcceptable: the items of a set have different types.
    """
    return [_tensor(specs[name], sets[name], is_batch) for name in names]


def _tensor(spec: SetSpec, one: ItemSet | None, is_batch: bool) -> OutputTensor:
    if one is None:
        return _empty(spec)
    datatype, shape = _type_of(spec.name, one.items[0])
    items = one.items
    for item in items[1:]:
        other = _type_of(spec.name, item)
        if other != (datatype, shape):
            raise _mixed(spec.name, items[0], item)
    chunks = [item.data for item in items]
    if datatype == BYTES:
        return OutputTensor(spec.name, BYTES, (len(items),), chunks)
    if len(items) > 1 or is_batch:
        shape = (len(items), *shape)
    return OutputTensor(spec.name, datatype, shape, chunks)


def _empty(spec: SetSpec) -> OutputTensor:
    datatype, shape = tensor_type(spec)
    if datatype == BYTES or spec.shape is None:
        return OutputTensor(spec.name, datatype, (0,))
    return OutputTensor(spec.name, datatype, (0, *(max(size, 0) for size in shape)))


def _type_of(name: str, item: Item) -> tuple[str, tuple[int, ...]]:
    datatype = datatype_of(item.dtype)
    if datatype == BYTES:
        return BYTES, ()
    if item.shape is not None:
        return datatype, item.shape
    return datatype, (item.size_bytes // np.dtype(item.dtype).itemsize,)


def _mixed(name: str, first: Item, second: Item) -> NotAcceptable:
    found = f"{text_of(first.dtype, first.shape)} and {text_of(second.dtype, second.shape)}"
    message = f"output '{name}' has items of {found}, which are not one tensor"
    return NotAcceptable("KServe", f"{message}; use POST /v1/invoke/NAME")
