"""Callers that leave GPU calls through a node: the engine is free soon afterwards."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator

import numpy as np
import pytest

import dandelion.blueprint as bp
from dandelion.documents import RegistrationDocument, gpu_function
from dandelion.driver import load_driver
from dandelion.errors import BackendUnavailable
from dandelion.node import Node, Settings
from dandelion.testing import wait_until

SOURCE = """
#include "dandelion.h"
KERNEL void advance(GLOBAL u64 *x) { x[0] += 1; }
"""
SOON_S = 2.0


def steps() -> bp.Blueprint:
    b = bp.Blueprint(inputs=["n", "x"], outputs=["x"], modules={"k": "k.c"})
    with b.repeat(b.n[0]):
        b.launch("advance", [b.x])
    return b


@pytest.fixture(params=["kernel-host", "engine-process"])
def node(request: pytest.FixtureRequest) -> Iterator[Node]:
    try:
        load_driver("opencl").factory().probe()
    except BackendUnavailable as error:
        pytest.skip(str(error))
    unconfined = str(request.param == "engine-process").lower()
    options = {"opencl": {"pool_bytes": "4M", "threads": "1", "unconfined": unconfined}}
    function = gpu_function(
        "Steps", steps().json(), inputs=["n", "x"], outputs=["x"], files={"k.c": SOURCE}
    )
    with Node(Settings(backends=("opencl",), options=options)) as started:
        assert started.wait_ready(60)
        started.register(RegistrationDocument(functions=(function,)))
        yield started


def run(node: Node, times: int) -> int:
    sets = {"n": np.array([times], np.int64), "x": np.zeros(1, np.uint64)}
    return int(node.invoke("Steps", **sets).x.numpy(np.uint64)[0])


async def leave(node: Node) -> float:
    """Leave a long call while it runs; gives how long its engine still has it."""
    sets = {"n": np.array([900_000], np.int64), "x": np.zeros(1, np.uint64)}
    call = asyncio.ensure_future(node.invoke_async("Steps", **sets))
    done, _ = await asyncio.wait([call], timeout=0.5)
    assert not done
    left_s = time.monotonic()
    call.cancel()
    await asyncio.to_thread(wait_until, lambda: not busy(node))
    return time.monotonic() - left_s


def busy(node: Node) -> bool:
    """Tell whether an engine has a call."""
    return any(engine.busy for engine in node.info().engines)


def test_an_engine_is_free_soon_after_a_caller_left(node: Node) -> None:
    assert run(node, 3) == 3
    lasted_s = []
    for _ in range(3):  # this machine may be busy
        lasted_s.append(asyncio.run(leave(node)))
        assert run(node, 5) == 5
        if lasted_s[-1] < SOON_S:
            break
    assert min(lasted_s) < SOON_S
