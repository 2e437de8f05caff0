"""Processes killed at every step: the call fails with the right blame, the next one works, and
nothing is left behind, neither processes nor descriptors nor memory."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing

import pytest
from dandelion.backends.process import zygote_start
from dandelion.backends.process.cores import ProcessDriver
from dandelion.backends.process.engine import ProcessEngine
from dandelion.backends.process.replacement import PAUSE_MS, QUIET_MS, SandboxReplacement

from dandelion.errors import EngineDied
from tests.faults.background_calls import ECHO, ROOT, SLEEP, Background, pool_of
from tests.processes import children_of, gone, kill, opened
from tests.python_functions import call_of, first, function, process_engine, run


@pytest.fixture
def engine() -> Iterator[ProcessEngine]:
    with process_engine() as engine:
        yield engine


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


_ZYGOTE = """
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

def forked():
    made.fork()
    pid = next(reversed(made._starting))
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    return pid

def reported():
    made._reap()
    try:
        data = node.recv(100, socket.MSG_DONTWAIT)
    except BlockingIOError:
        return "nothing"
    return type(msgspec.msgpack.decode(data, type=wire.FromZygote)).__name__

def replace(pid):
    node.send(zygote.REQUEST.pack(zygote.REPLACE, pid))
    made._handle_request()

def due():
    return made._replacement.due()
"""


_FORKS = """
for announced in (1, 0):
    forked()
    print(reported())
"""


_ENDED_IN_A_CALL = """
announced = 1
pid = forked()
made._reap()
limit = next(line for line in open(f"/proc/{pid}/limits") if line.startswith("Max cpu"))
print(limit.split()[3])
made._end_of(pid)
print(os.path.exists(f"/proc/{pid}"), made._end_of(pid).code)
used = forked()
made._replace(used)
os.waitid(os.P_PID, used, os.WEXITED | os.WNOWAIT)
made._reap()
print(os.path.exists(f"/proc/{used}"))
"""


_NAMED_TWICE = """
announced = 0
early = forked()
replace(early)
print(reported(), due() == early, due())
late = forked()
print(reported())
replace(late)
replace(late)
print(due() == late, due())
"""


_ENDING = """
import mmap, os
from dandelion.backends.process import wire

send, left = wire.send, mmap.mmap(-1, 1)
left[0] = 1

def send_or_end(channel, parts, files=()):
    if files and left[0]:  # only sandboxes send descriptors
        left[0] = 0
        os._exit(1)
    send(channel, parts, files)

wire.send = send_or_end
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
    with process_engine(ahead=1) as engine:  # a further call waits for a fork, unless it comes late
        found = [first(engine.run(call_of(tells, b""))).text() for _ in range(10)]
    assert found[0] == "True"
    assert "False" in found


def printed_by_zygote(steps: str) -> list[str]:
    command = [sys.executable, "-c", _ZYGOTE + steps]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=ROOT)
    assert done.stderr == ""
    return done.stdout.splitlines()


def test_a_sandbox_that_ends_before_it_is_ready_is_reported() -> None:
    assert printed_by_zygote(_FORKS) == ["nothing", "ForkFailed"]


def test_a_sandbox_that_ends_in_its_call_is_kept_until_its_engine_has_asked() -> None:
    """Its CPU limit, which only the kernel knows, tells whether the function was too slow."""
    unlimited, *rest = printed_by_zygote(_ENDED_IN_A_CALL)
    assert unlimited.isdigit() or unlimited == "unlimited"
    assert rest == ["False -9", "False"]


def test_a_sandbox_that_ends_as_it_gets_ready_is_replaced_once() -> None:
    found = printed_by_zygote(_NAMED_TWICE)
    assert found == ["nothing True None", "ForkFailed", "True None"]


def test_a_sandbox_that_ends_before_its_message_is_replaced(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ending = f"exec({_ENDING!r}, {{}});"
    boot = zygote_start._BOOT.replace("run(control", ending + "run(control")
    monkeypatch.setattr(zygote_start, "_BOOT", boot)
    with process_engine(ahead=1) as engine:
        for _ in range(2):
            assert first(run(engine, ECHO, b"1", left_s=20)).bytes() == b"1"


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
