"""The structures that a host shares with a function, for 64-bit and for 32-bit addresses.

A function reads its inputs and writes its outputs through one structure at a known address, the
*system data*. It points to arrays of *sets*, and to arrays of *buffers*, each grouped by set. All
fields but the exit code are words: 8 bytes in native functions, 4 in WebAssembly. ::

    system data   exit code (int32), heap begin, heap end,
                  input sets: count, array; output sets: count, array; input buffers, output buffers
    set           name: address, length; index of its first buffer
    buffer        name: address, length; data: address, length; key

An array of sets has one more element than there are sets; the index in that element is the number
of all buffers. The host fills in everything but the output buffers.

Source: binary interface of Dandelion's process backend.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass

from dandelion.data import Bytes, ItemSet

ITEM_ALIGNMENT = 128
NOT_EXITED = -1
"""The host's initial value of the exit code."""

_PADDING = bytes(ITEM_ALIGNMENT)


@dataclass(frozen=True, slots=True)
class SystemData:
    """The system data as the function wrote it; addresses and counts are unchecked."""

    exit_code: int
    heap_begin: int
    heap_end: int
    input_set_count: int
    input_sets: int
    output_set_count: int
    output_sets: int
    input_buffers: int
    output_buffers: int


class Structures:
    """The three structures at one size of words.

    Args:
        word_bytes: 8 or 4.

    Attributes:
        system: exit code and eight words.
        set: three words.
        buffer: five words.
    """

    def __init__(self, word_bytes: int) -> None:
        word = {8: "Q", 4: "I"}[word_bytes]
        self.word_bytes = word_bytes
        self.system = struct.Struct(f"<i{'4x' if word_bytes == 8 else ''}8{word}")
        self.set = struct.Struct(f"<3{word}")
        self.buffer = struct.Struct(f"<5{word}")


NATIVE = Structures(8)
WASM = Structures(4)


@dataclass(frozen=True, slots=True)
class Inputs:
    """Inputs laid out in one piece of memory.

    Attributes:
        parts: what to write, one after the other.
        size_bytes: length of all parts.
        sets, buffers, output_sets: addresses of the arrays.
    """

    parts: list[Bytes]
    size_bytes: int
    sets: int
    buffers: int
    output_sets: int


def lay_out(
    structures: Structures,
    address: int,
    inputs: Sequence[ItemSet | None],
    input_names: Sequence[str],
    output_names: Sequence[str],
) -> Inputs:
    """Lay out the data of all items, their names, and the arrays.

    Args:
        structures: for the size of words.
        address: start address, a multiple of 128; so is the address of every item.
        inputs: input sets; an absent set has no name, as in the original.
        input_names, output_names: of the declared sets.
    """
    parts: list[Bytes] = []
    end = address
    placed: list[tuple[bytes, int, int, int]] = []
    firsts: list[int] = []
    for item_set in inputs:
        firsts.append(len(placed))
        for item in item_set.items if item_set is not None else ():
            size = item.size_bytes
            placed.append((item.name.encode(), end, size, item.key))
            if size:
                parts += (_flat(item.data), _PADDING[: -size % ITEM_ALIGNMENT])
                end += size + -size % ITEM_ALIGNMENT
    named = [n.encode() if s is not None else b"" for n, s in zip(input_names, inputs, strict=True)]
    outputs = [name.encode() for name in output_names]
    names = [*(name for name, *_ in placed), *named, *outputs]
    tables, starts = _tables(structures, end, names, placed, [*firsts, len(placed)], len(named))
    parts.append(tables)
    return Inputs(parts, end + len(tables) - address, *starts)


def _tables(
    structures: Structures,
    address: int,
    names: list[bytes],
    placed: list[tuple[bytes, int, int, int]],
    firsts: list[int],
    input_count: int,
) -> tuple[bytes, tuple[int, int, int]]:
    """Write names, input sets, input buffers, output sets; return the addresses of the arrays."""
    text = b"".join(names)
    text += bytes(-len(text) % 8)
    at = address
    found = []
    for name in names:
        found.append((at, len(name)))
        at += len(name)
    set_, buffer = structures.set, structures.buffer
    sets_at = address + len(text)
    buffers_at = sets_at + (input_count + 1) * set_.size
    outputs_at = buffers_at + len(placed) * buffer.size
    rows = [text]
    count = len(placed)
    for (name_at, length), first in zip(found[count : count + input_count], firsts, strict=False):
        rows.append(set_.pack(name_at if length else 0, length, first))
    rows.append(set_.pack(0, 0, firsts[-1]))
    for (name_at, length), (_, data_at, size, key) in zip(found, placed, strict=False):
        rows.append(buffer.pack(name_at, length, data_at, size, key))
    rows += [set_.pack(name_at, length, 0) for name_at, length in found[count + input_count :]]
    rows.append(set_.pack(0, 0, 0))
    return b"".join(rows), (sets_at, buffers_at, outputs_at)


def system_data(
    structures: Structures,
    inputs: Inputs,
    heap: tuple[int, int],
    input_count: int,
    output_count: int,
) -> bytes:
    """Write the system data as a function reads it."""
    return structures.system.pack(
        NOT_EXITED, *heap, input_count, inputs.sets, output_count, inputs.output_sets,
        inputs.buffers, 0,
    )  # fmt: skip


def align(address: int, step: int = ITEM_ALIGNMENT) -> int:
    """Round up."""
    return -(-address // step) * step


def _flat(data: Bytes) -> Bytes:
    if isinstance(data, memoryview) and (data.itemsize != 1 or data.ndim != 1):
        return data.cast("B")
    return data
