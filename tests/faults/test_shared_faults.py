"""Workers in a shared fault domain, such as clients of one MPS server: a fault of one breaks all.

Engine processes are replaced by a program that plays this: a worker in which the bad function runs
breaks all workers that are up. Each says so in the call that it runs, or at its next one, and
leaves. Whatever the order of things, the bad call alone fails.
"""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from dandelion.driver import Hosting, Sharing
from dandelion.errors import DandelionError
from dandelion.executors import ProcessExecutor
from dandelion.node import Node, Settings
from dandelion.scheduler.engine import EnginePhase
from dandelion.testing import FakeEngineProcess, Script, ScriptedDriver, installed, wait_until
from tests.played_nodes import executors_of, played_node, wait_ready

ROUNDS = 5
WORKERS = 8
GOOD_CALLERS = 5
SCRIPT = """
import os, random, time
from dandelion.driver import Demand
from dandelion.errors import EngineDied, Faulted

worker = process.role == "worker"
broken = os.environ.get("BROKEN", "")

def generation():
    return os.path.getsize(broken) if worker else 0

process.opened()
own_generation = generation()
if own_generation and {held}:
    process.wait_for("go")
process.demand = lambda name, inputs: Demand(output_bytes=1)
process.ready(workers={workers}, standby=True)
for call in process.calls():
    name = call.function
    faulted = Faulted(name, "illegal address")
    if generation() != own_generation:  # it noticed as it zeroed what its last call had used
        process.fail(call, EngineDied("played:0", "illegal address"), fatal=True)
    if not worker:
        process.note("log", name)
    time.sleep(random.random() * 0.002)
    if name == "Bad":
        if worker:
            time.sleep({bad_s})
            with open(broken, "a") as file:
                file.write("x")
        process.fail(call, faulted, fatal=True)
    if generation() != own_generation:
        process.fail(call, faulted, fatal=True)
    process.answer(call)
"""


@contextmanager
def played(
    folder: Path, workers: int, spin_us: int = 0, bad_s: float = 0.0, held: bool = False
) -> Iterator[Node]:
    """Give a node with a device that workers share, all of whose engines are up.

    Workers that replace others wait for the sign ``go`` if they are `held`.
    """
    broken, backends = folder / "broken", folder / "backends"
    broken.touch()
    backends.mkdir()
    sharing = Sharing({"BROKEN": str(broken)}, concurrent=True, shared_fault_domain=True)
    driver = ScriptedDriver("played", Script(share=lambda resource: sharing), Hosting.PROCESS)
    fake = FakeEngineProcess(folder, SCRIPT.format(workers=workers, bad_s=bad_s, held=held))
    settings = Settings(backends=(), arena_bytes=4 << 20, spin_us=spin_us)
    with (
        installed(backends, driver),
        played_node(fake, settings, [driver], ("Good", "Bad")) as node,
    ):
        wait_ready(node, workers + 1)
        yield node


@pytest.fixture(params=[0, 200])
def node(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Node]:
    with played(tmp_path, WORKERS, request.param) as node:
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


def worker_of(node: Node) -> ProcessExecutor:
    [worker] = [executor for executor in executors_of(node) if executor.engine.worker]
    return worker


def test_calls_that_did_no_harm_go_before_a_suspect(tmp_path: Path) -> None:
    with played(tmp_path, 1, bad_s=0.3) as node, ThreadPoolExecutor(4) as pool:
        worker = worker_of(node)
        bad = pool.submit(node.invoke, "Bad", a=b"1")
        wait_until(lambda: worker._out)
        good = [pool.submit(node.invoke, "Good", a=b"1") for _ in range(3)]
        for one in good:
            one.result()
        assert type(bad.exception()).__name__ == "Faulted"
    assert (tmp_path / "log").read_text().split() == ["Good"] * 3 + ["Bad"]


def test_a_call_behind_a_fault_does_not_wait_for_the_next_process(tmp_path: Path) -> None:
    with (
        played(tmp_path, 1, bad_s=0.3, held=True) as node,
        ThreadPoolExecutor(2) as pool,
    ):
        worker = worker_of(node)
        for _ in range(10):
            node.invoke("Good", a=b"1")
        worker.engine.mean_ns = 1e5  # so that one may wait while another runs
        bad = pool.submit(node.invoke, "Bad", a=b"1")
        wait_until(lambda: len(worker._out) == 1)
        good = pool.submit(node.invoke, "Good", a=b"1")
        wait_until(lambda: len(worker._out) == 2)
        good.result(20)
        assert type(bad.exception(20)).__name__ == "Faulted"
        assert worker.engine.phase is EnginePhase.STARTING
        (tmp_path / "go").touch()
        wait_ready(node, 2)
