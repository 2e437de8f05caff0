"""How engines come back: from devices that release memory slowly, and from starts that fail.

Engine processes are replaced by a program that plays one. What differs from test to test is what it
does as it opens its engine and when it runs a call; files in a folder tell it when to go on.
"""

import subprocess
import textwrap
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from socket import socketpair

import pytest

from dandelion.driver import Hosting, Sharing
from dandelion.engine_process.messages import reply_channel
from dandelion.executors import processes
from dandelion.executors.processes import Process, Processes
from dandelion.memory import SharedDomain
from dandelion.node import Node, Settings
from dandelion.scheduler import retries
from dandelion.scheduler.engine import EnginePhase
from dandelion.testing import (
    FakeEngineProcess,
    Script,
    ScriptedDriver,
    installed,
    wait_until,
)
from tests.played_nodes import (
    DEADLINE_S,
    children,
    executor_of,
    executors_of,
    kill,
    outcome,
    played_node,
    ready,
    register,
    wait_ready,
)

ARENA_BYTES = 1 << 20
SHARED_FAULTS = Sharing({"WORKER": "1"}, concurrent=True, shared_fault_domain=True)
PRELUDE = """
import fcntl, os, sys, time
from pathlib import Path
from dandelion.driver import Demand
from dandelion.errors import EngineDied, Faulted

folder = Path({folder!r})
worker = process.role == "worker"
process.demand = lambda name, inputs: Demand({output_bytes}, {device_bytes})
{body}
process.opened()
opened()
for call in process.calls():
    run(call, call.function)
    process.answer(call)
"""
Play = Callable[..., Node]


@pytest.fixture
def play(tmp_path: Path) -> Iterator[Play]:
    """Give what makes a node whose engine processes do what a text says."""
    nodes = ExitStack()

    def made(body: str, engines: int = 1, device_bytes: int = 0, output_bytes: int = 1) -> Node:
        text = PRELUDE.format(
            folder=str(tmp_path),
            body=textwrap.dedent(body),
            output_bytes=output_bytes,
            device_bytes=device_bytes,
        )
        driver = ScriptedDriver(
            "played", Script(share=lambda resource: SHARED_FAULTS), Hosting.PROCESS
        )
        backends = tmp_path / "backends"
        backends.mkdir()
        nodes.enter_context(installed(backends, driver))
        return nodes.enter_context(
            played_node(
                FakeEngineProcess(tmp_path, text),
                Settings(backends=(), arena_bytes=ARENA_BYTES, spin_us=0),
                [driver] * engines,
                ("Good", "Bad", "Slow"),
            )
        )

    with nodes:
        yield made


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


# --- starts that fail --------------------------------------------------------------------------

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


# --- engines that turn out not to work ---------------------------------------------------------


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


# --- processes that are slow to go -------------------------------------------------------------

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


# --- calls that did not get far ----------------------------------------------------------------


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
