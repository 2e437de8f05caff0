"""A program: how much memory does a node take, alone and for what is registered?

It starts a node of one backend, registers many functions, removes them, and then registers,
invokes, makes fail and removes repeatedly. Memory is what no other process shares, of the node's
process and its children, after everything unused was returned. It carries out a `FootprintOrder`;
see `dandelion.bench.processes`.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import tempfile
import threading
import time

import msgspec

from dandelion.documents import CodeDocument, FunctionDocument
from dandelion.errors import DandelionError
from dandelion.function import FunctionSpec
from dandelion.node import Node

from ..process_facts import children, open_files, own_bytes, trimmed_bytes
from ..processes import program_main, run_program
from .echoes import GPU, echo
from .nodes import open_node

_LIMIT_S = 300.0
_STEADY = 5
"""Number of successive checks that have to find the same processes."""
_QUIET_S = 0.02
_CHECKS = 50
_SMI = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits", "--id=0"]


class FootprintOrder(msgspec.Struct, frozen=True):
    """Input.

    Attributes:
        kind: of the functions, see `echo`.
        backend: that runs them.
        functions: registered at once, each with its own code.
        cycles: of register, invoke, fail and remove that are measured.
        warm_up: cycles before.
    """

    kind: str
    backend: str
    functions: int
    cycles: int
    warm_up: int


class NodeState(msgspec.Struct, frozen=True):
    """What a node uses.

    Attributes:
        node_bytes, children_bytes: private memory of it and of its children.
        arena_bytes, contexts: of the arena.
        files, threads, children: how many it has.
        device_bytes: used memory of the first device, by any process; None if it is unknown.
    """

    node_bytes: int
    children_bytes: int
    arena_bytes: int
    contexts: int
    files: int
    threads: int
    children: int
    device_bytes: int | None = None


class Footprint(msgspec.Struct, frozen=True):
    """Output.

    Attributes:
        idle, registered: the node with nothing registered, and with everything.
        before, after: the cycles.
        failures: calls that failed as they should.
    """

    idle: NodeState | None = None
    registered: NodeState | None = None
    before: NodeState | None = None
    after: NodeState | None = None
    failures: int = 0
    missing: str = ""


def ask(order: FootprintOrder) -> Footprint:
    """Run the program. Raises as `run_program`."""
    return run_program("dandelion.bench.systems.footprint", order, Footprint, _LIMIT_S)


def _device_bytes(backend: str) -> int | None:
    if backend != "cuda":
        return None
    with contextlib.suppress(OSError, ValueError, IndexError, subprocess.SubprocessError):
        done = subprocess.run(_SMI, capture_output=True, text=True, timeout=20, check=True)
        return int(done.stdout.split()[0]) << 20
    return None


def _state(node: Node, backend: str = "") -> NodeState:
    """Measure, once nothing is running any more."""
    me = os.getpid()
    found, files = children(me), open_files(me)
    steady = 0
    for _ in range(_CHECKS):  # sandboxes that were used are being replaced, each with its files
        facts = node.info()
        last = len(found), files
        found, files = children(me), open_files(me)
        busy = facts.running or facts.arena.contexts
        steady = 0 if busy or (len(found), files) != last else steady + 1
        if steady == _STEADY:
            break
        time.sleep(_QUIET_S)
    return NodeState(
        trimmed_bytes(), sum(own_bytes(pid) for pid in found), facts.arena.used_bytes,
        facts.arena.contexts, files, threading.active_count(), len(found),
        _device_bytes(backend),
    )  # fmt: skip


def failing(kind: str, name: str) -> FunctionDocument:
    """Describe a function of which every call fails; a GPU function lacks its kernel."""
    good = echo(kind, name, fails=True)
    if kind != GPU:
        return good
    (code,) = good.code
    source = '#include "dandelion.h"\nKERNEL void other(GLOBAL u8 *y) { y[0] = 0; }\n'
    bad = CodeDocument(code.format, code.main, {"touch.c": source}, code.options)
    return msgspec.structs.replace(good, code=(bad,))


def _cycle(node: Node, kind: str) -> int:
    """Register, invoke, fail, remove; count the calls that failed."""
    node.register(echo(kind, "Good"), failing(kind, "Bad"))
    result = node.invoke("Good", x=b"hello")
    assert result.y.bytes()[:1] == b"h"
    del result
    failures = 0
    try:
        node.invoke("Bad", x=b"hello")
    except DandelionError:
        failures = 1
    node.remove(FunctionSpec, "Good")
    node.remove(FunctionSpec, "Bad")
    return failures


def measure(order: FootprintOrder) -> Footprint:
    """Measure in this process.

    Raises:
        DandelionError: the backend does not work here.
    """
    with tempfile.TemporaryDirectory(prefix="dandelion-footprint-") as folder:
        cached = order.backend in ("cuda", "hip")
        settings: dict[str, object] = {
            "backends": (order.backend,), "keep_traces": 16, "arena_bytes": 64 << 20,
            "engines": {} if order.kind == GPU else {order.backend: 1},
            "options": {order.backend: {"workers": "0", "cache": folder}} if cached else {},
        }  # fmt: skip
        with open_node(settings) as node:
            return _measure(order, node)


def _measure(order: FootprintOrder, node: Node) -> Footprint:
    failures = sum(_cycle(node, order.kind) for _ in range(3))  # starts what is started lazily
    idle = _state(node)
    for at in range(order.functions):  # GPU functions share a source, which is compiled once
        nonce = 0 if order.kind == GPU else at + 1
        node.register(echo(order.kind, f"F{at}", nonce, number=at + 1))
    registered = _state(node)
    for at in range(order.functions):
        node.remove(FunctionSpec, f"F{at}")
    failures += sum(_cycle(node, order.kind) for _ in range(order.warm_up))
    before = _state(node, order.backend)
    failures += sum(_cycle(node, order.kind) for _ in range(order.cycles))
    return Footprint(idle, registered, before, _state(node, order.backend), failures)


if __name__ == "__main__":
    program_main(FootprintOrder, measure, lambda missing: Footprint(missing=missing))
