"""Workers that share their fate, as clients of one MPS server do: a fault of one breaks all.

Engine processes are replaced by a program that plays this: a worker in which the bad function runs
breaks all workers that are up. Each says so in the call that it runs, or at its next one, and
leaves. Whatever the order of things, the bad call alone fails.
"""

import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest
from dandelion.node.hosts import State

from dandelion.documents import CodeDocument, FunctionDocument
from dandelion.driver import Demand, Hosting, Sharing
from dandelion.errors import DandelionError
from dandelion.node import Node, Settings, processes
from dandelion.testing import Script, ScriptedDriver

ROUNDS = 5
WORKERS = 8
GOOD_CALLERS = 5
PROGRAM = """#!{python}
import os, random, socket, sys, time
sys.path.insert(0, {root!r})
from dandelion.driver import Capacity
from dandelion.engine_process.messages import *
from dandelion.errors import EngineDied, Faulted
node = request_channel(socket.socket(fileno=int(sys.argv[3])))
worker = "BROKEN" in os.environ
broken = os.environ.get("BROKEN", "")
names = {{}}

def generation():
    return os.path.getsize(broken) if worker else 0

def faulted(request):
    leave(request, Faulted(names[request.identity], "illegal address"))

def leave(request, error):
    node.send(Failed(request.call, error.record(), {{}}, True))
    sys.exit(0)

try:
    while not isinstance(node.receive(), Open):
        pass
    born = generation()
    while born and {held} and not os.path.exists({log!r} + ".go"):
        time.sleep(0.01)
    workers = 0 if worker else {workers}
    node.send(Ready("shared", "shared:0", ("0",), "played", Capacity(), workers, not worker))
    while True:
        request = node.receive()
        if isinstance(request, Load):
            names[request.identity] = request.spec.name
        elif isinstance(request, Run):
            if generation() != born:  # it noticed as it zeroed what its last call had used
                leave(request, EngineDied("shared:0", "illegal address"))
            if not worker:
                with open({log!r}, "a") as file:
                    file.write(names[request.identity] + " ")
            time.sleep(random.random() * 0.002)
            if names[request.identity] == "Bad":
                if worker:
                    time.sleep({bad_s})
                    with open(broken, "a") as file:
                        file.write("x")
                faulted(request)
            if generation() != born:
                faulted(request)
            node.send(Done(request.call, (None,), {{}}))
except (Ended, OSError):
    sys.exit(0)
"""


def shared(broken: Path) -> ScriptedDriver:
    """A device that two workers share."""
    sharing = Sharing({"BROKEN": str(broken)}, concurrent=True, shared_fault_domain=True)
    script = Script(
        demand=lambda function, inputs: Demand(output_bytes=1), share=lambda resource: sharing
    )
    return ScriptedDriver("shared", script, Hosting.PROCESS)


@contextmanager
def played(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    workers: int,
    spin_us: int,
    bad_s: float = 0.0,
    held: bool = False,
) -> Iterator[Node]:
    """Give a node with such a device, all of whose engines are up.

    Workers that replace others wait for the file ``log.go`` if they are `held`.
    """
    program, broken = folder / "python", folder / "broken"
    broken.touch()
    root, log = str(Path(__file__).parents[2]), str(folder / "log")
    program.write_text(
        PROGRAM.format(
            python=sys.executable, root=root, workers=workers, log=log, bad_s=bad_s, held=held
        )
    )
    program.chmod(0o700)
    monkeypatch.setattr(processes, "sys", SimpleNamespace(executable=str(program)))
    driver = shared(broken)
    monkeypatch.setattr("dandelion.node.engines.load_driver", lambda name: driver)
    settings = Settings(backends=(), arena_bytes=1 << 20, spin_us=spin_us)
    with Node(settings, [driver]) as node:
        while len(node.engines()) < workers + 1 or not node.ready():
            node.wait_ready(0.05)
        code = (CodeDocument("shared"),)
        for name in ("Good", "Bad"):
            node.register(FunctionDocument(name, ("a",), ("b",), code=code))
        yield node


@pytest.fixture(params=[0, 200])
def node(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Node]:
    with played(tmp_path, monkeypatch, WORKERS, request.param) as node:
        yield node


def test_a_fault_that_all_share_fails_the_bad_call_alone(node: Node) -> None:
    def call(name: str, barrier: threading.Barrier) -> str:
        barrier.wait()
        try:
            node.invoke(name, a=b"1")
        except DandelionError as error:
            return f"{type(error).__name__}: {error}"
        return "answered"

    for _ in range(ROUNDS):
        for _ in range(10):
            node.invoke("Good", a=b"1")
        barrier = threading.Barrier(GOOD_CALLERS + 1)
        with ThreadPoolExecutor(GOOD_CALLERS + 1) as pool:
            bad = pool.submit(call, "Bad", barrier)
            good = [pool.submit(call, "Good", barrier) for _ in range(GOOD_CALLERS)]
            assert [one.result() for one in good] == ["answered"] * GOOD_CALLERS
            assert bad.result().startswith("Faulted")


def test_calls_that_did_no_harm_go_before_a_suspect(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with played(tmp_path, monkeypatch, 1, 0, bad_s=0.3) as node, ThreadPoolExecutor(4) as pool:
        while len([e for e in node.engines() if e.state == "ready"]) < 2:
            node.wait_ready(0.05)
        bad = pool.submit(node.invoke, "Bad", a=b"1")
        while not any(host.busy for host in node._pump.hosts):
            pass
        good = [pool.submit(node.invoke, "Good", a=b"1") for _ in range(3)]
        for one in good:
            one.result()
        assert type(bad.exception()).__name__ == "Faulted"
    assert (tmp_path / "log").read_text().split() == ["Good"] * 3 + ["Bad"]


def test_a_call_behind_a_fault_does_not_wait_for_the_next_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with (
        played(tmp_path, monkeypatch, 1, 0, bad_s=0.3, held=True) as node,
        ThreadPoolExecutor(2) as pool,
    ):
        for _ in range(10):
            node.invoke("Good", a=b"1")
        [worker] = [host for host in node._pump.hosts if host.facts.worker]
        bad = pool.submit(node.invoke, "Bad", a=b"1")
        while not worker.busy:
            pass
        good = pool.submit(node.invoke, "Good", a=b"1")
        while worker.busy == 1:
            pass
        good.result(20)
        assert type(bad.exception(20)).__name__ == "Faulted"
        assert worker.state is State.STARTING
        (tmp_path / "log.go").touch()
