"""Engines of one device share constants, on a fake CUDA device with workers."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

import dandelion.blueprint as bp
from dandelion.documents import FunctionDocument, gpu_function
from dandelion.executors import ConstantsExchange, ProcessExecutor
from dandelion.function import FunctionSpec
from dandelion.node import Node

from .fake_cuda import LIMIT_S, MIB, built, cuda_node, missing

X = np.arange(64, dtype=np.int32)
SOURCE = """
#include "dandelion.h"
KERNEL void weigh(GLOBAL const i32 *w, GLOBAL const i32 *x, GLOBAL i32 *y, u64 last)
{
    y[GLOBAL_ID(0)] = x[GLOBAL_ID(0)] + w[GLOBAL_ID(0)] + w[last];
}
"""


pytestmark = pytest.mark.skipif(bool(missing()), reason=f"without {missing()}")


@pytest.fixture(scope="module")
def libraries(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built(tmp_path_factory.mktemp("fake"))


@pytest.fixture
def node(libraries: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Node]:
    options = {"weights": "12M", "workers": "2"}
    with cuda_node(libraries, monkeypatch, tmp_path, options) as made:
        until(lambda: len(made._runtime.scheduler.calls.residency.devices) == 3)
        yield made


def until(condition: Callable[[], bool]) -> None:
    end_s = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < end_s, "it did not happen"
        time.sleep(0.01)


def weights(seed: int) -> npt.NDArray[np.int32]:
    return np.random.default_rng(seed).integers(0, 1000, MIB, np.int32)


def weighing(seed: int) -> FunctionDocument:
    """y = x + w + the last of w"""
    data = weights(seed).tobytes()
    static = {"w": {"w": data}}
    b = bp.Blueprint(["x"], weights=static, outputs=["y"], modules={"k": "k.c"})
    y = b.buffer("y", like=b.x)
    b.launch("weigh", [b["w"], b.x, y, MIB - 1], grid=1, block=64)
    return gpu_function(
        f"f{seed}", b.json(), inputs=["x", "w"], outputs=["y"], files={"k.c": SOURCE},
        static=static,
    )  # fmt: skip


def call(node: Node, seed: int) -> None:
    outputs = node.invoke(f"f{seed}", x=X)
    w = weights(seed)
    assert outputs["y"] is not None
    assert (outputs["y"].numpy(np.int32) == X + w[:64] + w[-1]).all()


def call_all(node: Node, seeds: list[int]) -> None:
    with ThreadPoolExecutor(8) as pool:
        for future in [pool.submit(call, node, seed) for seed in seeds]:
            future.result(LIMIT_S)


def exchange_of(node: Node) -> ConstantsExchange:
    found = {e.exchange for e in executors(node)}
    (exchange,) = found
    assert exchange is not None
    return exchange


def executors(node: Node) -> list[ProcessExecutor]:
    made = node._runtime.executors.values()
    return [e for e in made if isinstance(e, ProcessExecutor)]


def test_constants_are_copied_once_for_all_engines(node: Node) -> None:
    node.register(weighing(1))
    exchange = exchange_of(node)

    def several_have_them() -> bool:
        call_all(node, [1] * 16)
        (entry,) = exchange._entries.values()
        return len(entry.mapped) > 1

    until(several_have_them)
    places = {id(p): p for p in node._runtime.scheduler.calls.residency.devices.values()}
    (place,) = places.values()
    assert (place.used_bytes, len(place)) == (4 * MIB, 1)
    counts = node.info().constants
    assert (counts.copies, counts.copied_bytes) == (1, 4 * MIB)
    rows = node.capacity().engines
    assert sum(row.constants_used_bytes for row in rows) == 4 * MIB
    assert sum(row.constants_bytes for row in rows) == 12 * MIB


def test_more_constants_than_memory_take_turns(node: Node) -> None:
    for seed in range(6):
        node.register(weighing(seed))
    before = len(os.listdir("/proc/self/fd"))
    rng = np.random.default_rng(0)
    for _ in range(6):
        call_all(node, rng.integers(0, 6, 24).tolist())
    (place,) = {id(p): p for p in node._runtime.scheduler.calls.residency.devices.values()}.values()
    assert place.used_bytes <= place.capacity_bytes == 12 * MIB
    until(lambda: len(exchange_of(node)) <= 3)
    assert len(os.listdir("/proc/self/fd")) <= before + 3 + 8, "descriptors are left"


def test_constants_survive_the_engine_that_copied_them(node: Node) -> None:
    node.register(weighing(1))
    call_all(node, [1] * 32)
    exchange = exchange_of(node)
    (entry,) = exchange._entries.values()
    for executor in list(entry.mapped):
        assert isinstance(executor, ProcessExecutor)
        assert executor._process is not None
        os.kill(executor._process.child.pid, signal.SIGKILL)
        call_all(node, [1] * 32)
    call_all(node, [1] * 32)


def test_removed_functions_leave_nothing(node: Node) -> None:
    node.register(weighing(1))
    node.register(weighing(2))
    call_all(node, [1, 2] * 16)
    exchange = exchange_of(node)
    assert len(exchange) == 2
    node.remove(FunctionSpec, "f1")
    until(lambda: len(exchange) == 1)
    call_all(node, [2] * 16)
