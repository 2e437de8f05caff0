"""Constants that stay on a device: counted in the units in which it gives memory."""

from __future__ import annotations

from dandelion.driver import Capacity
from dandelion.function import FunctionSpec
from dandelion.scheduler.engine import EngineState
from dandelion.scheduler.records import Flow, Tenant
from dandelion.scheduler.residency import Residency

UNIT = 100
CAPACITY = Capacity(
    constants_bytes=2 * UNIT, constants_unit_bytes=UNIT, constants_least_bytes=UNIT // 2
)


def test_constants_take_whole_units_and_small_ones_are_not_kept() -> None:
    residency = Residency(1000, lambda action: None)
    engine = EngineState(0, frozenset({"gpu"}), capacity=CAPACITY)
    residency.add_device(engine, CAPACITY)
    place = residency.devices[engine]
    tenant = Tenant("t")
    sizes = {"small": UNIT // 2 - 1, "a": UNIT // 2, "b": UNIT, "c": UNIT + 1, "d": 2 * UNIT + 1}
    flows = {n: Flow(tenant, FunctionSpec(n, (), ()), constants_bytes=s) for n, s in sizes.items()}
    assert residency.keep_on_device(engine, flows["small"]) == ((), False)
    assert residency.keep_on_device(engine, flows["a"]) == ((), True)
    assert residency.keep_on_device(engine, flows["b"]) == ((), True)
    assert place.used_bytes == 2 * UNIT
    dropped, kept = residency.keep_on_device(engine, flows["c"])
    assert kept
    assert set(dropped) == {flows["a"], flows["b"]}
    assert place.used_bytes == 2 * UNIT
    assert residency.keep_on_device(engine, flows["d"]) == ((), False), "more than there is"
    assert place.flows == (flows["c"],)


def test_a_device_that_keeps_nothing_gives_no_bytes() -> None:
    assert Capacity().bytes_of_constants(1 << 30) == 0
    assert CAPACITY.bytes_of_constants(0) == 0
