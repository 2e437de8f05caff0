"""Nodes with scripted engine processes, and checks of what such a node has left at the end."""

from __future__ import annotations

import contextlib
import gc
import os
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from dandelion.documents import CodeDocument, Content, FunctionDocument
from dandelion.driver import Hosting
from dandelion.errors import DandelionError
from dandelion.executors import ProcessExecutor, processes
from dandelion.executors.staging import INLINE_COPY_BYTES
from dandelion.function import Limits
from dandelion.node import Node, Settings
from dandelion.scheduler.engine import EnginePhase
from dandelion.testing import FakeEngineProcess, ScriptedDriver, wait_until

DEADLINE_S = 20.0
"""Timeout of every wait."""


def played_driver(name: str = "played") -> ScriptedDriver:
    """A backend with scripted engine processes."""
    return ScriptedDriver(name, hosting=Hosting.PROCESS)


@contextmanager
def played_node(
    fake: FakeEngineProcess,
    settings: Settings | None = None,
    drivers: Sequence[ScriptedDriver] | None = None,
    names: Sequence[str] = ("F",),
    leaves_nothing: bool = True,
) -> Iterator[Node]:
    """Yield a node with scripted engine processes; afterwards it must be empty.

    Args:
        fake: what is started in place of engine processes.
        settings: of the node.
        drivers: of the node; by default one.
        names: of functions with one input set ``a`` and one output set ``b``.
        leaves_nothing: whether what was invoked has ended by itself when the test leaves.
    """
    settings = settings or Settings(backends=(), arena_bytes=1 << 20, spin_us=0)
    with (
        fake.replaces(processes),
        Node(settings, [played_driver()] if drivers is None else drivers) as node,
    ):
        for name in names:
            register(node, name)
        yield node
        if leaves_nothing:
            assert_idle(node)


def register(
    node: Node, name: str, code_format: str = "played", wall_s: float = 60.0, main: bytes = b""
) -> None:
    """Register a function with one input set ``a`` and one output set ``b``.

    The arena has room for the outputs of two calls.
    """
    code = (CodeDocument(code_format, Content(data=main)) if main else CodeDocument(code_format),)
    room = min(2 * INLINE_COPY_BYTES, 2 * node.arena.size_bytes // 5)
    limits = Limits(wall_s=wall_s, output_bytes=room)
    node.register(FunctionDocument(name, ("a",), ("b",), code=code, limits=limits))


def executors_of(node: Node) -> list[ProcessExecutor]:
    """Return the executors of a node that have engine processes."""
    found = list(node._runtime.executors.values())
    return [executor for executor in found if isinstance(executor, ProcessExecutor)]


def executor_of(node: Node) -> ProcessExecutor:
    """Return the executor of a node with one engine."""
    [executor] = executors_of(node)
    return executor


def ready(node: Node) -> int:
    """Return how many engines are up."""
    return sum(e.engine.phase is EnginePhase.READY for e in executors_of(node))


def wait_ready(node: Node, engines: int = 1) -> None:
    """Wait until this many engines are up."""
    wait_until(lambda: ready(node) == engines, DEADLINE_S)


def children(node: Node) -> list[int]:
    """Return the processes of engines that are up, by their ids."""
    found = [executor._processes.current for executor in executors_of(node)]
    return [process.child.pid for process in found if process is not None]


def standby(node: Node) -> int:
    """Return the id of the process that waits to replace the only engine's; 0 if there is none."""
    process = executor_of(node)._processes.standby
    return 0 if process is None else process.child.pid


def kill(pid: int) -> None:
    """Kill a child and wait until it is dead; its node reaps it."""
    os.kill(pid, signal.SIGKILL)
    with contextlib.suppress(ChildProcessError):  # already reaped by the node
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)


def outcome(node: Node, name: str = "F", value: object = b"1") -> str:
    """Run a function; return the name of the error, or "answered"."""
    try:
        node.invoke(name, a=value, deadline_s=DEADLINE_S)
    except DandelionError as error:
        return type(error).__name__
    return "answered"


def assert_idle(node: Node) -> None:
    """Assert that no invocation, no call and no memory of calls is left, only that of functions."""
    wait_until(lambda: not any(engine.busy for engine in node.engines()))
    info = node.info()
    assert (info.running, info.waiting) == (0, 0)
    for executor in executors_of(node):
        assert [*executor._waiting, *executor._out, *executor._plans] == []
        assert not executor._preparing
    gc.collect()
    wait_until(lambda: memory_of_calls(node) == 0)  # processes that end keep some


def memory_of_calls(node: Node) -> int:
    """Count the used bytes of the arena, except those of functions."""
    info = node.info()
    return info.arena.used_bytes - sum(info.functions_bytes.values())
