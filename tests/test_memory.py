"""Parts of memory domains: free ranges, transfers, wrappers, the arena between processes.

What every domain must do is in ``conformance/test_domain.py``.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import gc
import os
import random
import subprocess
import sys
import threading
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dandelion.data import Bytes, Item, ItemSet
from dandelion.errors import ContextFull, InvalidInput
from dandelion.memory import (
    ArenaMap,
    HeapDomain,
    SharedDomain,
    TransferCounts,
    Transfers,
    shared,
)
from dandelion.memory.context import PAGE_BYTES, DomainStats
from dandelion.memory.joining import joined
from dandelion.memory.lease import address_of, leased_view
from dandelion.testing import Failing, Limited, Tracked

PAGE = PAGE_BYTES


@contextlib.contextmanager
def arena(capacity_bytes: int) -> Iterator[SharedDomain]:
    domain = SharedDomain(capacity_bytes)
    try:
        yield domain
    finally:
        domain.close()


@given(st.integers(1, 300), st.integers(0, 299), st.sampled_from(["B", "<f8"]))
def test_an_address_is_what_numpy_says(size: int, start: int, dtype: str) -> None:
    whole = np.zeros(8 * (size + start), dtype)
    for data in (bytes(size), bytearray(size), memoryview(whole)[start:], whole.data.toreadonly()):
        seen = np.frombuffer(data, np.uint8)
        assert address_of(data) == seen.__array_interface__["data"][0]


def test_the_arena_is_rounded_up_to_pages() -> None:
    with arena(1) as domain:
        assert domain.stats().capacity_bytes == PAGE
        assert domain.acquire(1).offset_bytes == 0
    with pytest.raises(InvalidInput):
        SharedDomain(0)


def test_contexts_of_the_arena_are_whole_pages_apart() -> None:
    with arena(4 * PAGE) as domain:
        a, b = domain.acquire(1), domain.acquire(PAGE + 1)
        assert (a.offset_bytes, b.offset_bytes) == (0, PAGE)
        assert domain.stats().used_bytes == 3 * PAGE
        assert (a.size_bytes, b.size_bytes) == (1, PAGE + 1)


def test_a_scattered_arena_says_what_it_could_give() -> None:
    with arena(4 * PAGE) as domain:
        pieces = [domain.acquire(PAGE) for _ in range(4)]
        del pieces[2], pieces[0]
        with pytest.raises(ContextFull) as caught:
            domain.acquire(2 * PAGE)
        assert (caught.value.needed_bytes, caught.value.free_bytes) == (2 * PAGE, PAGE)
        del pieces
        gc.collect()
        assert domain.acquire(4 * PAGE).size_bytes == 4 * PAGE


def test_seals_hold() -> None:
    with arena(2 * PAGE) as domain:
        fd = domain.map.fd
        for size in (PAGE, 3 * PAGE):
            with pytest.raises(PermissionError):
                os.ftruncate(fd, size)
        with pytest.raises(PermissionError):
            fcntl.fcntl(fd, 1033, 0x8)  # F_ADD_SEALS, F_SEAL_WRITE
        with pytest.raises(OSError):
            os.pwrite(fd, b"x", 2 * PAGE)
        assert os.fstat(fd).st_size == 2 * PAGE


def test_another_process_sees_the_same_bytes() -> None:
    script = (
        "import os, sys; from dandelion.memory import ArenaMap\n"
        "fd, size, offset = map(int, sys.argv[1:])\n"
        "arena = ArenaMap(fd, size); view = arena.view[offset:offset + 5]\n"
        "assert bytes(view) == b'hello' and arena.locate(view) == offset\n"
        "view[:] = b'world'; arena.close()"
    )
    with arena(4 * PAGE) as domain:
        keep = domain.acquire(1)
        context = domain.acquire(PAGE)
        context.write(0, b"hello")
        fd, size = domain.map.fd, domain.map.size_bytes
        arguments = [str(n) for n in (fd, size, context.offset_bytes)]
        subprocess.run([sys.executable, "-c", script, *arguments], check=True, pass_fds=[fd])
        assert bytes(context.read(0, 5)) == b"world"
        assert bytes(keep.read(0, 1)) == b"\0"


def test_a_second_mapping_locates_by_its_own_addresses() -> None:
    with arena(2 * PAGE) as domain:
        other = ArenaMap(os.dup(domain.map.fd), 2 * PAGE)
        domain.acquire(PAGE)
        view = domain.acquire(PAGE).write(100, b"abc")
        assert domain.locate(view) == 100
        assert other.locate(view) is None
        mine = other.view[100:103]
        assert other.locate(mine) == 100
        assert bytes(mine) == b"abc"
        other.close()
        other.close()
        assert bytes(mine) == b"abc"  # the mapping lives as long as its views
        del view


def test_views_outlive_a_closed_arena() -> None:
    domain = SharedDomain(PAGE)
    view = domain.acquire(PAGE).write(0, b"still here")
    domain.close()
    domain.close()
    del domain
    gc.collect()
    assert bytes(view) == b"still here"


def a_set(name: str, *data: Bytes) -> ItemSet:
    items = tuple(Item(f"{name}{i}", i, d) for i, d in enumerate(data))
    return ItemSet(name, items, "uint8", (-1,))


def test_a_lease_ends_once_with_the_last_of_what_is_derived_from_it() -> None:
    ended: list[str] = []
    memory = memoryview(bytearray(b"0123456789"))
    view = leased_view(memory, 2, 5, lambda: ended.append("a"))
    other = leased_view(memory, 7, 3, lambda: ended.append("b"))
    lease = view.obj
    assert isinstance(lease, np.ndarray)
    derived = [lease[1:], lease.reshape(5, 1), np.asarray(view)[2:], np.frombuffer(view[3:], "u1")]
    view[0] = ord("x")
    assert bytes(memory) == b"01x3456789"
    assert bytes(other) == b"789"
    del view, lease
    while derived:
        assert not ended
        assert derived.pop(0).tobytes() in (b"3456", b"x3456", b"456", b"56")
    assert ended == ["a"]
    del other
    assert ended == ["a", "b"]


def test_placing_copies_what_lies_elsewhere_and_counts() -> None:
    transfers = Transfers()
    with arena(8 * PAGE) as domain:
        here = domain.acquire(10).write(0, b"here")
        sets = (a_set("a", b"one", here, b""), None, a_set("b", b"x" * 300, b"y"))
        placed = transfers.place(sets, domain)
        assert transfers.counts() == TransferCounts(copies=3, copied_bytes=304, references=1)
        first, second, third = placed
        assert first is not None
        assert second is None
        assert third is not None
        assert (first.name, first.dtype, first.shape) == ("a", "uint8", (-1,))
        assert [(i.name, i.key) for i in first] == [("a0", 0), ("a1", 1), ("a2", 2)]
        assert [i.bytes() for i in first] == [b"one", b"here", b""]
        assert [i.bytes() for i in third] == [b"x" * 300, b"y"]
        assert first[1].data is here
        offsets = [domain.locate(i.data) for i in (first[0], third[0], third[1])]
        assert None not in offsets
        assert all(offset % Transfers.ALIGNMENT_BYTES == 0 for offset in offsets if offset)
        assert domain.stats().contexts == 2  # one for all copies
        again = transfers.place(placed, domain)
        assert again == placed
        assert transfers.counts() == TransferCounts(copies=3, copied_bytes=304, references=5)


@pytest.mark.parametrize("size", [1, 255, 256, 257, PAGE - 1, PAGE])
def test_a_slice_that_is_filled_is_not_zeroed_and_shows_nothing_of_its_last_user(size: int) -> None:
    transfers = Transfers()
    with arena(8 * PAGE) as domain:
        used = domain.acquire(PAGE)
        start = used.offset_bytes
        used.view[:] = b"s" * PAGE
        del used
        (placed,) = transfers.place((a_set("a", b"n" * size),), domain)
        assert placed is not None
        assert domain.locate(placed[0].data) == start  # the same memory
        assert not domain.dirty  # without a way through the free ranges
        assert domain.stats().contexts == 1
        whole = bytes(domain.map.view[start : start + Transfers.aligned(size)])
        assert whole == b"n" * size + bytes(len(whole) - size)
        del placed
        assert domain.recycle() == PAGE
        assert domain.stats().used_bytes == domain.stats().contexts == 0
        assert not bytes(domain.acquire(8 * PAGE).view).strip(b"\0")


def test_a_slice_is_filled_only_if_it_has_the_right_size() -> None:
    with arena(8 * PAGE) as domain:
        domain.acquire(2 * PAGE).view[:1] = b"s"
        context = domain.acquire_to_fill(PAGE)
        assert domain.stats().contexts == 1
        assert context.view[0] == 0
        with pytest.raises(ContextFull):
            domain.acquire_to_fill(8 * PAGE)
        with pytest.raises(InvalidInput):
            domain.acquire_to_fill(0)


def test_placing_in_a_full_domain_changes_nothing() -> None:
    transfers = Transfers()
    with arena(PAGE) as domain:
        here = domain.acquire(10).write(0, b"here")
        before = domain.stats()
        with pytest.raises(ContextFull):
            transfers.place((a_set("a", here, b"elsewhere"),), domain)
        assert domain.stats() == before
        assert transfers.counts() == TransferCounts()


def test_typed_arrays_are_transferred_as_bytes() -> None:
    values = np.arange(6, dtype=np.float32).reshape(2, 3)
    view = HeapDomain(100).acquire(100).write(4, values.data)
    assert view.nbytes == 24
    assert np.array_equal(np.frombuffer(view, np.float32).reshape(2, 3), values)


def test_limited_refuses_large_contexts_only() -> None:
    domain = Limited(HeapDomain(1000), 100)
    assert domain.acquire(100).size_bytes == 100
    with pytest.raises(ContextFull) as caught:
        domain.acquire(101)
    assert (caught.value.needed_bytes, caught.value.free_bytes) == (101, 100)
    assert domain.stats().contexts == 0


def test_tracked_lists_what_is_referred_to() -> None:
    domain = Tracked(HeapDomain(1000))
    a, b = domain.acquire(10), domain.acquire(20)
    view = a.view[2:4]
    array = np.frombuffer(b.view, np.uint8)[3:]
    assert sorted(domain.alive) == [10, 20]
    del a, b
    assert sorted(domain.alive) == [10, 20]
    del view
    assert domain.alive == [20]
    del array
    assert domain.alive == []
    assert domain.acquired == 2
    with pytest.raises(ContextFull):
        domain.acquire(2000)
    assert domain.acquired == 2


def test_failing_fails_from_then_on() -> None:
    domain = Failing(HeapDomain(1000), after=2)
    kept = [domain.acquire(1), domain.acquire(1)]
    for _ in range(3):
        with pytest.raises(ContextFull):
            domain.acquire(1)
    assert domain.stats().contexts == len(kept)


def test_wrappers_pass_the_rest_on() -> None:
    with arena(4 * PAGE) as inner:
        domain = Tracked(Limited(Failing(inner, after=9), PAGE))
        context = domain.acquire(10)
        assert context.domain is inner
        assert domain.locate(context.view) == context.offset_bytes
        assert domain.stats() == inner.stats()
        del context
        assert domain.recycle() == PAGE
        assert domain.stats().used_bytes == 0
        domain.close()
        assert inner.map.fd == -1


def test_a_heap_without_memory_says_so_and_counts_nothing() -> None:
    domain = HeapDomain(2**62)
    with pytest.raises(ContextFull):
        domain.acquire(2**60)
    assert domain.stats().used_bytes == 0
    assert domain.stats().contexts == 0


def test_recycling_from_many_threads_zeroes_each_range_once() -> None:
    with arena(64 * PAGE) as domain:
        failures: list[str] = []

        def work(mark: int) -> None:
            for _ in range(100):
                context = domain.acquire(3 * PAGE)
                if np.frombuffer(context.view, np.uint8).any():
                    failures.append("not zero")
                context.view[:] = bytes([mark]) * context.size_bytes
                if bytes(context.view) != bytes([mark]) * context.size_bytes:
                    failures.append("another thread wrote")
                del context
                if mark % 2:
                    domain.recycle()
                    continue
                context = domain.acquire_to_fill(3 * PAGE)
                context.view[:] = bytes([mark]) * context.size_bytes
                if bytes(context.view) != bytes([mark]) * context.size_bytes:
                    failures.append("two threads filled one slice")
                del context

        threads = [threading.Thread(target=work, args=(n + 1,)) for n in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not failures
        domain.recycle()
        assert domain.stats().used_bytes == 0
        assert domain.acquire(64 * PAGE)


@pytest.fixture
def zeroed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Sizes of memory that was zeroed by one write each."""
    sizes: list[int] = []
    write = ctypes.memset

    def note(address: int, value: int, size: int) -> int:
        sizes.append(size)
        return write(address, value, size)

    monkeypatch.setattr(ctypes, "memset", note)
    return sizes


def test_neighbours_are_zeroed_together(zeroed: list[int]) -> None:
    with arena(16 * PAGE) as domain:
        used = [domain.acquire(PAGE).write(0, b"s" * PAGE) for _ in range(16)]
        random.Random(1).shuffle(used)
        kept = next(view for view in used if domain.locate(view) == 5 * PAGE)
        used.clear()
        assert domain.recycle() == 15 * PAGE
        assert sorted(zeroed) == [5 * PAGE, 10 * PAGE]
        assert domain.stats().used_bytes == PAGE
        assert domain.stats().contexts == 1
        del kept
        assert domain.recycle() == PAGE
        assert not bytes(domain.acquire(16 * PAGE).view).strip(b"\0")


def test_memory_that_is_being_zeroed_is_in_no_use(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[DomainStats] = []
    with arena(16 * PAGE) as domain:
        write = ctypes.memset

        def look(address: int, value: int, size: int) -> int:
            seen.append(domain.stats())
            return write(address, value, size)

        monkeypatch.setattr(ctypes, "memset", look)
        kept = domain.acquire(PAGE)
        domain.acquire(3 * PAGE)
        domain.recycle()
        assert seen == [DomainStats(16 * PAGE, PAGE, 1)]
        assert domain.stats() == seen[0]
        del kept


def test_who_waits_for_memory_waits_for_no_more_than_is_needed(
    zeroed: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared, "_EAGER_BYTES", 0)
    monkeypatch.setattr(shared, "_BATCH_BYTES", 4 * PAGE)
    with arena(64 * PAGE) as domain:
        used = [domain.acquire(2 * PAGE) for _ in range(32)]
        used.clear()
        assert domain.acquire(2 * PAGE)
        assert sum(zeroed) == 4 * PAGE
        assert domain.acquire(10 * PAGE)  # as soon as so many neighbours are free
        assert sum(zeroed) <= 16 * PAGE


@pytest.mark.parametrize("step", [1, 2])
def test_large_data_of_any_layout_is_written_as_it_is(step: int) -> None:
    numbers = np.arange(1 << 17, dtype=np.uint32).reshape(256, -1)
    data = memoryview(numbers.tobytes())[::step]
    context = HeapDomain(1 << 20).acquire(1 << 20)
    assert bytes(context.write(0, data)) == bytes(data)
    assert bytes(context.write(0, memoryview(numbers))) == numbers.tobytes()


@pytest.mark.parametrize("sizes", [(), (0,), (3, 0, 5), (200_000, 0, 100_000), (300_000,)])
def test_pieces_are_joined(sizes: tuple[int, ...]) -> None:
    pieces: list[Bytes] = [os.urandom(size) for size in sizes]
    whole = joined(pieces)
    assert bytes(whole) == b"".join(pieces)
    assert not isinstance(whole, memoryview) or whole.readonly
