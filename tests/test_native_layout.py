"""Sets of native functions in memory: laid out, read back, forged."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from dandelion.backends.native.outputs import OutputReader
from dandelion.backends.native.structures import (
    NATIVE,
    WASM,
    Structures,
    SystemData,
    lay_out,
    system_data,
)

from dandelion.data import Item, ItemSet
from dandelion.documents import set_spec
from dandelion.errors import (
    BadOutput,
)
from dandelion.function import FunctionSpec, Limits
from dandelion.memory import HeapDomain


class Bytes:
    """A function's memory as a plain buffer; it refuses what was not checked."""

    def __init__(self, content: bytes, lowest: int) -> None:
        self.content = content
        self.lowest = lowest
        self.end = lowest + len(content)

    def read(self, address: int, size_bytes: int) -> bytes:
        assert self.lowest <= address <= address + size_bytes <= self.end
        return self.content[address - self.lowest : address - self.lowest + size_bytes]

    def read_into(self, address: int, target: memoryview) -> None:
        target[:] = self.read(address, len(target))


def spec_of(*outputs: str, **limits: int) -> FunctionSpec:
    sets = tuple(set_spec(name) for name in outputs)
    return FunctionSpec("probe", (), sets, limits=Limits(**limits))


@pytest.mark.parametrize("structures", [NATIVE, WASM], ids=["native", "wasm"])
def test_what_is_laid_out_can_be_read_back(structures: Structures) -> None:
    sets = (
        ItemSet("a", (Item("one", 1, b"1" * 300), Item("", 2**32 - 1, b""))),
        None,
        ItemSet("c", (Item("é", 0, memoryview(np.arange(40)).cast("B")),)),
    )
    address = 0x20000
    inputs = lay_out(structures, address, sets, ("a", "b", "c"), ("y",))
    content = b"".join(bytes(part) for part in inputs.parts)
    assert len(content) == inputs.size_bytes
    system = structures.system.unpack(system_data(structures, inputs, (1, 2), 3, 1))
    data = SystemData(*system)
    assert (data.exit_code, data.heap_begin, data.heap_end, data.output_buffers) == (-1, 1, 2, 0)
    # The inputs, taken for outputs, are what went in.
    taken = SystemData(0, 0, 0, 0, 0, 3, data.input_sets, 0, data.input_buffers)
    memory = Bytes(content, address)
    reader = OutputReader(structures, memory, spec_of("a", "b", "c"))
    entries = reader.entries(taken)
    assert all(entry.address % 128 == 0 for listed in entries for entry in listed)
    a, b, c = reader.outputs(entries, HeapDomain(1 << 20))
    assert a == sets[0]
    assert b is None
    assert c is not None
    assert c.only().bytes() == np.arange(40).tobytes()


def forge(structures: Structures, sets: list[tuple[int, int, int]], *row: int) -> None:
    """Read outputs with these sets and this one buffer; memory begins with the name ``y``."""
    base = 0x10000
    content = b"y\xff".ljust(0x400, b"n") + b"".join(structures.set.pack(*s) for s in sets)
    buffers = base + len(content)
    content += structures.buffer.pack(*row)
    reader = OutputReader(structures, Bytes(content, base), spec_of("y", "z", output_bytes=500))
    reader.entries(SystemData(0, 0, 0, 0, 0, 2, base + 0x400, 0, buffers))


SETS = [(0x10000, 1, 0), (0, 0, 1), (0, 0, 1)]
ROW = (0x10000, 1, 0x10000, 4, 2**32 - 1)


@pytest.mark.parametrize("structures", [NATIVE, WASM], ids=["native", "wasm"])
@pytest.mark.parametrize(
    ("sets", "row", "expected"),
    [
        ([(0x10000, 1, 1), (0, 0, 0), (0, 0, 1)], ROW, "overlap"),
        ([(0x10000, 1, 0), (0, 0, 2), (0, 0, 1)], ROW, "overlap"),
        ([(0x10000, 1, 0), (0x10000, 1, 1), (0, 0, 1)], ROW, "instead of 'z'"),
        ([(0x10001, 1, 0), (0, 0, 1), (0, 0, 1)], ROW, "UTF-8"),
        (SETS, (0x10000, 256, 0x10000, 4, 0), "256 bytes"),
        (SETS, (0x10001, 1, 0x10000, 4, 0), "UTF-8"),
        (SETS, (0x1, 1, 0x10000, 4, 0), "outside"),
        (SETS, (0x10000, 1, 0x1FFFF, 4, 0), "outside"),
        (SETS, (0x10000, 1, 0xFFFF, 4, 0), "outside"),
        (SETS, (0x10000, 1, 0x10000, 2**32 - 1, 0), "outside"),
        (SETS, (0x10000, 1, 0x10000, 501, 0), "500 bytes"),
    ],
)
def test_outputs_that_are_refused(
    structures: Structures, sets: list[tuple[int, int, int]], row: tuple[int, ...], expected: str
) -> None:
    forge(structures, SETS, *ROW)
    with pytest.raises(BadOutput, match=expected):
        forge(structures, sets, *row)


@pytest.mark.parametrize("key", [2**32, 2**63, 2**64 - 1])
def test_keys_have_32_bits(key: int) -> None:
    with pytest.raises(BadOutput, match="key"):
        forge(NATIVE, SETS, *ROW[:4], key)


LOWEST, SIZE = 0x10000, 4096


EDGES = np.array(
    [0, 1, 2, 3, 7, 8, LOWEST, LOWEST + 8, LOWEST + 256, LOWEST + 4, LOWEST + SIZE - 8,
     LOWEST + SIZE, LOWEST - 8, 255, 256, 2**32 - 1, 2**32, 2**63, 2**64 - 1, 2**64 - 8],
    np.uint64,
)  # fmt: skip


def forged(structures: Structures, count: int, seed: int) -> Iterator[tuple[bytes, int, int]]:
    """Memories that are wild everywhere, and as many that are good but for a few words; with the
    addresses of their output sets and buffers."""
    rng = np.random.default_rng(seed)
    dtype = np.dtype(f"<u{structures.word_bytes}")
    wild = EDGES[rng.integers(0, len(EDGES), (count // 2, SIZE // dtype.itemsize))].astype(dtype)
    small = rng.random(wild.shape) < 0.5
    wild[small] = rng.integers(0, 4, int(small.sum()))
    for row, (sets, buffers) in zip(wild, EDGES[rng.integers(0, 20, (count, 2))], strict=False):
        yield row.tobytes(), int(sets), int(buffers)
    items = tuple(Item(f"item {i}", i, bytes(i * 9)) for i in range(5))
    inputs = lay_out(
        structures, LOWEST, (ItemSet("y", items), ItemSet("z", items[:2])), ("y", "z"), ("u",)
    )
    base = b"".join(bytes(part) for part in inputs.parts).ljust(SIZE, b"\0")
    start = (inputs.sets - LOWEST) // dtype.itemsize
    for _ in range(count - count // 2):
        words = np.frombuffer(base, dtype).copy()
        for at in rng.integers(start, start + 46, rng.integers(1, 4)):
            words[at] = EDGES[rng.integers(0, len(EDGES))].astype(dtype)
        yield words.tobytes(), inputs.sets, inputs.buffers


def test_a_hundred_thousand_forged_outputs() -> None:
    good = bad = 0
    domain = HeapDomain(1 << 20)
    spec = spec_of("y", "z", output_items=64, output_bytes=8192)
    for structures in (NATIVE, WASM):
        for content, sets, buffers in forged(structures, 50_000, structures.word_bytes):
            reader = OutputReader(structures, Bytes(content, LOWEST), spec)
            try:
                entries = reader.entries(SystemData(0, 0, 0, 0, 0, 2, sets, 0, buffers))
                reader.outputs(entries, domain)
                good += 1
            except BadOutput:
                bad += 1
    assert good + bad == 100_000
    assert good > 1_000
    assert bad > 10_000
