"""How engines come back: from devices that are slow to let go, and from starts that fail.

Engine processes are replaced by a program that plays one. What differs from test to test is what it
does as it opens its engine and when it runs a call; files in a folder tell it when to go on.
"""

import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from socket import socketpair
from types import SimpleNamespace

import pytest
from dandelion.node.hosts import State, Work
from dandelion.node.process_host import ProcessHost
from dandelion.node.processes import Process, Processes

from dandelion.documents import CodeDocument, FunctionDocument
from dandelion.driver import Demand, Hosting, Sharing
from dandelion.engine_process.messages import reply_channel
from dandelion.errors import DandelionError
from dandelion.function import Limits
from dandelion.memory import SharedDomain
from dandelion.node import Node, Settings, processes, remote, thread_host
from dandelion.testing import Script, ScriptedDriver

LIMIT_S = 20.0
"""How long anything may take that is about to happen."""
ARENA_BYTES = 1 << 20
PROGRAM = """#!{python}
import fcntl, os, socket, sys, time
sys.path.insert(0, {root!r})
from pathlib import Path
from dandelion.engine_process.messages import *
from dandelion.errors import BackendUnavailable, EngineDied, Faulted

node = request_channel(socket.socket(fileno=int(sys.argv[3])))
folder = Path({folder!r})
worker = "WORKER" in os.environ

def first(name):  # of all processes
    try:
        (folder / name).touch(exist_ok=False)
    except FileExistsError:
        return False
    return True

def wait_for(name):
    while not (folder / name).exists():
        time.sleep(0.005)

def ready(workers=0, spare=False):
    workers = 0 if worker else workers
    node.send(Ready("played", "played:0", ("0",), "played", workers=workers, standby=spare))

def unavailable():
    node.send(Failed(-1, BackendUnavailable("played", "no room").record()))
    sys.exit(1)

def failed(request, error):  # and the engine with it
    node.send(Failed(request.call, error.record(), {{}}, True))
    sys.exit(0)

{body}
names = {{}}
try:
    while not isinstance(node.receive(), Open):
        pass
    opened()
    while True:
        request = node.receive()
        if isinstance(request, Load):
            names[request.identity] = request.spec.name
        elif isinstance(request, Run):
            run(request, names[request.identity])
            node.send(Done(request.call, (None,), {{}}))
except (Ended, OSError):
    sys.exit(0)
"""


def played(demand: Demand) -> ScriptedDriver:
    """A backend whose engine process is replaced."""
    sharing = Sharing({"WORKER": "1"}, concurrent=True, shared_fault_domain=True)
    script = Script(demand=lambda function, inputs: demand, share=lambda resource: sharing)
    return ScriptedDriver("played", script, Hosting.PROCESS)


@pytest.fixture
def play(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Node]]:
    """Give what makes a node whose engine processes do what a text says."""
    nodes = ExitStack()

    def made(body: str, engines: int = 1, device_bytes: int = 0, output_bytes: int = 1) -> Node:
        program = tmp_path / "python"
        root, folder = str(Path(__file__).parents[2]), str(tmp_path)
        body = textwrap.dedent(body)
        program.write_text(
            PROGRAM.format(python=sys.executable, root=root, folder=folder, body=body)
        )
        program.chmod(0o700)
        monkeypatch.setattr(processes, "sys", SimpleNamespace(executable=str(program)))
        driver = played(Demand(output_bytes=output_bytes, device_bytes=device_bytes))
        monkeypatch.setattr("dandelion.node.engines.load_driver", lambda name: driver)
        node = Node(Settings(backends=(), arena_bytes=ARENA_BYTES), [driver] * engines)
        nodes.enter_context(node)
        for name in ("Good", "Bad", "Slow"):
            code = (CodeDocument("played"),)
            node.register(FunctionDocument(name, ("a",), ("b",), code=code, limits=Limits(60)))
        return node

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
    """Have something happen whenever somebody begins to wait for processes that end."""
    wait_for_ends = Processes.wait_for_ends

    def waiting(self: Processes, limit_s: float) -> None:
        event()
        wait_for_ends(self, limit_s)

    monkeypatch.setattr(Processes, "wait_for_ends", waiting)


def outcome(node: Node, name: str, value: object = b"1") -> str:
    """Run a function; gives the name of the error, or "answered"."""
    try:
        node.invoke(name, a=value, deadline_s=LIMIT_S)
    except DandelionError as error:
        return type(error).__name__
    return "answered"


def happens(condition: Callable[[], object]) -> bool:
    """Wait for something that is about to happen. False if it did not."""
    end_s = time.monotonic() + LIMIT_S
    while not condition():
        if time.monotonic() > end_s:
            return False
        time.sleep(0.002)
    return True


def hosts_of(node: Node) -> list[ProcessHost]:
    return [host for host in node._pump.hosts if isinstance(host, ProcessHost)]


def ready(node: Node) -> int:
    """Tell how many engines are up."""
    return sum(host.state is State.READY for host in hosts_of(node))


def children(node: Node) -> list[int]:
    """Give the processes of engines that are up, by their ids."""
    found = [host._remote._processes.current for host in hosts_of(node)]
    return [process.child.pid for process in found if process is not None]


def behind(host: ProcessHost) -> list[Work]:
    """Give the calls that wait for the thread of a host, or that it is at."""
    return [work for work in tuple(host._slow) if work is not None]


def let_pass(host: ProcessHost) -> None:
    """Make it as late for these calls as if each had spent its limit."""
    for work in behind(host):
        work.call.deadline_ns = time.monotonic_ns()


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
    global born
    born = generation() if worker else 0
    for number in range(born):
        try:
            joined(number, fcntl.LOCK_EX | (fcntl.LOCK_NB if REFUSES else 0)).close()
        except BlockingIOError:
            unavailable()
    if worker:
        clients.append(joined(born, fcntl.LOCK_SH))
    ready(workers=3)

def run(request, name):
    if worker and generation() != born:
        failed(request, Faulted(name, "illegal address"))
    if name == "Bad":
        if worker:
            with open(folder / "broken", "a") as file:
                file.write("x")
        failed(request, Faulted(name, "illegal address"))
"""


@pytest.mark.parametrize("refuses", [False, True], ids=["waits", "refuses"])
def test_a_device_server_that_is_broken_gets_rid_of_all_its_clients(
    refuses: bool, tmp_path: Path, play: Callable[..., Node]
) -> None:
    """It has no new ones before the last of those that a fault broke is gone: idle ones go, too."""
    (tmp_path / "broken").touch()
    node = play(SHARED.format(refuses=refuses))
    assert happens(lambda: ready(node) == 4)
    before = set(children(node))
    assert outcome(node, "Bad") == "Faulted"
    assert happens(lambda: ready(node) == 4)
    assert before.isdisjoint(children(node))
    with ThreadPoolExecutor(4) as pool:
        assert set(pool.map(lambda _: outcome(node, "Good"), range(12))) == {"answered"}


def test_an_engine_that_worked_is_started_again_until_that_works(
    play: Callable[..., Node],
) -> None:
    node = play("""
        def opened():
            if first("begun"):
                ready()
            elif first("refused") or first("refused again"):
                unavailable()
            elif first("left"):
                sys.exit(1)
            else:
                ready()

        def run(request, name):
            if first("died"):
                sys.exit(1)
        """)
    assert outcome(node, "Good") == "answered"
    assert ready(node) == 1


def test_a_node_that_closes_does_not_wait_for_another_attempt(
    play: Callable[..., Node], monkeypatch: pytest.MonkeyPatch
) -> None:
    pausing = threading.Event()
    pause = Processes.pause

    def noted(self: Processes, limit_s: float) -> bool:
        if limit_s == 1000.0:
            pausing.set()
        return pause(self, limit_s)

    monkeypatch.setattr("dandelion.node.remote.RETRY_S", (1000.0,))
    monkeypatch.setattr(Processes, "pause", noted)
    node = play("""
        def opened():
            ready() if first("begun") else unavailable()

        def run(request, name):
            sys.exit(1)
        """)
    with ThreadPoolExecutor(1) as pool:
        call = pool.submit(outcome, node, "Good")
        assert pausing.wait(LIMIT_S)
        closing = threading.Thread(target=node.close)
        closing.start()
        closing.join(LIMIT_S)
        assert not closing.is_alive()
        assert call.result(LIMIT_S) == "Cancelled"


def test_one_start_that_the_system_refuses_ends_no_engine(
    play: Callable[..., Node], monkeypatch: pytest.MonkeyPatch
) -> None:
    node = play("""
        def opened():
            ready()

        def run(request, name):
            if first("died"):
                sys.exit(1)
        """)
    assert happens(lambda: ready(node) == 1)
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
    play: Callable[..., Node], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote, "RETRY_S", (0.01,))
    monkeypatch.setattr(thread_host, "RENEW_S", 0.05)
    node = play("""
        def opened():
            if not first("opened") and not (folder / "go").exists():
                unavailable()
            ready()

        def run(request, name):
            if first("died"):
                sys.exit(1)
        """)
    assert happens(lambda: ready(node) == 1)
    assert outcome(node, "Good").startswith("BackendUnavailable")
    [host] = hosts_of(node)
    assert happens(lambda: host.state is State.UNAVAILABLE)
    before = host._remote._processes.starts
    while host._remote._processes.starts < before + 4:  # and meanwhile calls are told why
        assert outcome(node, "Good").startswith("BackendUnavailable")
    (tmp_path / "go").touch()
    assert happens(lambda: ready(node) == 1)
    assert outcome(node, "Good") == "answered"


# --- engines that turn out not to work ---------------------------------------------------------


def test_what_waited_for_a_worker_that_never_comes_goes_to_the_others(
    tmp_path: Path, play: Callable[..., Node]
) -> None:
    node = play("""
        def opened():
            if worker and not first("first worker"):
                wait_for("go")
                unavailable()
            ready(workers=2)

        def run(request, name):
            if name == "Slow":
                (folder / "running").touch()
                wait_for("end")
        """)
    assert happens(lambda: len(hosts_of(node)) == 3 and ready(node) == 2)
    with ThreadPoolExecutor(4) as pool:
        slow = pool.submit(outcome, node, "Slow")
        try:
            assert happens((tmp_path / "running").exists)
            good = [pool.submit(outcome, node, "Good") for _ in range(3)]
            assert happens(lambda: node._pump.waiting == 3)
            (tmp_path / "go").touch()
            assert [call.result() for call in good] == ["answered"] * 3
            assert not slow.done()
        finally:
            (tmp_path / "end").touch()
        assert slow.result() == "answered"


def test_all_that_waits_for_an_engine_that_never_comes_is_told(
    tmp_path: Path, play: Callable[..., Node]
) -> None:
    node = play("""
        def opened():
            wait_for("go")
            unavailable()
        """)
    node.register("composition Both(a) => (b) { Good(a = each a) => (b = b); }")
    with ThreadPoolExecutor(3) as pool:
        calls = [pool.submit(outcome, node, "Both", [b"1", b"2"])]
        assert happens(lambda: node._pump.waiting == 2)
        calls += [pool.submit(outcome, node, "Good") for _ in range(2)]
        assert happens(lambda: node._pump.waiting == 4)
        (tmp_path / "go").touch()
        both, *good = [call.result() for call in calls]
        assert (both, good) == ("ApplicationFailed", ["BackendUnavailable"] * 2)


# --- processes that are slow to go -------------------------------------------------------------

DYING = """
def opened():
    ready(spare=True)

def run(request, name):
    if name == "Bad":
        failed(request, Faulted(name, "illegal address"))
    if name == "Good" and first("died"):
        failed(request, EngineDied("played:0", "memory error"))
    if name == "Slow":
        time.sleep(0.5)  # longer than any grace
"""


def test_waiting_for_the_memory_of_others_is_no_time_of_a_call(
    play: Callable[..., Node], gone: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = play(DYING, device_bytes=1 << 30)
    assert outcome(node, "Bad") == "Faulted"
    [host] = hosts_of(node)
    assert happens(lambda: host.state is State.READY)
    assert host._remote._processes.ending

    def late() -> None:
        let_pass(host)
        gone.set()

    on_waiting(monkeypatch, late)
    assert outcome(node, "Slow") == "answered"
    assert gone.is_set()


def test_a_result_waits_for_the_memory_of_a_process_that_ends(
    play: Callable[..., Node], gone: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Run again, a call finds what its first attempt was to fill still kept for the device."""
    node = play(DYING, output_bytes=ARENA_BYTES * 6 // 10)
    on_waiting(monkeypatch, gone.set)
    assert outcome(node, "Good") == "answered"
    assert gone.is_set()


def test_nobody_waits_for_processes_that_were_abandoned(gone: threading.Event) -> None:
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
        waiting.join(LIMIT_S)
        assert not waiting.is_alive()
        gone.set()
    ending.close()
    arena.close()


# --- calls that did not get far ----------------------------------------------------------------


def test_waiting_for_the_thread_of_an_engine_is_no_time_of_a_call(
    tmp_path: Path, play: Callable[..., Node]
) -> None:
    node = play("""
        def opened():
            ready()

        def run(request, name):
            if (folder / "hold").exists():
                wait_for("go")
            if name == "Slow":
                time.sleep(0.5)  # longer than any grace
        """)
    assert outcome(node, "Good") == "answered"
    [host] = hosts_of(node)
    host._mean_ns = 1e5  # so that one may wait while another runs
    (tmp_path / "hold").touch()
    with ThreadPoolExecutor(2) as pool:
        good = pool.submit(outcome, node, "Good")
        assert happens(lambda: host.busy == 1)
        slow = pool.submit(outcome, node, "Slow")
        assert happens(lambda: behind(host))
        let_pass(host)
        (tmp_path / "go").touch()
        assert (good.result(), slow.result()) == ("answered", "answered")


def test_a_call_is_not_blamed_for_processes_that_it_never_came_to(
    play: Callable[..., Node],
) -> None:
    node = play(
        """
        def opened():
            ready()

        def run(request, name):
            pass
        """,
        engines=2,
    )
    assert happens(lambda: ready(node) == 2)
    for pid in children(node):
        os.kill(pid, signal.SIGKILL)
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    assert outcome(node, "Good") == "answered"  # a function that none of them had
    assert happens(lambda: ready(node) == 2)
