"""A process without a descriptor left: the platform is at fault, and nothing stays open."""

from __future__ import annotations

import os
import resource
import select
import socket
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import msgspec
import pytest
from dandelion.backends.process import wire
from dandelion.backends.process.sandbox_pool import SandboxPool
from dandelion.backends.process.zygote_messages import read_message

from dandelion.errors import ContextFull, SandboxLost
from dandelion.testing import wait_until
from tests.python_functions import call_of, first, function, process_engine, run

FORKED = msgspec.msgpack.encode(wire.Forked(os.getpid()))


@contextmanager
def descriptors_left(count: int) -> Iterator[None]:
    """Lower this process's limit so that so many descriptors can still be opened."""
    old = resource.getrlimit(resource.RLIMIT_NOFILE)
    with open(os.devnull) as lowest:
        number = lowest.fileno()
    free = (n for n in range(number, old[1]) if not Path(f"/proc/self/fd/{n}").exists())
    chosen = [next(free) for _ in range(count + 1)]
    resource.setrlimit(resource.RLIMIT_NOFILE, (chosen[-1], old[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, old)


def deadline_ns() -> int:
    return time.monotonic_ns() + 30 * 10**9


def opened() -> set[str]:
    return set(os.listdir("/proc/self/fd"))


@pytest.mark.parametrize("left", range(5))
def test_a_message_whose_descriptors_find_no_room_is_refused(left: int) -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        wire.send(theirs, [FORKED], [0] * 5)
        before = opened()
        with descriptors_left(left), pytest.raises(OSError, match="open files"):
            wire.receive(ours, 1024, 5)
        assert opened() == before
        wire.send(theirs, [FORKED], [0] * 5)
        data, files = wire.receive(ours, 1024, 5)
        for file in files:
            os.close(file)
        assert (data, len(files)) == (FORKED, 5)


def test_descriptors_of_a_message_that_cannot_be_checked_are_closed() -> None:
    before = opened()
    files = [os.open(os.devnull, os.O_RDONLY) for _ in range(4)]
    with descriptors_left(0), pytest.raises(OSError, match="open files"):
        read_message(FORKED, files, os.getpid())
    assert opened() == before


@pytest.mark.parametrize("left", range(4))
def test_a_sandbox_that_finds_no_room_is_lost_by_the_platform(left: int) -> None:
    with closing(SandboxPool("p", ahead=2)) as pool:
        pool.take(deadline_ns()).close()
        wait_until(lambda: select.select([pool._running()._control], [], [], 0)[0])  # one is ready
        before = opened()
        with descriptors_left(left), pytest.raises(SandboxLost, match="open files"):
            pool.take(deadline_ns())
        assert len(opened()) <= len(before), "the zygote ended, too"
        pool.take(deadline_ns()).close()


def test_a_call_without_room_for_its_inputs_fails_and_the_next_one_works() -> None:
    fn = function('def f(x):\n    return {"y": b"%d" % len(x.bytes())}')
    long = bytes(2 * wire.INLINE_BYTES)
    with process_engine() as engine:
        run(engine, fn, b"x")
        wait_until(lambda: engine._ready is not None or run(engine, fn, b"x") is None)
        before = opened()
        with descriptors_left(0), pytest.raises(ContextFull, match="open files"):
            engine.run(call_of(fn, long))
        assert opened() == before
        assert first(run(engine, fn, long)).bytes() == b"%d" % len(long)
