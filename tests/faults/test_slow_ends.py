"""Engine processes that are slow to end, and calls that did not get far."""

import subprocess
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from socket import socketpair

import pytest

from dandelion.engine_process.messages import reply_channel
from dandelion.executors import processes
from dandelion.executors.processes import Process, Processes
from dandelion.memory import SharedDomain
from dandelion.node import Node
from dandelion.testing import (
    wait_until,
)
from tests.faults.played_nodes import ARENA_BYTES, Play, given_play
from tests.played_nodes import (
    DEADLINE_S,
    children,
    executor_of,
    kill,
    outcome,
    register,
    wait_ready,
)

play = pytest.fixture()(given_play)


@pytest.fixture
def gone(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """Have the device hold what ended processes had until this is set."""
    gone = threading.Event()

    def run(reaper: processes._Reaper) -> None:
        reaper._child.wait()
        gone.wait()
        reaper._keep = None

    monkeypatch.setattr(processes._Reaper, "run", run)
    yield gone
    gone.set()


def on_waiting(monkeypatch: pytest.MonkeyPatch, event: Callable[[], None]) -> None:
    """Call a function whenever a thread begins to wait for processes that end."""
    wait_for_ends = Processes.wait_for_ends

    def waiting(self: Processes, limit_s: float) -> None:
        event()
        wait_for_ends(self, limit_s)

    monkeypatch.setattr(Processes, "wait_for_ends", waiting)


def let_pass(node: Node) -> None:
    """Make it as late for calls that wait in the process as if each had spent its limit."""
    for sent in list(executor_of(node)._out)[1:]:
        sent.deadline_ns = 1


DYING = """
def opened():
    process.ready(standby=True)

def run(request, name):
    if name == "Bad":
        process.fail(request, Faulted(name, "illegal address"), fatal=True)
    if name == "Good" and process.first("died"):
        process.fail(request, EngineDied("played:0", "memory error"), fatal=True)
    if name == "Slow":
        time.sleep(0.5)  # longer than any grace
"""


def test_waiting_for_the_memory_of_others_is_no_time_of_a_call(
    play: Play, gone: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = play(DYING, device_bytes=1 << 30)
    register(node, "Slow", wall_s=2.0)
    assert outcome(node, "Bad") == "Faulted"
    wait_ready(node)
    assert executor_of(node)._processes.ending

    def late() -> None:
        gone.wait(2.0)
        gone.set()

    on_waiting(monkeypatch, late)
    assert outcome(node, "Slow") == "answered"
    assert gone.is_set()


def test_a_result_waits_for_the_memory_of_a_process_that_ends(
    play: Play, gone: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Run again, a call finds what its first attempt was to fill still kept for the device."""
    node = play(DYING, output_bytes=ARENA_BYTES * 6 // 10)
    on_waiting(monkeypatch, gone.set)
    assert outcome(node, "Good") == "answered"
    assert gone.is_set()


def test_no_thread_waits_for_processes_that_were_abandoned(gone: threading.Event) -> None:
    arena = SharedDomain(ARENA_BYTES)
    ours, theirs = socketpair()
    ending = Processes((), "", {}, {}, arena.map, 0)
    with theirs:
        child = subprocess.Popen(["sleep", "1000"])
        ending.end(Process(child, reply_channel(ours)))
        waiting = threading.Thread(target=ending.wait_for_ends, args=(1000.0,))
        waiting.start()
        assert ending.ending
        ending.abandon()
        waiting.join(DEADLINE_S)
        assert not waiting.is_alive()
        gone.set()
    ending.close()
    arena.close()


def test_waiting_for_the_thread_of_an_engine_is_no_time_of_a_call(
    tmp_path: Path, play: Play
) -> None:
    node = play("""
        def opened():
            process.ready()

        def run(request, name):
            if (folder / "hold").exists():
                process.wait_for("go")
            if name == "Slow":
                time.sleep(0.5)  # longer than any grace
        """)
    assert outcome(node, "Good") == outcome(node, "Slow") == "answered"
    executor = executor_of(node)
    executor.engine.mean_ns = 1e5  # so that one may wait while another runs
    (tmp_path / "hold").touch()
    with ThreadPoolExecutor(2) as pool:
        good = pool.submit(outcome, node, "Good")
        wait_until(lambda: len(executor._out) == 1)
        slow = pool.submit(outcome, node, "Slow")
        wait_until(lambda: len(executor._out) == 2)
        let_pass(node)
        (tmp_path / "go").touch()
        assert (good.result(), slow.result()) == ("answered", "answered")


def test_a_call_is_not_blamed_for_processes_that_it_never_came_to(
    play: Play,
) -> None:
    node = play(
        """
        def opened():
            process.ready()

        def run(request, name):
            pass
        """,
        engines=2,
    )
    wait_ready(node, 2)
    for pid in children(node):
        kill(pid)
    assert outcome(node, "Good") == "answered"  # a function that none of them had
    wait_ready(node, 2)


@pytest.mark.parametrize(("always", "expected"), [(False, "answered"), (True, "Faulted")])
def test_a_call_that_was_being_planned_is_planned_again(
    always: bool, expected: str, play: Play
) -> None:
    node = play(f"""
        def demand(name, inputs):
            if {always} and name == "Bad" or process.first("died"):
                sys.exit(1)
            return Demand(1)

        process.demand = demand

        def opened():
            process.ready()

        def run(request, name):
            pass
        """)
    assert outcome(node, "Good") == "answered"
    assert outcome(node, "Bad") == expected
    assert outcome(node, "Good") == "answered"
