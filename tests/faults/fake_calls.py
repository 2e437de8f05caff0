"""A node with a fake engine process."""

from collections.abc import Iterator
from contextlib import contextmanager

from dandelion.node import Node, Settings
from dandelion.testing import FakeEngineProcess
from tests.played_nodes import (
    children,
    played_driver,
    played_node,
    wait_ready,
)

SCRIPT = """
import os, signal, time
from dandelion.errors import EngineDied, InvalidInput

process.opened()
process.ready(standby=True)
for call in process.calls():
    data = bytes(call.inputs[0].items[0].data)
    kind = data[:1]
    if kind == b"K":
        os.kill(os.getpid(), signal.SIGKILL)
    if kind == b"S":
        os.kill(os.getpid(), signal.SIGSTOP)
    if kind == b"W":
        time.sleep(0.3)
    if kind == b"F":
        process.fail(call, EngineDied("played:0", "as told"), fatal=True)
    if kind == b"E":
        process.fail(call, InvalidInput("a", "no"))
        continue
    process.answer(call, data)
    if kind == b"A":
        break
"""


@contextmanager
def running(fake: FakeEngineProcess, spin_us: int = 0, engines: int = 1) -> Iterator[Node]:
    """Give a node; what was asked of it must leave nothing."""
    settings = Settings(
        backends=(),
        arena_bytes=64 << 20,
        spin_us=spin_us,
        engine_spin_us=spin_us,
        max_wall_s=1e9,
    )
    drivers = [played_driver() for _ in range(engines)]
    with played_node(fake, settings, drivers) as node:
        wait_ready(node, engines)
        yield node


def child_of(node: Node) -> int:
    [child] = children(node)
    return child


def echoed(node: Node, data: bytes, name: str = "F", deadline_s: float = 20) -> bytes:
    return bytes(node.invoke(name, a=data, deadline_s=deadline_s).b.bytes())
