"""Constants of a function whose kernels run on the host's processors: they stay in its process."""

from __future__ import annotations

import time
from collections.abc import Iterator

import numpy as np
import pytest
from dandelion.backends.gpu.confined import ConfinedEngine
from dandelion.backends.gpu.constants import LEAST_BYTES
from dandelion.backends.gpu.driver import GpuDriver

from dandelion.confinement.lockdown import landlock_abi
from dandelion.data import Item, ItemSet, SetSpec
from dandelion.driver import Call, load_driver
from dandelion.errors import BackendUnavailable, Faulted
from dandelion.function import CodeObject, Function, FunctionSpec, StaticItem, digest_of
from dandelion.memory import HeapDomain

COUNT = LEAST_BYTES // 4
BLUEPRINT = b"""{
  "modules": {"k": "k.c"}, "kernels": {"k": "k"},
  "blueprint": {"inputs": ["x"], "weights": ["w"], "buffers": {}, "outputs": ["x"],
    "control_flow": [{"ExecKernel": ["k", [{"Ptr": "w"}, {"Ptr": "x"}], {}]}]}
}"""
SOURCE = """#include "dandelion.h"
KERNEL void k(GLOBAL const i32 *w, GLOBAL i32 *x)
{
    int last = %d;
    if (x[0] == -1)
        *(GLOBAL i32 *)(w + last) = 99; /* beyond what the parameter allows */
    x[0] = w[0];
    x[1] += w[last];
}
"""


@pytest.fixture(scope="module")
def engine() -> Iterator[ConfinedEngine]:
    if landlock_abi() < 2:
        pytest.skip("this kernel has no Landlock")
    driver = load_driver("opencl")
    assert isinstance(driver, GpuDriver)
    driver.configure({"pool_bytes": "16M", "threads": "1"})
    try:
        made = driver.factory().engine("cpu")
    except BackendUnavailable as error:
        pytest.skip(str(error))
    assert isinstance(made, ConfinedEngine)
    yield made
    made.close()


def function(name: str, weights: np.ndarray[tuple[int], np.dtype[np.int32]]) -> Function:
    data, source = weights.tobytes(), (SOURCE % (len(weights) - 1)).encode()
    code = CodeObject("blueprint", digest_of(BLUEPRINT), {"k.c": digest_of(source)})
    static: dict[str, tuple[StaticItem, ...]] = {"w": (StaticItem("w", digest_of(data)),)}
    spec = FunctionSpec(name, (SetSpec("x"), SetSpec("w")), (SetSpec("x"),), static, (code,))
    sets = {"w": ItemSet("w", (Item("w", 0, data),))}
    return Function(spec, code, BLUEPRINT, {"k.c": source}, sets)


def called(engine: ConfinedEngine, wanted: Function, *x: int) -> list[int]:
    given = ItemSet("x", (Item("x", 0, np.array(x, np.int32).tobytes()),))
    end_ns = time.monotonic_ns() + 60 * 10**9
    inputs = wanted.with_static((given, None))
    call = Call(1, wanted, inputs, HeapDomain(1 << 20), end_ns)
    try:
        (result,) = engine.run(call)
        assert result is not None
        return [int(value) for value in np.frombuffer(result.items[0].data, np.int32)]
    finally:
        engine.clean_up()


@pytest.mark.parametrize("count", [16, 4 * COUNT + 1])
def test_they_are_the_same_in_every_call(engine: ConfinedEngine, count: int) -> None:
    weights = np.arange(count, dtype=np.int32) + 5
    wanted = function(f"Same{count}", weights)
    for number in range(4):
        assert called(engine, wanted, 0, number) == [5, number + int(weights[-1])]


def test_functions_have_their_own(engine: ConfinedEngine) -> None:
    ones, twos = (function(f"Own{n}", np.full(COUNT, n, np.int32)) for n in (1, 2))
    for _ in range(2):
        assert called(engine, ones, 0, 0) == [1, 1]
        assert called(engine, twos, 0, 0) == [2, 2]


def test_a_kernel_that_writes_to_them_ends_with_its_process(engine: ConfinedEngine) -> None:
    wanted = function("Writes", np.full(COUNT, 3, np.int32))
    assert called(engine, wanted, 0, 0) == [3, 3]
    with pytest.raises(Faulted, match="SIGSEGV"):
        called(engine, wanted, -1, 0)
    assert called(engine, wanted, 0, 0) == [3, 3], "nothing was written"
