"""Integers that kernels get by value and that change: what calls share, and what they do not."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from dandelion.backends.gpu.device import Handle
from dandelion.backends.gpu.host import HostDevice, Memory
from dandelion.backends.gpu.open_arguments import bits, bits_of
from dandelion.backends.gpu.plan import Launch

import dandelion.blueprint as bp
from dandelion.errors import DeviceFault
from dandelion.function import Function
from tests.test_gpu_engine import POOL_BYTES, Runner, first, function, one

LAUNCHES = 3


def add(launch: Launch, y: Memory, n: bytes) -> None:
    y.view(np.int32)[:] += np.frombuffer(n, np.int32)[0]


def adding(times: int = LAUNCHES) -> Function:
    """y = n added some times."""
    b = bp.Blueprint(inputs=["x", "cfg"], outputs=["y"], modules={"k": ["k.host"]})
    y = b.buffer("y", like="x")
    for _ in range(times):
        b.launch("add", [y, bp.scalar("i32", b.cfg[0])], grid=1, block=32)
    return function(b, ("y",), {"k.host": b"add"})


def call(runner: Runner, wanted: Function, n: int) -> None:
    inputs = one("x", np.zeros(16, np.int32)), one("cfg", np.array([n], np.int64))
    assert (first(runner.run(wanted, *inputs)).numpy(np.int32) == LAUNCHES * n).all()


def test_calls_with_numbers_of_another_size_are_measured_by_themselves() -> None:
    """A number may say how long a call takes, so it says how the call is cut into parts."""
    runner = Runner(HostDevice({"add": add}, POOL_BYTES, graphs=True))
    wanted = adding()
    for n in (4, 5, 6, 7, 4, 100, 5, -5, 100, 0):
        call(runner, wanted, n)
    known = list(runner.engine._known.values())
    assert len(known) == 4
    assert len({id(one.ready.times) for one in known}) == 4
    assert len({id(one.ready.plan) for one in known}) == 1
    assert runner.engine.plans.misses == 1
    runner.engine.close()


def test_a_device_that_changes_no_graphs_launches_step_by_step() -> None:
    class Refusing(HostDevice):
        refusals = 0

        def _update(self, graph: Handle, changed: Sequence[tuple[int, Handle]]) -> None:
            self.refusals += 1
            raise DeviceFault(self.name, "update", "not supported")

    runner = Runner(device := Refusing({"add": add}, POOL_BYTES, graphs=True))
    wanted = adding()
    for n in (4, 4, 4, 5, 6, 4, 4, 7):
        call(runner, wanted, n)
    assert (device.refusals, device.graphs) == (1, 0)
    runner.engine.close()


def test_bits_of_numbers() -> None:
    assert [bits(n) for n in (0, 1, 2, 255, 256, -1, -256)] == [0, 1, 2, 8, 9, -1, -9]
    assert bits_of((b"\xff", b"\x00\x01", b"")) == (-1, 9, 0)
