"""The demand of a call is told by the process of the backend that is really in use.

An entry names two backends. The process takes the second, as one does where the first finds no
device, and notes how much room it was given for each call's outputs.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from dandelion.driver import Hosting
from dandelion.errors import DeviceFull, Faulted, QuotaExceeded
from dandelion.node import Node, Settings
from dandelion.settings import TenantSettings
from dandelion.testing import FakeEngineProcess, ScriptedDriver, installed, wait_until
from tests.played_nodes import played_node, register, wait_ready

SCRIPT = """
from dandelion.driver import Capacity, Demand
from dandelion.errors import EngineDied

def demand(name, inputs):
    process.note("planned", name)
    if name == "reads":
        return Demand(int.from_bytes(inputs[0].items[0].data[8:16], "little"))
    return Demand(64, 10 * inputs[0].size_bytes)

process.demand = demand
process.reads = {reads}
process.opened()
process.wait_for("gate")
room = 1000 if process.role == "sequential" else 100
process.ready(Capacity(room), {workers}, backend="second")
for call in process.calls():
    process.note("ran", f"{{process.role}} {{call.request.result_bytes}}")
    if call.function == "leave":
        process.fail(call, EngineDied("second:0", "as told"), fatal=True)
    process.answer(call)
"""


class Played:
    """A node with such an entry; its engines come up when `open` is called."""

    def __init__(self, node: Node, fake: FakeEngineProcess) -> None:
        self.node = node
        self._fake = fake

    def open(self, engines: int = 1) -> None:
        """Let the engines come up, and wait for them."""
        self._fake.sign("gate")
        wait_ready(self.node, engines)

    def ran(self) -> list[str]:
        """For each call which engine ran it, and its room for outputs in bytes."""
        return self._fake.notes("ran")

    def planned(self) -> int:
        """Count the calls that a process planned."""
        return len(self._fake.notes("planned"))


@pytest.fixture(params=[(0, ())])
def played(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Played]:
    workers, reads = request.param
    fake = FakeEngineProcess(tmp_path, SCRIPT.format(workers=workers, reads=reads))
    drivers = [
        ScriptedDriver(name, hosting=Hosting.PROCESS, code_format="told")
        for name in ("first", "second")
    ]
    settings = Settings(backends=("first|second",), arena_bytes=1 << 20, spin_us=0)
    backends = tmp_path / "backends"
    backends.mkdir()
    with installed(backends, *drivers), played_node(fake, settings, (), ()) as node:
        for name in ("stay", "leave", "reads"):
            register(node, name, "told", main=name.encode())
        yield Played(node, fake)


def test_outputs_have_the_room_that_the_process_tells(played: Played) -> None:
    played.open()
    played.node.invoke("stay", a=bytes(10))
    assert played.ran() == ["sequential 64"]


def test_what_the_device_cannot_hold_is_refused(played: Played) -> None:
    played.open()
    with pytest.raises(DeviceFull) as caught:
        played.node.invoke("stay", a=bytes(200))
    assert caught.value.needed_bytes == 2000
    assert played.ran() == []


def test_what_a_tenant_may_not_use_is_refused(played: Played) -> None:
    played.open()
    played.node.set_tenant("default", TenantSettings(call_device_bytes=500))
    with pytest.raises(QuotaExceeded) as caught:
        played.node.invoke("stay", a=bytes(60))
    assert (caught.value.needed_bytes, caught.value.quota_bytes) == (600, 500)
    assert played.ran() == []
    played.node.invoke("stay", a=bytes(50))


@pytest.mark.parametrize("played", [(1, ())], indirect=True)
def test_the_kind_of_engine_follows_from_it(played: Played) -> None:
    played.open(2)
    played.node.invoke("stay", a=bytes(5))
    played.node.invoke("stay", a=bytes(50))
    assert played.ran() == ["worker 64", "sequential 64"]


def test_calls_that_waited_for_the_engine_are_planned(played: Played) -> None:
    node = played.node
    with ThreadPoolExecutor() as callers:
        calls = [callers.submit(node.invoke, "stay", a=bytes(size)) for size in (5, 200, 50)]
        wait_until(lambda: node.info().waiting == len(calls))
        played.open()
        failures = [type(call.exception()) for call in calls]
    assert failures == [type(None), DeviceFull, type(None)]
    assert played.ran() == ["sequential 64"] * 2


def test_it_is_so_after_the_engine_was_replaced(played: Played) -> None:
    played.open()
    with pytest.raises(Faulted):  # it took two engines with it
        played.node.invoke("leave", a=bytes(5))
    played.node.invoke("stay", a=bytes(5))
    assert played.ran() == ["sequential 64"] * 3


def test_calls_of_the_same_size_are_planned_once(played: Played) -> None:
    played.open()
    for size in (5, 5, 6, 5, 6):
        played.node.invoke("stay", a=bytes(size))
    assert played.planned() == 2
    assert len(played.ran()) == 5


@pytest.mark.parametrize("played", [(0, ((0, 8),))], indirect=True)
def test_calls_that_differ_in_what_the_planner_reads_are_planned_each(played: Played) -> None:
    played.open()
    for other, number in ((1, 100), (2, 100), (3, 200), (4, 100)):
        played.node.invoke("reads", a=np.array([other, number], np.int64))
    assert played.ran() == [f"sequential {room}" for room in (100, 100, 200, 100)]
    assert played.planned() == 2
