"""One suite for every memory domain that the host can see."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Iterator

import numpy as np
import pytest

from dandelion.errors import ContextFull, InvalidInput
from dandelion.memory import Context, HeapDomain, MemoryDomain, SharedDomain
from dandelion.testing import Tracked

CAPACITY = 1024 * 1024
MAKERS: dict[str, Callable[[], MemoryDomain]] = {
    "heap": lambda: HeapDomain(CAPACITY),
    "shared": lambda: SharedDomain(CAPACITY),
    "tracked": lambda: Tracked(SharedDomain(CAPACITY)),
}


@pytest.fixture(params=list(MAKERS))
def domain(request: pytest.FixtureRequest) -> Iterator[MemoryDomain]:
    made = MAKERS[request.param]()
    yield made
    gc.collect()
    assert made.stats().contexts == 0, "a context was left over"
    assert made.stats().used_bytes == 0
    made.close()


def is_zero(context: Context) -> bool:
    return not np.frombuffer(context.view, np.uint8).any()


@pytest.mark.parametrize("size", [1, 2, 4095, 4096, 4097, 100_000, CAPACITY])
def test_contexts_have_their_size_and_are_zero(domain: MemoryDomain, size: int) -> None:
    context = domain.acquire(size)
    assert context.size_bytes == size == context.view.nbytes
    assert not context.view.readonly
    assert is_zero(context)
    stats = domain.stats()
    assert stats.contexts == 1
    assert size <= stats.used_bytes <= stats.capacity_bytes


@pytest.mark.parametrize("size", [0, -1, -4096])
def test_sizes_must_be_positive(domain: MemoryDomain, size: int) -> None:
    with pytest.raises(InvalidInput):
        domain.acquire(size)


def test_memory_is_zero_when_it_is_used_again(domain: MemoryDomain) -> None:
    for _ in range(3):
        context = domain.acquire(CAPACITY)
        assert is_zero(context)
        context.view[:] = b"\xff" * CAPACITY
        del context


def test_pieces_do_not_overlap(domain: MemoryDomain) -> None:
    pieces = [domain.acquire(1000) for _ in range(50)]
    for number, piece in enumerate(pieces):
        piece.view[:] = bytes([number + 1]) * 1000
    for number, piece in enumerate(pieces):
        assert bytes(piece.view) == bytes([number + 1]) * 1000


def test_writing_and_reading(domain: MemoryDomain) -> None:
    context = domain.acquire(100)
    view = context.write(10, b"hello")
    assert bytes(view) == b"hello"
    assert view.readonly
    assert bytes(context.read(10, 5)) == b"hello"
    assert context.read(10, 5).readonly
    assert bytes(context.read(9, 7)) == b"\0hello\0"
    assert bytes(context.write(95, memoryview(b"12345"))) == b"12345"
    assert bytes(context.write(100, b"")) == b""
    assert bytes(context.read(100, 0)) == b""


@pytest.mark.parametrize(
    ("offset", "size"), [(-1, 1), (0, 101), (100, 1), (99, 2), (101, 0), (-5, 5), (10**30, 1)]
)
def test_bounds_hold(domain: MemoryDomain, offset: int, size: int) -> None:
    context = domain.acquire(100)
    with pytest.raises(ContextFull):
        context.write(offset, b"x" * size)
    with pytest.raises(ContextFull):
        context.read(offset, size)
    assert is_zero(context)


def test_a_negative_size_cannot_be_read(domain: MemoryDomain) -> None:
    with pytest.raises(ContextFull):
        domain.acquire(100).read(50, -10)


@pytest.mark.parametrize(
    "keep",
    [
        lambda c: c.view[5:10],
        lambda c: c.write(0, b"abc"),
        lambda c: c.read(1, 1),
        lambda c: memoryview(c.view).cast("I"),
        lambda c: np.frombuffer(c.view, np.uint8),
        lambda c: np.frombuffer(c.view, np.uint16)[3:].reshape(-1, 1).T,
        lambda c: np.frombuffer(c.read(0, 8), np.float64).view(np.int64),
    ],
)
def test_a_view_keeps_its_context(domain: MemoryDomain, keep: Callable[[Context], object]) -> None:
    context = domain.acquire(1000)
    view = keep(context)
    del context
    gc.collect()
    domain.recycle()
    assert domain.stats().contexts == 1
    others = [domain.acquire(1000) for _ in range(3)]
    for other in others:
        other.view[:] = b"\xff" * 1000
    assert 255 not in memoryview(view).tobytes()  # type: ignore[arg-type]  # all are buffers
    del view, others, other
    domain.recycle()
    assert domain.stats().contexts == 0


def test_a_full_domain_refuses_and_stays_as_it_was(domain: MemoryDomain) -> None:
    kept = domain.acquire(CAPACITY // 2)
    kept.view[:3] = b"abc"
    before = domain.stats()
    with pytest.raises(ContextFull) as caught:
        domain.acquire(CAPACITY)
    assert caught.value.needed_bytes == CAPACITY
    assert caught.value.free_bytes == CAPACITY - CAPACITY // 2
    assert domain.stats() == before
    assert bytes(kept.read(0, 3)) == b"abc"
    assert domain.acquire(CAPACITY // 2).size_bytes == CAPACITY // 2


def test_memory_is_recycled_on_demand(domain: MemoryDomain) -> None:
    for size in (CAPACITY, CAPACITY // 2, CAPACITY // 3, CAPACITY):
        assert domain.acquire(size).size_bytes == size  # without a call of recycle


def test_the_collector_may_return_memory(domain: MemoryDomain) -> None:
    class Knot:
        def __init__(self, context: Context) -> None:
            self.context = context
            self.me = self

    gc.disable()
    try:
        Knot(domain.acquire(1000))
        assert domain.stats().contexts == 1
        gc.collect()
        assert domain.stats().contexts == 0
    finally:
        gc.enable()


def test_another_thread_may_return_memory(domain: MemoryDomain) -> None:
    held = [domain.acquire(1000)]
    thread = threading.Thread(target=held.clear)
    thread.start()
    thread.join()
    assert domain.stats().contexts == 0


def test_many_threads_share_a_domain(domain: MemoryDomain) -> None:
    failures: list[str] = []

    def work(mark: int) -> None:
        for round_ in range(60):
            size = 1 + (mark * 7919 + round_ * 104729) % (CAPACITY // 16)
            context = domain.acquire(size)
            if not is_zero(context):
                failures.append("not zero")
            context.view[:] = bytes([mark]) * size
            if bytes(context.view) != bytes([mark]) * size:
                failures.append("another thread wrote")

    threads = [threading.Thread(target=work, args=(n + 1,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


def test_what_lies_elsewhere_is_not_located(domain: MemoryDomain) -> None:
    context = domain.acquire(5000)
    for data in (b"", b"bytes", memoryview(b"view"), memoryview(bytearray(5000)), context.view[:0]):
        assert domain.locate(data) is None
    neighbour = SharedDomain(CAPACITY)
    assert domain.locate(neighbour.acquire(100).view) is None
    neighbour.close()


def test_what_lies_here_is_located_where_that_has_a_meaning(domain: MemoryDomain) -> None:
    domain_of_context = domain.acquire(1).domain
    first, second = domain.acquire(5000), domain.acquire(5000)
    for context in (first, second):
        located = domain.locate(context.view)
        assert located in (None, context.offset_bytes)
        assert (located is None) == (domain_of_context.kind == "heap")
        if located is not None:
            assert domain.locate(context.read(7, 9)) == context.offset_bytes + 7
            assert domain.locate(context.view[4999:]) == context.offset_bytes + 4999
