"""Native sandboxes killed at every step: the call fails with the right blame, the next one works,
and nothing is left behind, neither processes nor descriptors nor memory."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from dandelion.backends.native.engine import NativeEngine
from dandelion.backends.native.sandbox_pool import NativeSandbox

from dandelion.driver import Call
from dandelion.errors import (
    Cancelled,
    ContextFull,
    DandelionError,
    EngineDied,
    FunctionError,
    SandboxLost,
    TimedOut,
)
from dandelion.function import Function
from dandelion.memory import SharedDomain
from dandelion.testing import Failing, Tracked
from tests.native_functions import MIB, built, call_of, engine_of, first, function, run
from tests.processes import children, children_of, command_of, gone, kill, opened

ROOT = Path(__file__).parent.parent.parent


def echo() -> Function:
    return function(built("echo.c"))


def attempt() -> Function:
    return function(built("attempt.c"))


@pytest.fixture
def engine() -> Iterator[NativeEngine]:
    built("echo.c")
    with engine_of("native") as engine:
        assert isinstance(engine, NativeEngine)
        yield engine


def works(engine: NativeEngine) -> bool:
    return first(run(engine, echo(), b"1")).bytes() == b"1"


def zygotes() -> list[int]:
    """Zygotes that any thread of this process started: they have no command line any more."""
    return [pid for pid in children() if command_of(pid) == b""]


class Background:
    """A call in a thread of its own; `sandbox` is the one that runs it."""

    def __init__(self, engine: NativeEngine, call: Call) -> None:
        self.error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, args=(engine, call))
        self._thread.start()
        self.sandbox = self._wait_for_sandbox(engine)

    def _run(self, engine: NativeEngine, call: Call) -> None:
        try:
            engine.run(call)
        except DandelionError as error:
            self.error = error
        engine.clean_up()

    def _wait_for_sandbox(self, engine: NativeEngine) -> NativeSandbox:
        while self._thread.is_alive():
            running = engine._running
            if running is not None and running.sandbox is not None:
                return running.sandbox
        raise AssertionError(f"the call ended at once: {self.error}")

    def join(self) -> BaseException | None:
        self._thread.join()
        return self.error


def test_a_sandbox_killed_during_its_call(engine: NativeEngine) -> None:
    call = Background(engine, call_of(attempt(), b"loop"))
    os.kill(call.sandbox.pid, signal.SIGKILL)
    assert isinstance(call.join(), SandboxLost)
    assert works(engine)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGALRM])
def test_other_signals_from_outside(engine: NativeEngine, number: signal.Signals) -> None:
    call = Background(engine, call_of(attempt(), b"loop"))
    os.kill(call.sandbox.pid, number)
    assert isinstance(call.join(), SandboxLost)
    assert works(engine)


def test_sandboxes_killed_while_they_wait(engine: NativeEngine) -> None:
    assert works(engine)
    for _ in range(3):
        waiting = opened(children_of(engine._pool.pid()))
        kill(waiting)
        assert gone(waiting)
        assert works(engine)


def test_a_zygote_killed_during_a_call(engine: NativeEngine) -> None:
    call = Background(engine, call_of(attempt(), b"loop"))
    zygote = engine._pool.pid()
    os.kill(zygote, signal.SIGKILL)
    assert isinstance(call.join(), SandboxLost)
    assert works(engine)
    assert engine._pool.pid() != zygote


def test_a_zygote_killed_between_calls(engine: NativeEngine) -> None:
    for _ in range(3):
        assert works(engine)
        zygote = engine._pool.pid()
        waiting = opened(children_of(zygote))
        os.kill(zygote, signal.SIGKILL)
        assert gone(waiting)
        assert works(engine)


def test_a_stopped_zygote_costs_no_more_than_the_deadline(engine: NativeEngine) -> None:
    assert works(engine)
    zygote = engine._pool.pid()
    os.kill(zygote, signal.SIGSTOP)
    try:
        with pytest.raises(TimedOut):
            for _ in range(10):
                run(engine, echo(), b"", left_s=0.1)
    finally:
        os.kill(zygote, signal.SIGCONT)
    assert works(engine)


def test_cancelling_ends_a_call(engine: NativeEngine) -> None:
    call = call_of(attempt(), b"loop")
    running = Background(engine, call)
    assert not engine.cancel(call.id + 1000)
    assert engine.cancel(call.id)
    assert isinstance(running.join(), Cancelled)
    assert not engine.cancel(call.id)
    assert works(engine)


def test_closing_during_a_call_ends_it(engine: NativeEngine) -> None:
    call = Background(engine, call_of(attempt(), b"loop"))
    pidfds = [os.pidfd_open(call.sandbox.pid), os.pidfd_open(engine._pool.pid())]
    engine.close()
    assert isinstance(call.join(), DandelionError)
    assert gone(pidfds)
    with pytest.raises(EngineDied):
        run(engine, echo(), b"")


def test_a_domain_that_fails_loses_nothing(engine: NativeEngine) -> None:
    domain = Failing(SharedDomain(4 * MIB), after=1)
    run(engine, echo(), bytes(1 << 17), domain=domain)
    for _ in range(3):
        with pytest.raises(ContextFull):
            run(engine, echo(), bytes(1 << 17), domain=domain)
    assert domain.stats().contexts == 0
    domain.close()


def test_nothing_is_left_after_ends_of_all_kinds() -> None:
    words = ["hello", "loop", "deep", "heap", "alloc", "ud2", "int3", "divide", "silent"]
    words += ["execute", "call", "items"]
    built("attempt.c")
    domain = Tracked(SharedDomain(4 * MIB))
    with engine_of("native"):  # what Python opens once for all, is open now
        pass
    gc.collect()  # what other tests left to the collector would go meanwhile
    descriptors = set(os.listdir("/proc/self/fd"))
    threads = set(threading.enumerate())
    with engine_of("native") as engine:
        failed = 0
        for word in words * 5:
            wall_s = 0.02 if word == "loop" else 10.0  # the others end by themselves
            hostile = function(built("attempt.c"), wall_s=wall_s, memory_bytes=16 * MIB)
            try:
                run(engine, hostile, word.encode(), domain=domain)
            except FunctionError:
                failed += 1
        assert failed == 5 * (len(words) - 2)
        found = zygotes()
        assert len(found) == 1
        sandboxes = children_of(found[0])
        assert len(sandboxes) <= 6  # those that wait, and one or two that are not reaped yet
        processes = opened([*found, *sandboxes])
    assert gone(processes)
    assert zygotes() == []
    assert set(os.listdir("/proc/self/fd")) <= descriptors
    assert set(threading.enumerate()) <= threads
    assert domain.alive == []
    domain.close()


def test_forgetting_a_function_closes_its_file(engine: NativeEngine) -> None:
    assert works(engine)
    gc.collect()
    before = files_of_functions()
    other = function(built("attempt.c"))
    run(engine, other, b"hello")
    assert files_of_functions() == before + 1
    engine.forget(other)
    assert files_of_functions() == before


def files_of_functions() -> int:
    """Count them among the descriptors; those of sandboxes come and go."""
    entries = Path("/proc/self/fd").iterdir()
    found = [os.readlink(entry) for entry in entries if entry.is_symlink()]
    return sum("dandelion-program" in name for name in found)


_NODE = """
from tests.native_functions import *
echo, attempt = built("echo.c"), built("attempt.c")  # no compiler runs beside the zygote
with engine_of("native") as engine:
    run(engine, function(echo), b"")
    print("ready", flush=True)
    run(engine, function(attempt), b"loop")
"""


@pytest.mark.parametrize("stopped", [False, True])
def test_nothing_outlives_a_killed_node(stopped: bool) -> None:
    built("echo.c")
    node = subprocess.Popen([sys.executable, "-c", _NODE], stdout=subprocess.PIPE, cwd=ROOT)
    with node:
        assert node.stdout is not None
        assert node.stdout.readline() == b"ready\n"
        [zygote] = [pid for pid in children_of(node.pid) if command_of(pid) == b""]
        descendants = [zygote, *children_of(zygote)]
        assert len(descendants) >= 2
        pidfds = opened(descendants)
        if stopped:  # it cannot notice that its control socket closes
            os.kill(zygote, signal.SIGSTOP)
        node.kill()
        assert gone(pidfds)
