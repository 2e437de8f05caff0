"""Long calls on a real device that are not wanted any more."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from dandelion.backends.gpu.pacing import PART_NS

import dandelion.blueprint as bp
from dandelion.documents import RegistrationDocument, gpu_function
from dandelion.node import Node, Settings
from tests.fake_driver.fake import LONG_NS, Real, Runner, function, numbers

SOURCE = """
#include "dandelion.h"
KERNEL void work(GLOBAL u32 *x, u64 rounds)
{
    u32 value = x[GLOBAL_ID(0)];
    for (u64 i = 0; i < rounds; i++)
        value = value * 1664525u + 1013904223u;
    x[GLOBAL_ID(0)] = value;
}
"""
THREADS = 1024 * 256
X = np.arange(THREADS, dtype=np.uint32)
LAUNCH_S = 0.7e-3
SOON_S = 0.05
SHARED_S = 2.0
"""Other processes may use the device meanwhile; the call itself would go on for nine seconds."""


def blueprint() -> bp.Blueprint:
    """So many launches of so many rounds."""
    b = bp.Blueprint(inputs=["n", "x"], outputs=["x"], modules={"k": "k.c"})
    with b.repeat(b.n[0]):
        b.launch("work", [b.x, bp.scalar("u64", b.n[1])], grid=1024, block=256)
    return b


def rounds_of(seconds: float, runner: Runner) -> int:
    """Find how many rounds a launch of that time has."""
    wanted = function(blueprint(), {"k.c": SOURCE.encode()}, outputs=("x",))
    rounds = 20_000
    times = []
    for _ in range(3):
        n = np.array([100, rounds], dtype=np.int64)
        started = time.monotonic()
        runner.run(wanted, runner.one("n", n), runner.one("x", X))
        times.append((time.monotonic() - started) / 100)
    return int(rounds * seconds / min(times))


@pytest.fixture(scope="module")
def rounds(cuda: str, tmp_path_factory: pytest.TempPathFactory) -> int:
    runner = Runner(Real("cuda", tmp_path_factory.mktemp("code")), pool_bytes=64 << 20)
    found = rounds_of(LAUNCH_S, runner)
    runner.close()
    return found


@pytest.fixture(scope="module")
def node(cuda: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    options = {"cache": str(tmp_path_factory.mktemp("code")), "pool_bytes": "1G", "workers": "0"}
    work = gpu_function(
        "Work",
        blueprint().json(),
        inputs=["n", "x"],
        outputs=["x"],
        files={"k.c": SOURCE},
    )
    with Node(Settings(backends=("cuda",), options={"cuda": options})) as started:
        assert started.wait_ready(60)
        started.register(RegistrationDocument(functions=(work,)))
        yield started


def work(node: Node, launches: int, rounds: int) -> float:
    """Run a call; gives how long it took, in seconds."""
    started = time.monotonic()
    node.invoke("Work", n=np.array([launches, rounds], dtype=np.int64), x=X)
    return time.monotonic() - started


def stopped(node: Node, launches: int, rounds: int) -> float:
    """Leave a call after a second; gives the seconds until the next one is done."""

    async def leave() -> float:
        n = np.array([launches, rounds], dtype=np.int64)
        call = asyncio.ensure_future(node.invoke_async("Work", n=n, x=X))
        done, _ = await asyncio.wait([call], timeout=1.0)
        assert not done
        left = time.monotonic()
        call.cancel()
        await node.invoke_async("Work", n=np.array([1, 1], dtype=np.int64), x=X)
        return time.monotonic() - left

    return asyncio.run(leave())


def test_the_device_is_free_soon_after_the_caller_left(node: Node, rounds: int) -> None:
    launches = int(10 / LAUNCH_S)
    for _ in range(3):
        work(node, 1, 1)
    one_by_one = sorted(stopped(node, launches, rounds) for _ in range(3))
    assert one_by_one[0] < SOON_S
    assert one_by_one[-1] < SHARED_S
    assert work(node, launches, rounds) > 5
    as_graphs = sorted(stopped(node, launches, rounds) for _ in range(3))
    assert as_graphs[0] < SOON_S
    assert as_graphs[-1] < SHARED_S


def test_parts_give_the_same_bits_as_one_graph(cuda: str, rounds: int, tmp_path: Path) -> None:
    wanted = function(blueprint(), {"k.c": SOURCE.encode()}, outputs=("x",))
    n = np.array([700, rounds], dtype=np.int64)
    found = set()
    for part_ns in (LONG_NS, PART_NS):
        runner = Runner(Real("cuda", tmp_path / "code"), 64 << 20, part_ns=part_ns)
        for _ in range(5):
            result = runner.run(wanted, runner.one("n", n), runner.one("x", X))
            found.add(numbers(result, np.uint32).tobytes())
            del result
        runner.close()
    assert len(found) == 1
