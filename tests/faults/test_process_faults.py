"""Processes killed at every step: the call fails with the right blame, the next one works, and
nothing is left behind, neither processes nor descriptors nor memory."""

from __future__ import annotations

import gc
import os
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path

import pytest
from dandelion.backends.process import zygote_start
from dandelion.backends.process.cores import ProcessDriver
from dandelion.backends.process.engine import ProcessEngine
from dandelion.backends.process.handle import Sandbox
from dandelion.backends.process.replacement import PAUSE_MS, QUIET_MS, SandboxReplacement
from dandelion.backends.process.sandbox_pool import PLAIN, SandboxPool

from dandelion.driver import Call
from dandelion.errors import DandelionError, EngineDied, TimedOut
from dandelion.memory import SharedDomain
from dandelion.testing import Failing, Tracked
from tests.processes import children, children_of, command_of, gone, kill, opened
from tests.python_functions import call_of, first, function, process_engine, run

ECHO = function("def f(x):\n    return x\n")
SLEEP = function("import time\ndef f(x):\n    time.sleep(60)\n")
ROOT = Path(__file__).parent.parent.parent
ANSWERS_BETWEEN_KILLS = 5


def zygotes() -> list[int]:
    """Zygotes that any thread of this process started."""
    return [pid for pid in children() if b"process.zygote" in (command_of(pid) or b"")]


def pool_of(engine: ProcessEngine) -> SandboxPool:
    with engine._pools.use(PLAIN) as pool:
        return pool


@pytest.fixture
def engine() -> Iterator[ProcessEngine]:
    with process_engine() as engine:
        yield engine


class Background:
    """A call in a thread of its own; `sandbox` is the one that runs it."""

    def __init__(self, engine: ProcessEngine, call: Call) -> None:
        self.error: BaseException | None = None
        self._thread = threading.Thread(target=self._main, args=(engine, call))
        self._thread.start()
        self.sandbox = self._wait_for_sandbox(engine)

    def _main(self, engine: ProcessEngine, call: Call) -> None:
        try:
            engine.run(call)
        except DandelionError as error:
            self.error = error

    def _wait_for_sandbox(self, engine: ProcessEngine) -> Sandbox:
        while self._thread.is_alive():
            running = engine._running
            if running is not None and running.sandbox is not None:
                return running.sandbox
        raise AssertionError(f"the call ended at once: {self.error}")

    def join(self) -> BaseException | None:
        self._thread.join()
        return self.error


def test_a_sandbox_killed_during_its_call(engine: ProcessEngine) -> None:
    call = Background(engine, call_of(SLEEP, b""))
    os.kill(call.sandbox.pid, signal.SIGKILL)
    assert isinstance(call.join(), EngineDied)
    assert first(run(engine, ECHO, b"1")).bytes() == b"1"


def test_sandboxes_killed_while_they_wait(engine: ProcessEngine) -> None:
    run(engine, ECHO, b"")
    for _ in range(3):
        waiting = opened(children_of(pool_of(engine).pid()))
        kill(waiting)
        assert gone(waiting)
        assert first(run(engine, ECHO, b"1")).bytes() == b"1"


_FORKS = """
import mmap, os, socket, sys
import msgspec
from dandelion.backends.process import policy, sandbox, wire, zygote
from dandelion.confinement import seccomp
from dandelion.confinement.syscalls import native

node, control = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
started = mmap.mmap(-1, mmap.PAGESIZE)
filters = seccomp.Filter(native(), policy.POLICY)
context = sandbox.ForkContext(os.getpid(), control, filters, 0, started)

def end(context):
    context.started[context.place] = announced
    os.kill(os.getpid(), 9)

sandbox._start = end
made = zygote.Zygote(context, 1)
for announced in (1, 0):
    made.fork()
    assert os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOWAIT)
    made._reap()
    try:
        print(msgspec.msgpack.decode(node.recv(100, socket.MSG_DONTWAIT), type=wire.FromZygote))
    except BlockingIOError:
        print("nothing")
"""


STAYS = function("""
import sys

def f(x):
    wire = sys.modules["dandelion.backends.process.wire"]
    send = wire.send

    def send_and_go_on(channel, parts):
        send(channel, parts)
        while True:
            pass

    wire.send = send_and_go_on
    return x
""")


@pytest.mark.parametrize("ahead", [1, 4])
def test_a_sandbox_that_goes_on_after_its_reply_is_ended(ahead: int) -> None:
    with process_engine(ahead) as engine:
        used = []
        for _ in range(3):
            assert first(engine.run(call_of(STAYS, b"1"))).bytes() == b"1"
            assert engine._used is not None
            used.append(os.pidfd_open(engine._used.sandbox.pid))
            engine.clean_up()
        assert gone(used)
        assert first(run(engine, ECHO, b"2")).bytes() == b"2"


def test_replacement_waits_for_a_pause_until_calls_wait_for_it() -> None:
    replacement = SandboxReplacement(2)
    assert replacement.wait_ms() is None
    replacement.request(7)
    assert replacement.wait_ms() == QUIET_MS
    assert replacement.due() == 7
    assert replacement.wait_ms() is None
    for pid in (8, 9):
        replacement.request(pid)
    assert replacement.urgent
    assert not replacement.awaited  # so what is forked now warms up while other calls run
    for pid in (8, 9):
        assert replacement.wait_ms() == 0
        assert replacement.due() == pid
    assert replacement.wait_ms() == PAUSE_MS
    replacement.request(10)
    assert replacement.wait_ms() == 0
    assert replacement.due() == 10
    assert replacement.due() is None
    assert not replacement.urgent
    replacement.request(11)
    assert replacement.wait_ms() == QUIET_MS
    replacement.mark_urgent()
    assert replacement.wait_ms() == 0
    assert replacement.awaited


def test_a_call_that_finds_no_sandbox_does_not_wait_for_a_pause(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    quiet = "from dandelion.backends.process import replacement; replacement.QUIET_MS = 60_000;"
    boot = zygote_start._BOOT.replace("run(control", quiet + "run(control")
    monkeypatch.setattr(zygote_start, "_BOOT", boot)
    driver = ProcessDriver(ahead=2)
    with (
        closing(driver.factory().engine("0")) as idle,
        closing(driver.factory().engine("0")) as busy,
    ):
        run(idle, ECHO, b"1", left_s=20)  # it now has one of the two ready
        for _ in range(3):
            assert first(run(busy, ECHO, b"2", left_s=20)).bytes() == b"2"


def test_a_sandbox_that_a_call_waits_for_does_not_warm_up(monkeypatch: pytest.MonkeyPatch) -> None:
    noting = (
        "from dandelion.backends.process import sandbox; warm = sandbox.warm_up; sandbox.warm = [];"
        "sandbox.warm_up = lambda *ends: sandbox.warm.append(os.getpid()) or warm(*ends);"
    )
    boot = zygote_start._BOOT.replace("run(control", noting + "run(control")
    monkeypatch.setattr(zygote_start, "_BOOT", boot)
    tells = function("""
        import os, sys

        def f(x):
            return str(os.getpid() in sys.modules["dandelion.backends.process.sandbox"].warm)
        """)
    with process_engine(ahead=1) as engine:  # each further call waits until one is forked
        found = [first(engine.run(call_of(tells, b""))).text() for _ in range(3)]
    assert found == ["True", "False", "False"]


def test_a_sandbox_that_ends_before_it_is_ready_is_reported() -> None:
    done = subprocess.run(
        [sys.executable, "-c", _FORKS], capture_output=True, text=True, timeout=60, cwd=ROOT
    )
    assert done.stderr == ""
    assert [line.split("(")[0] for line in done.stdout.splitlines()] == ["nothing", "ForkFailed"]


@pytest.mark.parametrize("after_s", [0.0, 0.2])
def test_no_call_waits_where_all_forks_fail(
    after_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    ending = (
        "from dandelion.backends.process import sandbox;"
        f"import time; sandbox._start = lambda context: time.sleep({after_s}) or 1 / 0;"
    )
    monkeypatch.setattr(
        zygote_start, "_BOOT", zygote_start._BOOT.replace("run(control", ending + "run(control")
    )
    with process_engine(ahead=1) as engine, pytest.raises(EngineDied):
        run(engine, ECHO, b"", left_s=50)


def calls_after_failed_forks(engine: ProcessEngine) -> int:
    """Kill sandboxes as early as we can see them; tell how many calls died of it."""
    home = pool_of(engine)
    zygote = home.pid()
    requested = home.ahead + 1
    os.kill(zygote, signal.SIGSTOP)
    for _ in range(requested):
        home.replace()
    known = set(children_of(zygote))
    os.kill(zygote, signal.SIGCONT)
    killed = died = 0
    while killed < 3:
        for pid in set(children_of(zygote)) - known:
            known.add(pid)
            os.kill(pid, signal.SIGKILL)
            killed += 1
    for _ in range(requested + 3):
        try:
            assert first(run(engine, ECHO, b"1", left_s=20)).bytes() == b"1"
        except EngineDied:  # we were late: it had said already that it waits
            died += 1
    assert died <= killed
    return died


def test_a_call_that_finds_a_failed_fork_gets_another(engine: ProcessEngine) -> None:
    run(engine, ECHO, b"")
    # On a busy machine we may be late, but not always.
    assert any(calls_after_failed_forks(engine) == 0 for _ in range(10))


def test_a_zygote_killed_during_a_call(engine: ProcessEngine) -> None:
    call = Background(engine, call_of(SLEEP, b""))
    zygote = pool_of(engine).pid()
    os.kill(zygote, signal.SIGKILL)
    assert isinstance(call.join(), EngineDied)
    assert first(run(engine, ECHO, b"1")).bytes() == b"1"
    assert pool_of(engine).pid() != zygote


def test_a_zygote_killed_between_calls(engine: ProcessEngine) -> None:
    for _ in range(3):
        assert first(run(engine, ECHO, b"1")).bytes() == b"1"
        pool = pool_of(engine)
        zygote = pool.pid()
        waiting = opened(children_of(zygote))
        os.kill(zygote, signal.SIGKILL)
        assert gone(waiting)
    assert first(run(engine, ECHO, b"1")).bytes() == b"1"


def test_a_stopped_zygote_costs_no_more_than_the_deadline(engine: ProcessEngine) -> None:
    run(engine, ECHO, b"")
    zygote = pool_of(engine).pid()
    os.kill(zygote, signal.SIGSTOP)
    try:
        with pytest.raises(TimedOut):
            for _ in range(10):
                run(engine, ECHO, b"", left_s=0.1)
    finally:
        os.kill(zygote, signal.SIGCONT)
    assert first(run(engine, ECHO, b"1")).bytes() == b"1"


def test_closing_during_a_call_ends_it() -> None:
    with process_engine() as engine:
        call = Background(engine, call_of(SLEEP, b""))
        pidfd = os.pidfd_open(call.sandbox.pid)
        engine.close()
        assert isinstance(call.join(), DandelionError)
        assert gone([pidfd])


def test_nothing_is_left_after_failures_of_all_kinds() -> None:
    sources = [
        "return x",
        "return bytes(1 << 17)",
        "raise KeyError",
        "import os; os._exit(1)",
        "import os; os.abort()",
        "open('/etc/passwd')",
        "return bytes(1 << 40)",
        "import os; os.write(3, b'no')",
        "import time; time.sleep(60)",
        "import json; return json",
    ]
    functions = [function(f"def f(x):\n    {s}\n", wall_s=0.05) for s in sources]
    domain = Tracked(SharedDomain(1 << 22))
    with process_engine():  # what Python opens once for all, is open now
        pass
    gc.collect()  # what other tests left to the collector would go meanwhile
    descriptors = set(os.listdir("/proc/self/fd"))
    threads = set(threading.enumerate())
    with process_engine() as engine:
        failed = 0
        for fn in functions * 3:
            for value in (b"small", bytes(100_000)):
                try:
                    run(engine, fn, value, domain=domain)
                except DandelionError:
                    failed += 1
        assert failed >= 2 * 3 * (len(sources) - 2)
        processes = opened(p for z in zygotes() for p in (z, *children_of(z)))
        assert processes
    assert gone(processes)
    assert zygotes() == []
    assert set(os.listdir("/proc/self/fd")) <= descriptors
    assert set(threading.enumerate()) <= threads
    assert domain.alive == []
    domain.close()


def test_a_domain_that_fails_loses_nothing(engine: ProcessEngine) -> None:
    domain = Failing(SharedDomain(1 << 22), after=1)
    large = function("def f(x):\n    return bytes(1 << 17)\n")
    run(engine, large, b"", domain=domain)
    for _ in range(3):
        with pytest.raises(DandelionError):
            run(engine, large, b"", domain=domain)
    assert domain.stats().contexts == 0
    domain.close()


_NODE = """
import sys
from tests.python_functions import *
with process_engine(ahead=3) as engine:
    run(engine, function("def f(x): return x"), b"")
    print("ready", flush=True)
    run(engine, function("def f(x):\\n    while True: pass\\n"), b"")
"""

_IMPORTING = """
import sys
sys.path.insert(0, sys.argv[1])
from tests.python_functions import *
with process_engine() as engine:
    print("ready", flush=True)
    run(engine, function("def f(x): pass", imports="endless"), b"")
"""


_STARTING = """
import os, signal, sys
from dandelion.backends.native import sandbox_pool as native
from dandelion.backends.process import sandbox_pool as process
if sys.argv[1] == "native":
    zygote = native._Zygote(-1).process.pid
else:
    zygote = process._Zygote(process.PLAIN, 1).process.pid
os.kill(zygote, signal.SIGSTOP)
print(zygote, flush=True)
signal.pause()
"""


@pytest.mark.parametrize("backend", ["process", "native"])
def test_a_zygote_stopped_as_it_starts_does_not_outlive_the_node(backend: str) -> None:
    command = [sys.executable, "-c", _STARTING, backend]
    with subprocess.Popen(command, stdout=subprocess.PIPE, cwd=ROOT) as node:
        assert node.stdout is not None
        pidfd = os.pidfd_open(int(node.stdout.readline()))
        node.kill()
        try:
            assert select.select([pidfd], [], [], 20)[0]
        finally:
            kill([pidfd])
            os.close(pidfd)


def test_nothing_outlives_a_killed_node() -> None:
    node = subprocess.Popen([sys.executable, "-c", _NODE], stdout=subprocess.PIPE, cwd=ROOT)
    with node:
        assert node.stdout is not None
        assert node.stdout.readline() == b"ready\n"
        zygotes = children_of(node.pid)
        assert len(zygotes) == 2  # one for calls, one for examining sources
        sandboxes = [pid for zygote in zygotes for pid in children_of(zygote)]
        assert len(sandboxes) >= 2
        descendants = [*zygotes, *sandboxes]
        pidfds = opened(descendants)
        node.kill()
        assert gone(pidfds)


def test_not_even_an_import_that_never_ends_outlives_a_killed_node(tmp_path: Path) -> None:
    started = tmp_path / "started"
    os.mkfifo(started)
    (tmp_path / "endless.py").write_text(
        f"import time\nopen({str(started)!r}).read()\nwhile True: time.sleep(1)\n"
    )
    command = [sys.executable, "-c", _IMPORTING, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, cwd=ROOT) as node:
        assert node.stdout is not None
        assert node.stdout.readline() == b"ready\n"
        with started.open("w"):  # opens when the import reads
            pidfds = opened(children_of(node.pid))
        assert len(pidfds) == 3  # of calls without imports, of those with, of sources
        node.kill()
        assert gone(pidfds)


def test_parallel_engines_with_kills_all_recover() -> None:
    errors: list[BaseException] = []
    answered = threading.Semaphore(0)
    kills = died = 0

    def work(engine: ProcessEngine) -> None:
        nonlocal died
        for number in range(25):
            value = str(number).encode()
            try:
                if first(run(engine, ECHO, value)).bytes() != value:
                    errors.append(AssertionError(number))
                answered.release()
            except EngineDied:
                died += 1  # allowed: a pure call would be run again
            except BaseException as error:
                errors.append(error)
        answered.release(ANSWERS_BETWEEN_KILLS)  # the last kill waits for no further ones

    with process_engine() as one:
        two = ProcessEngine("two", one._pools, one._programs, one._architecture)
        with closing(two):
            threads = [threading.Thread(target=work, args=(e,)) for e in (one, two)]
            for thread in threads:
                thread.start()
            while any(thread.is_alive() for thread in threads):
                for _ in range(ANSWERS_BETWEEN_KILLS):
                    answered.acquire(timeout=60.0)
                zygote = pool_of(one)._running().process
                doomed = opened([zygote.pid, *children_of(zygote.pid)])
                zygote.kill()  # safe though it may be reaped any time
                kills += 1
                assert gone(doomed)  # not before long, if there is much else to do
            assert errors == []
            assert kills > 3
            assert died < 25
            for engine in (one, two):
                with suppress(EngineDied):  # the last kill may have met the sandbox that waits
                    run(engine, ECHO, b"0")
                assert first(run(engine, ECHO, b"1")).bytes() == b"1"
