"""Reading the outputs from a function's memory, as untrusted data.

The function has ended, so its memory no longer changes. But the function may have written any byte
of it: counts, indices, addresses and lengths may be anything up to 2^64. Each is checked against
the function's limits and the bounds of its memory before it is used to read or allocate. A failed
check is `BadOutput`.

Data of several items may be the same memory: it is only read, and each item gets its own copy.
The groups of two sets may not overlap: the indices of the sets must ascend.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Protocol

from dandelion.call_logs import STDERR, STDOUT, PrintedLine, bounded, printed_lines
from dandelion.data import KEY_LIMIT, NAME_LIMIT_BYTES, Bytes, Item, ItemSet
from dandelion.driver import Call, InstanceSets
from dandelion.errors import BadOutput, Exited
from dandelion.function import FunctionSpec
from dandelion.memory import MemoryDomain

from .structures import Structures, SystemData, align

HEAP_BYTES = 4096
"""Outputs up to this size are bytes on the heap; larger ones are in a context of the domain."""

_DATA_ALIGNMENT = 64
_LOG_BYTES = 16 * 1024


class Memory(Protocol):
    """A function's memory, read-only, after its end.

    Attributes:
        lowest, end: bounds of the addresses.
    """

    lowest: int
    end: int

    def read(self, address: int, size_bytes: int) -> bytes:
        """Copy bytes out; the range was checked."""

    def read_into(self, address: int, target: memoryview) -> None:
        """Copy bytes into `target`; the range was checked."""


@dataclass(frozen=True, slots=True)
class OutputEntry:
    """An output item, with all numbers checked."""

    name: str
    key: int
    address: int
    size_bytes: int


class OutputReader:
    """Reads the outputs of one call.

    Args:
        structures: the size of words.
        memory: the function's memory.
        spec: its declared sets and its limits.
        names: of the output sets as the function sees them; by default the declared ones.
    """

    def __init__(
        self,
        structures: Structures,
        memory: Memory,
        spec: FunctionSpec,
        names: Sequence[str] | None = None,
    ) -> None:
        self._structures = structures
        self._memory = memory
        self._spec = spec
        self._names = spec.output_names if names is None else tuple(names)
        self._size_bytes = 0

    def system_data(self, address: int) -> SystemData:
        """Read the system data, whose address was checked when the function was registered."""
        system = self._structures.system
        return SystemData(*system.unpack(self._memory.read(address, system.size)))

    def entries(self, data: SystemData) -> list[list[OutputEntry]]:
        """List the items of every output set.

        Raises:
            BadOutput: a check failed.
        """
        declared = self._spec.outputs
        if data.output_set_count == 0:
            return [[] for _ in declared]
        if data.output_set_count != len(declared):
            raise self._bad(f"{data.output_set_count} sets instead of {len(declared)}")
        firsts = self._sets(data)
        total = firsts[-1]
        rows = self._array(self._structures.buffer, data.output_buffers, total, "buffers")
        self._size_bytes = 0
        items = [self._entry(*row) for row in rows]
        return [items[start:end] for start, end in pairwise(firsts)]

    def _sets(self, data: SystemData) -> list[int]:
        """Read the index of every set's first buffer, and the number of all."""
        declared = self._spec.outputs
        rows = self._array(self._structures.set, data.output_sets, len(declared) + 1, "sets")
        firsts = [row[2] for row in rows]
        limit = self._spec.limits.output_items
        if firsts[-1] > limit:
            raise self._bad(f"{firsts[-1]} items are more than {limit}")
        if any(one > two for one, two in pairwise(firsts)):
            raise self._bad("the buffers of its sets overlap")
        for expected, (at, length, _) in zip(self._names, rows, strict=False):
            name = self._name(at, length, "a set")
            if name and name != expected:
                raise self._bad(f"set '{name}' instead of '{expected}'")
        return firsts

    def _array(
        self, row: struct.Struct, address: int, count: int, what: str
    ) -> list[tuple[int, ...]]:
        if not count:
            return []
        if address % self._structures.word_bytes:
            raise self._bad(f"its array of {what} at {address:#x} is not aligned")
        size = row.size * count
        self._check(address, size, f"its array of {what}")
        return list(row.iter_unpack(self._memory.read(address, size)))

    def _entry(
        self, name_at: int, name_bytes: int, address: int, size: int, key: int
    ) -> OutputEntry:
        name = self._name(name_at, name_bytes, "an item")
        if key >= KEY_LIMIT:
            raise self._bad(f"item '{name}' has key {key}")
        self._check(address, size, f"the data of item '{name}'")
        self._size_bytes += size
        limit = self._spec.limits.output_bytes
        if self._size_bytes > limit:
            raise self._bad(f"more than {limit} bytes")
        return OutputEntry(name, key, address, size)

    def _name(self, address: int, size: int, of: str) -> str:
        if not size:
            return ""
        if size > NAME_LIMIT_BYTES:
            raise self._bad(f"the name of {of} has {size} bytes, more than {NAME_LIMIT_BYTES}")
        self._check(address, size, f"the name of {of}")
        try:
            return self._memory.read(address, size).decode()
        except UnicodeDecodeError:
            raise self._bad(f"the name of {of} is not valid UTF-8") from None

    def _check(self, address: int, size: int, what: str) -> None:
        if size and not (self._memory.lowest <= address and address + size <= self._memory.end):
            raise self._bad(f"{what} ({size} bytes at {address:#x}) is outside its memory")

    def _bad(self, message: str) -> BadOutput:
        return BadOutput(self._spec.name, message)

    def result(self, data: SystemData, call: Call) -> InstanceSets:
        """Read what a call that has ended wrote, and its outputs.

        Raises:
            Exited: its exit code is not 0.
            BadOutput: a check failed.
            ContextFull: the domain has no room.
        """
        if data.exit_code:
            try:
                entries = self.entries(data)
            except BadOutput:
                entries = []
            call.printed = self._printed(entries)
            written = self._text(entries, STDERR)
            raise Exited(self._spec.name, data.exit_code, written)
        entries = self.entries(data)
        call.printed = self._printed(entries)
        return self.outputs(entries, call.domain)

    def _printed(self, entries: list[list[OutputEntry]]) -> tuple[PrintedLine, ...]:
        lines: list[PrintedLine] = []
        for stream in (STDOUT, STDERR):
            lines += printed_lines(self._text(entries, stream), stream)
        return bounded(lines)

    def _text(self, entries: list[list[OutputEntry]], stream: str) -> str:
        """Read what was written to a stream, cut off at a limit; empty if that was nothing."""
        for name, listed in zip(self._names, entries, strict=False):
            for entry in listed if name == "stdio" else ():
                if entry.name == stream and entry.size_bytes:
                    size = min(entry.size_bytes, _LOG_BYTES)
                    return self._memory.read(entry.address, size).decode("utf-8", "replace")
        return ""

    def outputs(self, entries: list[list[OutputEntry]], domain: MemoryDomain) -> InstanceSets:
        """Copy the data of all items out, once.

        Raises:
            ContextFull: the domain has no room.
        """
        data = self._data([entry for listed in entries for entry in listed], domain)
        sets: list[ItemSet | None] = []
        for spec, listed in zip(self._spec.outputs, entries, strict=True):
            items = tuple(Item(entry.name, entry.key, next(data)) for entry in listed)
            sets.append(ItemSet(spec.name, items, spec.dtype, spec.shape) if items else None)
        return tuple(sets)

    def _data(self, entries: list[OutputEntry], domain: MemoryDomain) -> Iterator[Bytes]:
        total = sum(align(entry.size_bytes, _DATA_ALIGNMENT) for entry in entries)
        if total <= HEAP_BYTES:
            for entry in entries:
                yield (
                    self._memory.read(entry.address, entry.size_bytes) if entry.size_bytes else b""
                )
            return
        view = domain.acquire(total).view
        offset = 0
        for entry in entries:
            part = view[offset : offset + entry.size_bytes]
            self._memory.read_into(entry.address, part)
            yield part.toreadonly()
            offset += align(entry.size_bytes, _DATA_ALIGNMENT)
