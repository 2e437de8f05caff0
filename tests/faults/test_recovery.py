"""How engines come back: from devices that release memory slowly, and from starts that fail.

Engine processes are replaced by a program that plays one. What differs from test to test is what it
does as it opens its engine and when it runs a call; files in a folder tell it when to go on.
"""

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from dandelion.executors.processes import Process, Processes
from dandelion.scheduler import retries
from dandelion.scheduler.engine import EnginePhase
from dandelion.testing import (
    wait_until,
)
from tests.faults.played_nodes import Play, given_play
from tests.played_nodes import (
    DEADLINE_S,
    children,
    executor_of,
    executors_of,
    outcome,
    ready,
    wait_ready,
)

play = pytest.fixture()(given_play)

SHARED = """
REFUSES = {refuses}
clients = []

def generation():
    return (folder / "broken").stat().st_size

def joined(number, how):
    file = open(folder / f"clients{{number}}", "a")
    fcntl.flock(file, how)
    return file

def opened():
    global own_generation
    own_generation = generation() if worker else 0
    for number in range(own_generation):
        try:
            joined(number, fcntl.LOCK_EX | (fcntl.LOCK_NB if REFUSES else 0)).close()
        except BlockingIOError:
            process.unavailable()
    if worker:
        clients.append(joined(own_generation, fcntl.LOCK_SH))
    process.ready(workers=3)

def run(request, name):
    if worker and generation() != own_generation:
        process.fail(request, Faulted(name, "illegal address"), fatal=True)
    if name == "Bad":
        if worker:
            with open(folder / "broken", "a") as file:
                file.write("x")
        process.fail(request, Faulted(name, "illegal address"), fatal=True)
"""


@pytest.mark.parametrize("refuses", [False, True], ids=["waits", "refuses"])
def test_a_device_server_that_is_broken_gets_rid_of_all_its_clients(
    refuses: bool, tmp_path: Path, play: Play
) -> None:
    """It has no new ones before the last of those that a fault broke is gone: idle ones go, too."""
    (tmp_path / "broken").touch()
    node = play(SHARED.format(refuses=refuses))
    wait_ready(node, 4)
    before = set(children(node))
    assert outcome(node, "Bad") == "Faulted"
    wait_ready(node, 4)
    assert before.isdisjoint(children(node))
    with ThreadPoolExecutor(4) as pool:
        assert set(pool.map(lambda _: outcome(node, "Good"), range(12))) == {"answered"}


def test_an_engine_that_worked_is_started_again_until_that_works(
    play: Play,
) -> None:
    node = play("""
        def opened():
            if process.first("begun"):
                process.ready()
            elif process.first("refused") or process.first("refused again"):
                process.unavailable()
            elif process.first("left"):
                sys.exit(1)
            else:
                process.ready()

        def run(request, name):
            if process.first("died"):
                sys.exit(1)
        """)
    assert outcome(node, "Good") == "answered"
    assert ready(node) == 1


def test_a_node_that_closes_does_not_wait_for_another_attempt(
    play: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retries, "RESTART_S", (0.0, 1000.0))
    node = play("""
        def opened():
            process.ready() if process.first("begun") else process.unavailable()

        def run(request, name):
            sys.exit(1)
        """)
    with ThreadPoolExecutor(1) as pool:
        call = pool.submit(outcome, node, "Good")
        wait_until(lambda: executor_of(node).engine.failed_starts, DEADLINE_S)
        closing = threading.Thread(target=node.close)
        closing.start()
        closing.join(DEADLINE_S)
        assert not closing.is_alive()
        assert call.result(DEADLINE_S) == "Cancelled"


def test_one_start_that_the_system_refuses_ends_no_engine(
    play: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = play("""
        def opened():
            process.ready()

        def run(request, name):
            if process.first("died"):
                sys.exit(1)
        """)
    wait_ready(node)
    refusals = [OSError(24, "too many open files")]
    spawned = Processes._spawned

    def refused_once(self: Processes) -> Process:
        if refusals:
            raise refusals.pop()
        return spawned(self)

    monkeypatch.setattr(Processes, "_spawned", refused_once)
    assert outcome(node, "Good") == "answered"
    assert not refusals


def test_an_engine_that_was_given_up_comes_back_when_it_can(
    play: Play, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retries, "RESTART_S", (0.0,))
    monkeypatch.setattr(retries, "UNAVAILABLE_RESTART_S", 0.05)
    node = play("""
        def opened():
            if not process.first("opened") and not (folder / "go").exists():
                process.unavailable()
            process.ready()

        def run(request, name):
            if process.first("died"):
                sys.exit(1)
        """)
    wait_ready(node)
    assert outcome(node, "Good").startswith("BackendUnavailable")
    executor = executor_of(node)
    wait_until(lambda: executor.engine.phase is EnginePhase.UNAVAILABLE, DEADLINE_S)
    before = executor._processes.starts
    while executor._processes.starts < before + 4:  # and meanwhile calls are told why
        assert outcome(node, "Good").startswith("BackendUnavailable")
    (tmp_path / "go").touch()
    wait_ready(node)
    assert outcome(node, "Good") == "answered"


def test_no_call_waits_for_a_worker_that_never_comes(tmp_path: Path, play: Play) -> None:
    node = play("""
        def opened():
            if worker and not process.first("first worker"):
                process.wait_for("go")
                process.unavailable()
            process.ready(workers=2)

        def run(request, name):
            process.note("ran", "worker" if worker else "sequential")
        """)
    wait_until(lambda: len(executors_of(node)) == 3 and ready(node) == 2, DEADLINE_S)
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(lambda _: outcome(node, "Good"), range(4))) == ["answered"] * 4
        ran = (tmp_path / "ran").read_text().split()
        assert ran == ["worker"] * 4, "the other worker takes them"
        (tmp_path / "go").touch()
        engines = [executor.engine for executor in executors_of(node)]
        wait_until(lambda: any(e.phase is EnginePhase.UNAVAILABLE for e in engines), DEADLINE_S)
        assert list(pool.map(lambda _: outcome(node, "Good"), range(4))) == ["answered"] * 4
    assert ready(node) == 2


def test_all_that_waits_for_an_engine_that_never_comes_is_told(tmp_path: Path, play: Play) -> None:
    node = play("""
        def opened():
            process.wait_for("go")
            process.unavailable()
        """)
    node.register("composition Both(a) => (b) { Good(a = each a) => (b = b); }")
    with ThreadPoolExecutor(3) as pool:
        calls = [pool.submit(outcome, node, "Both", [b"1", b"2"])]
        wait_until(lambda: node.info().waiting == 2, DEADLINE_S)
        calls += [pool.submit(outcome, node, "Good") for _ in range(2)]
        wait_until(lambda: node.info().waiting == 4, DEADLINE_S)
        (tmp_path / "go").touch()
        both, *good = [call.result() for call in calls]
        assert (both, good) == ("ApplicationFailed", ["BackendUnavailable"] * 2)
