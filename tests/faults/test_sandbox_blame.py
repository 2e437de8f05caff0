"""Which side is at fault when a sandbox ends before its reply, and how often the call is run."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest
from dandelion.backends.process.engine import ProcessEngine
from dandelion.backends.process.handle import Sandbox
from dandelion.backends.process.sandbox_pool import PLAIN

from dandelion.data import Sets
from dandelion.documents import RegistrationDocument, python_function
from dandelion.errors import Blame, DandelionError, Faulted, SandboxLost, TimedOut
from dandelion.executors import ThreadExecutor
from dandelion.function import Limits
from dandelion.node import Node, Settings
from tests.faults.background_calls import Background
from tests.python_functions import call_of, first, function, process_engine, run

WAIT = "import time\ndef f(x):\n    time.sleep(60)\n"
SPIN = """
import signal, resource
signal.signal(signal.SIGXCPU, signal.SIG_IGN)
def spin(x):
    while True: pass
"""


@pytest.fixture
def engine() -> Iterator[ProcessEngine]:
    with process_engine() as engine:
        yield engine


# --- the CPU limit -------------------------------------------------------------------------------


def test_the_kernels_cpu_limit_comes_after_the_engines(engine: ProcessEngine) -> None:
    fn = function(
        """
        import resource, time
        def f(x):
            soft, hard = resource.getrlimit(resource.RLIMIT_CPU)
            return {"y": f"{soft - time.process_time()} {hard - soft}"}
        """,
        cpu_s=3.0,
    )
    left_s, further_s = map(float, first(run(engine, fn, b"")).text().split())
    assert left_s >= 3 + 1
    assert further_s >= 1


@pytest.mark.parametrize(
    "body",
    [
        "signal.signal(signal.SIGXCPU, signal.SIG_IGN)",
        "pass",
        "resource.setrlimit(resource.RLIMIT_CPU, (1, 1))",
        "resource.setrlimit(resource.RLIMIT_CPU, (0, 0))",
    ],
)
def test_a_cpu_limit_that_the_kernel_enforces_is_one(engine: ProcessEngine, body: str) -> None:
    """What an engine that looks too late finds: the function can lower the kernel's own limit."""
    fn = function(
        f"""
        import resource, signal
        def f(x):
            _, hard = resource.getrlimit(resource.RLIMIT_CPU)
            resource.setrlimit(resource.RLIMIT_CPU, (1, 2))
            {body}
            while True: pass
        """,
        cpu_s=15.0,
    )
    with pytest.raises(TimedOut) as caught:
        run(engine, fn, b"")
    assert caught.value.what == "cpu"


# --- signals -------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGUSR1])
def test_signals_that_only_others_can_send(engine: ProcessEngine, number: signal.Signals) -> None:
    call = Background(engine, call_of(function(WAIT, cpu_s=0.05), b""))
    os.kill(call.sandbox.pid, number)
    error = call.join()
    assert isinstance(error, SandboxLost)
    assert error.blame is Blame.PLATFORM
    assert first(run(engine, function("def f(x):\n    return x\n"), b"1")).bytes() == b"1"


def test_a_zygote_that_is_killed(engine: ProcessEngine) -> None:
    call = Background(engine, call_of(function(WAIT), b""))
    with engine._pools.use(PLAIN) as pool:
        os.kill(pool.pid(), signal.SIGKILL)
    assert isinstance(call.join(), SandboxLost)


@pytest.mark.parametrize("name", ["SIGALRM", "SIGVTALRM", "SIGPROF"])
def test_signals_that_a_function_sends_itself(engine: ProcessEngine, name: str) -> None:
    which = {"SIGALRM": "REAL", "SIGVTALRM": "VIRTUAL", "SIGPROF": "PROF"}[name]
    fn = function(
        f"""
        import signal
        def f(x):
            signal.setitimer(signal.ITIMER_{which}, 0.01)
            while True: pass
        """
    )
    with pytest.raises(Faulted) as caught:
        run(engine, fn, b"")
    assert caught.value.fault == name


# --- how often a node runs it --------------------------------------------------------------------


@pytest.fixture
def node() -> Iterator[Node]:
    document = RegistrationDocument(
        functions=(
            python_function(
                SPIN,
                name="spin",
                inputs=["x"],
                outputs=["y"],
                limits=Limits(cpu_s=1.0, wall_s=30.0),
            ),
            python_function(
                WAIT, name="f", inputs=["x"], outputs=["y"], limits=Limits(wall_s=30.0)
            ),
        )
    )
    with Node(Settings(backends=("process",), engines={"process": 1})) as node:
        node.register(document)
        yield node


def attempts(node: Node, invocation: str) -> int:
    """How many calls of an invocation an engine ran."""
    trace = node.trace(invocation)
    assert trace is not None
    events: list[dict[str, Any]] = json.loads(trace)["traceEvents"]
    return sum(event.get("cat") == "process:0" for event in events)


def running(node: Node, after: int = 0) -> Sandbox:
    """Wait for the sandbox that runs a call, other than the one with process id `after`."""
    [executor] = node._runtime.executors.values()
    assert isinstance(executor, ThreadExecutor)
    while True:
        engine = executor._engine
        call = engine._running if isinstance(engine, ProcessEngine) else None
        sandbox = call.sandbox if call is not None else None
        if sandbox is not None and sandbox.pid != after:
            return sandbox


def test_a_call_that_uses_up_its_cpu_time_is_run_once(node: Node) -> None:
    with pytest.raises(TimedOut) as caught:
        node.invoke("spin", x=b"")
    assert caught.value.what == "cpu"
    assert attempts(node, caught.value.invocation) == 1


def test_a_call_whose_sandbox_is_killed_twice_is_not_the_functions_fault(node: Node) -> None:
    with ThreadPoolExecutor(1) as pool:
        call: Future[Sets] = pool.submit(node.invoke, "f", x=b"")
        killed = running(node)
        killed.kill()
        running(node, after=killed.pid).kill()
        error = call.exception()
    assert isinstance(error, SandboxLost)
    assert isinstance(error, DandelionError)
    assert error.status == 503
    assert attempts(node, error.invocation) == 2
