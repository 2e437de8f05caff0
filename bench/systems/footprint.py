"""A program: how much memory does a node take, by itself and for what is registered?

It starts a node of one backend, registers many functions, removes them, and then registers,
invokes, makes fail and removes again and again. Memory is what nobody else shares, of the node's
process and of its children (engine processes, zygotes), after everything that can be given back was
given back. It answers a `FootprintOrder` with a `Footprint`, see `orders`.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
import threading
import time

import msgspec

from dandelion.documents import CodeDocument, FunctionDocument
from dandelion.errors import BackendUnavailable, DandelionError
from dandelion.function import FunctionSpec
from dandelion.node import Node, Settings

from ..processes import children, open_files, own_bytes, settled_bytes
from ..systems.echoes import GPU, echo
from . import orders

_LIMIT_S = 300.0
_STEADY = 5
"""How many checks in a row must find as many processes as before."""
_QUIET_S = 0.02
_CHECKS = 50
_SMI = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits", "--id=0"]


class FootprintOrder(msgspec.Struct, frozen=True):
    """What is measured.

    Attributes:
        kind: of the functions, see `echo`.
        backend: that runs them.
        functions: registered at once, each with code of its own.
        cycles: of register, invoke, fail and remove that are measured.
        warm_up: cycles before.
    """

    kind: str
    backend: str
    functions: int
    cycles: int
    warm_up: int


class State(msgspec.Struct, frozen=True):
    """What a node holds.

    Attributes:
        node_bytes, children_bytes: memory of its own, and that of its children.
        arena_bytes, contexts: in use of the arena.
        files, threads, children: how many it has.
        device_bytes: memory of the first device that is in use, by whomever; None if nobody tells.
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
    """What was found.

    Attributes:
        empty_bytes: the process before there is a node, with everything imported.
        idle, registered: the node with nothing registered, and with everything.
        before, after: the cycles.
        failures: calls that failed as they should.
        missing: why there is nothing.
    """

    empty_bytes: int = 0
    idle: State | None = None
    registered: State | None = None
    before: State | None = None
    after: State | None = None
    failures: int = 0
    missing: str = ""


def ask(order: FootprintOrder) -> Footprint:
    """Run the program. Raises as `orders.ask`."""
    return orders.ask("dandelion.bench.systems.footprint", order, Footprint, _LIMIT_S)


def device_bytes(backend: str) -> int | None:
    """Ask the driver's own program; None where there is none."""
    if backend != "cuda":
        return None
    with contextlib.suppress(OSError, ValueError, IndexError, subprocess.SubprocessError):
        done = subprocess.run(_SMI, capture_output=True, text=True, timeout=20, check=True)
        return int(done.stdout.split()[0]) << 20
    return None


def state_of(node: Node, backend: str = "") -> State:
    """Take stock, once nothing is under way any more."""
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
    return State(
        settled_bytes(), sum(own_bytes(pid) for pid in found), facts.arena.used_bytes,
        facts.arena.contexts, files, threading.active_count(), len(found),
        device_bytes(backend),
    )  # fmt: skip


def failing(kind: str, name: str) -> FunctionDocument:
    """Describe a function of which every call fails; a GPU function lacks its kernel."""
    good: FunctionDocument = echo(kind, name, fails=True)
    if kind != GPU:
        return good
    (code,) = good.code
    source = '#include "dandelion.h"\nKERNEL void other(GLOBAL u8 *y) { y[0] = 0; }\n'
    bad = CodeDocument(code.format, code.main, {"touch.c": source}, code.options)
    replaced: FunctionDocument = msgspec.structs.replace(good, code=(bad,))
    return replaced


def idle_function(kind: str, at: int) -> FunctionDocument:
    """Describe one of many functions; GPU functions share a source, which is compiled once."""
    nonce = 0 if kind == GPU else at + 1
    found: FunctionDocument = echo(kind, f"F{at}", nonce, number=at + 1)
    return found


def cycle(node: Node, kind: str) -> int:
    """Register, invoke, fail, remove; tell how many calls failed."""
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
        return _measure(order, _settings(order, folder))


def _settings(order: FootprintOrder, folder: str) -> Settings:
    cached = order.backend in ("cuda", "hip")
    return Settings(
        backends=(order.backend,), keep_traces=16, arena_bytes=64 << 20,
        engines={} if order.kind == GPU else {order.backend: 1},
        options={order.backend: {"workers": "0", "cache": folder}} if cached else {},
    )  # fmt: skip


def _measure(order: FootprintOrder, settings: Settings) -> Footprint:
    empty = settled_bytes()
    with Node(settings) as node:
        node.wait_ready()
        unavailable = [e.reason for e in node.engines() if e.state == "unavailable"]
        if unavailable:
            raise BackendUnavailable(order.backend, unavailable[0])
        failures = sum(cycle(node, order.kind) for _ in range(3))  # all that is lazy has come up
        idle = state_of(node)
        for at in range(order.functions):
            node.register(idle_function(order.kind, at))
        registered = state_of(node)
        for at in range(order.functions):
            node.remove(FunctionSpec, f"F{at}")
        failures += sum(cycle(node, order.kind) for _ in range(order.warm_up))
        before = state_of(node, order.backend)
        failures += sum(cycle(node, order.kind) for _ in range(order.cycles))
        after = state_of(node, order.backend)
        return Footprint(empty, idle, registered, before, after, failures)


def main() -> int:
    """Answer the order."""
    return orders.answer(FootprintOrder, measure, lambda missing: Footprint(missing=missing))


if __name__ == "__main__":
    sys.exit(main())
