"""The demand of a call is told by the driver of the backend that is really in use.

An entry names two backends that differ in what they tell. The process takes the second, as one does
where the first finds no device, and notes how much room it was given for each call's outputs.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest

from dandelion.documents import CodeDocument, Content, FunctionDocument
from dandelion.driver import Demand, Hosting, InstanceSets, load_driver
from dandelion.errors import DeviceFull, Faulted
from dandelion.function import Function
from dandelion.node import Node, Settings, engines, processes
from dandelion.testing import Script, ScriptedDriver

PROGRAM = """#!{python}
import json, os, socket, sys, time
sys.path.insert(0, {root!r})
from dandelion.driver import Capacity
from dandelion.engine_process.messages import *
from dandelion.errors import EngineDied
node = request_channel(socket.socket(fileno=int(sys.argv[3])))
role = json.loads(sys.argv[8])["second"]["role"]
workers, room = ({workers}, 1000) if role == "sequential" else (0, 100)
known = {{}}
try:
    node.receive()
    while not os.path.exists({gate!r}):
        time.sleep(0.002)
    node.send(Ready("second", "second:0", ("0",), role, Capacity(room), workers))
    while True:
        request = node.receive()
        if isinstance(request, Load):
            known[request.identity] = request.main
        elif isinstance(request, Run):
            with open({log!r}, "a") as log:
                log.write(role + " " + str(request.result_bytes) + "\\n")
            if known[request.identity] == b"leave":
                error = EngineDied("second:0", "as told").record()
                node.send(Failed(request.call, error, {{}}, True))
                break
            node.send(Done(request.call, (None,), {{}}))
except (Ended, OSError):
    pass
"""


def told(name: str, output_bytes: int, factor: int) -> ScriptedDriver:
    """A backend of the format ``told`` whose demand is a multiple of the input."""

    def demand(function: Function, inputs: InstanceSets) -> Demand:
        assert inputs[0] is not None
        return Demand(output_bytes, factor * inputs[0].size_bytes)

    return ScriptedDriver(name, Script(demand=demand), Hosting.PROCESS, code_format="told")


class Played:
    """A node with such an entry; its engines come up when `open` is called."""

    def __init__(self, node: Node, folder: Path) -> None:
        self.node = node
        self._gate = folder / "gate"
        self._log = folder / "log"

    def open(self, engines: int = 1) -> None:
        """Let the engines come up, and wait for them."""
        self._gate.touch()
        while len(self.node.engines()) < engines or not self.node.ready():
            self.node.wait_ready(0.05)

    def given(self) -> list[str]:
        """For each call which engine ran it, and its room for outputs in bytes."""
        return self._log.read_text().splitlines() if self._log.exists() else []


@pytest.fixture(params=[0])
def played(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Played]:
    program = tmp_path / "python"
    root = str(Path(__file__).parents[2])
    log, gate = str(tmp_path / "log"), str(tmp_path / "gate")
    text = PROGRAM.format(
        python=sys.executable, root=root, workers=request.param, log=log, gate=gate
    )
    program.write_text(text)
    program.chmod(0o700)
    monkeypatch.setattr(processes, "sys", SimpleNamespace(executable=str(program)))
    drivers = {"first": partial(told, "first", 16, 1), "second": partial(told, "second", 64, 10)}
    monkeypatch.setattr(
        engines,
        "load_driver",
        lambda name: drivers[name]() if name in drivers else load_driver(name),
    )
    with Node(Settings(backends=("first|second",), arena_bytes=1 << 20)) as node:
        for name in ("stay", "leave"):
            code = (CodeDocument("told", Content(data=name.encode())),)
            node.register(FunctionDocument(name, ("a",), ("b",), code=code))
        yield Played(node, tmp_path)


def test_outputs_have_the_room_that_the_driver_in_use_tells(played: Played) -> None:
    played.open()
    played.node.invoke("stay", a=bytes(10))
    assert played.given() == ["sequential 64"]


def test_what_the_device_cannot_hold_is_refused_by_its_own_driver(played: Played) -> None:
    played.open()
    with pytest.raises(DeviceFull) as caught:
        played.node.invoke("stay", a=bytes(200))
    assert caught.value.needed_bytes == 2000
    assert played.given() == []


@pytest.mark.parametrize("played", [1], indirect=True)
def test_the_kind_of_engine_follows_from_it(played: Played) -> None:
    played.open(2)
    played.node.invoke("stay", a=bytes(5))
    played.node.invoke("stay", a=bytes(50))  # too much for a worker by the second's word alone
    assert played.given() == ["worker 64", "sequential 64"]


def test_calls_that_waited_for_the_engine_are_asked_about_again(played: Played) -> None:
    node = played.node
    with ThreadPoolExecutor() as callers:
        calls = [callers.submit(node.invoke, "stay", a=bytes(size)) for size in (5, 200, 50)]
        while node.info().waiting < len(calls):
            node.wait_ready(0.005)
        played.open()
        failures = [type(call.exception()) for call in calls]
    assert failures == [type(None), DeviceFull, type(None)]
    assert played.given() == ["sequential 64"] * 2


def test_it_is_so_after_the_engine_was_replaced(played: Played) -> None:
    played.open()
    with pytest.raises(Faulted):  # it took two engines with it
        played.node.invoke("leave", a=bytes(5))
    played.node.invoke("stay", a=bytes(5))
    assert played.given() == ["sequential 64"] * 3
