"""The node's side of an engine process: an `Engine` whose `run` happens elsewhere.

The process is started and replaced by the thread that calls `run`, so there is one owner and no
race; others may only `abandon` it. A process that dies, answers what nobody understands, or does
not answer until the deadline and a grace after it, is killed and replaced; the call that was out
gets `EngineDied` or `TimedOut`. Calls are pure, so the node may run others again.
"""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import time
from collections import OrderedDict
from collections.abc import Mapping
from pathlib import Path

import msgspec

import dandelion
from dandelion.data import Item, ItemSet
from dandelion.driver import Call, Capacity, Demand, Driver, Engine, InstanceSets
from dandelion.engine_process.messages import (
    Done,
    Failed,
    Forget,
    Load,
    Ready,
    Reply,
    Run,
    WireSet,
    receive_reply,
    send,
    wire_set,
)
from dandelion.errors import EngineDied, InternalError, TimedOut, from_record
from dandelion.function import Function
from dandelion.memory import Context, SharedDomain, Transfers

START_LIMIT_S = 60.0
GRACE_S = 0.25
"""How long after a call's deadline its process may still answer before it is killed."""
FORGET_LIMIT_S = 5.0
"""How long a process that is not in a call may take to read that it may forget a function."""
LOADED_LIMIT = 64
"""How many functions a process keeps; the one not used for longest is forgotten."""


class RemoteEngine(Engine):
    """An engine in a process of its own.

    Args:
        backends: names of backends; the first that works is used.
        resource: which resource, or empty for the best.
        options: settings of the backends.
        environment: further variables of the process.
        driver: tells the demand of calls, without a device.
        arena: mapped by the process.
        transfers: brings inputs into the arena where they are not there yet.
    """

    def __init__(
        self,
        backends: tuple[str, ...],
        resource: str,
        options: dict[str, dict[str, str]],
        environment: Mapping[str, str],
        driver: Driver,
        arena: SharedDomain,
        transfers: Transfers,
    ) -> None:
        self._arguments = (backends, resource, options)
        self._environment = environment
        self._driver = driver
        self._arena = arena
        self._transfers = transfers
        self._loaded: OrderedDict[str, None] = OrderedDict()
        self._process: subprocess.Popen[bytes] | None = None
        self._peer: socket.socket | None = None
        self._leaving = False
        self.starts = 0
        self.name = "|".join(backends)
        self.ready: Ready

    def start(self) -> None:
        """Start the process and wait until it is ready.

        Raises:
            BackendUnavailable: no backend of the list works.
            EngineDied: the process ended.
        """
        self.ready = self._start()
        self.name = self.ready.engine
        self.capacity = Capacity(self.ready.device_bytes, self.ready.blocks)
        self.workers = self.ready.workers

    def abandon(self) -> None:
        """Have the process end soon, whatever it is at; from any thread, when the node closes."""
        self._leaving = True
        peer = self._peer
        if peer is not None:
            with contextlib.suppress(OSError):
                peer.shutdown(socket.SHUT_RDWR)

    @property
    def lost(self) -> bool:  # type: ignore[override]  # here it is known, not remembered
        return self._peer is None

    def _start(self) -> Ready:
        backends, resource, options = self._arguments
        ours, theirs = socket.socketpair()
        with theirs:
            os.set_inheritable(theirs.fileno(), True)
            arguments = (
                str(theirs.fileno()),
                str(self._arena.map.fd),
                str(self._arena.map.size_bytes),
                resource,
                msgspec.json.encode(options).decode(),
                *backends,
            )
            self._process = subprocess.Popen(
                [sys.executable, "-m", "dandelion.engine_process", *arguments],
                pass_fds=(theirs.fileno(), self._arena.map.fd),
                stdin=subprocess.DEVNULL,
                env=_environment(self._environment),
            )
        self._peer = ours
        if self._leaving:
            self.abandon()
        self.starts += 1
        self._loaded.clear()
        ours.settimeout(START_LIMIT_S)
        reply = self._receive()
        if isinstance(reply, Ready):
            return reply
        code = self._end()
        if isinstance(reply, Failed):
            raise from_record(reply.error)
        raise EngineDied(self.name, f"{_death(code)} before it was ready")

    def _receive(self) -> Reply | None:
        assert self._peer is not None
        try:
            return receive_reply(self._peer)
        except (OSError, msgspec.DecodeError):
            return None

    def recover(self) -> None:
        self.ready = self._start()

    def _run(self, call: Call) -> InstanceSets:
        assert self._peer is not None
        self._peer.settimeout(call.left_s() + GRACE_S)
        demand = call.demand or self._driver.demand(call.function, call.inputs)
        inputs = self._transfers.place(call.inputs, self._arena)
        result = self._arena.acquire(max(1, _result_bytes(demand, call.function)))
        self._load(call)
        wire = tuple(None if s is None else wire_set(s, self._arena.map) for s in inputs)
        request = Run(
            call.id,
            call.function.identity,
            wire,
            result.offset_bytes,
            result.size_bytes,
            max(0, call.deadline_ns - time.monotonic_ns()),
        )
        reply = self._ask(request, call)
        call.stages.update(reply.stages)
        if isinstance(reply, Failed):
            if reply.fatal:
                self.close()
            raise from_record(reply.error)
        return tuple(None if s is None else _sets(s, result) for s in reply.outputs)

    def _ask(self, request: Run, call: Call) -> Done | Failed:
        assert self._peer is not None
        self._peer.settimeout(call.left_s() + GRACE_S)
        try:
            send(self._peer, request)
            reply = self._receive()
        except OSError:
            reply = None
        if isinstance(reply, Ready) or reply is None:
            raise self._lost(call)
        if reply.call != call.id:
            self._end()
            raise InternalError(f"{self.name} answered call {reply.call}, not {call.id}")
        return reply

    def _lost(self, call: Call) -> TimedOut | EngineDied:
        """End a process that did not answer a call, or not in time."""
        code = self._end()
        if call.left_s() <= 0:
            limit_s = min(call.function.spec.limits.wall_s, call.limit_s)
            return TimedOut(call.function.spec.name, "wall", limit_s)
        return EngineDied(self.name, _death(code))

    def _load(self, call: Call) -> None:
        function = call.function
        if function.identity in self._loaded:
            self._loaded.move_to_end(function.identity)
            return
        files = {name: bytes(data) for name, data in function.files.items()}
        assert self._peer is not None
        identity = function.identity
        try:
            send(
                self._peer,
                Load(identity, function.spec, function.code, bytes(function.main), files),
            )
            self._loaded[identity] = None
            if len(self._loaded) > LOADED_LIMIT:
                send(self._peer, Forget(self._loaded.popitem(last=False)[0]))
        except OSError:
            raise self._lost(call) from None

    def forget(self, function: Function) -> None:
        if function.identity in self._loaded and self._peer is not None:
            del self._loaded[function.identity]
            self._peer.settimeout(FORGET_LIMIT_S)
            try:
                send(self._peer, Forget(function.identity))
            except OSError:
                self._end()

    def _end(self) -> int:
        """Kill the process and reap it; the next call starts another. Gives its exit code."""
        if self._peer is not None:
            self._peer.close()
            self._peer = None
        if self._process is None:
            return 0
        try:
            code = self._process.wait(timeout=0.05)
        except subprocess.TimeoutExpired:
            self._process.kill()
            code = self._process.wait()
        self._process = None
        return code

    def close(self) -> None:
        if self._peer is not None:
            self._peer.close()
            self._peer = None
        if self._process is not None:
            try:
                self._process.wait(timeout=2.0)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
            self._process = None


def _environment(further: Mapping[str, str]) -> dict[str, str]:
    """The node's environment and more, with the engine importable also from a checkout."""
    root = str(Path(dandelion.__file__).resolve().parent.parent)
    path = os.environ.get("PYTHONPATH", "")
    parts = [root, *(p for p in path.split(os.pathsep) if p and p != root)]
    return {**os.environ, **further, "PYTHONPATH": os.pathsep.join(parts)}


def _result_bytes(demand: Demand, function: Function) -> int:
    if demand.output_bytes is None:
        return function.spec.limits.output_bytes
    return demand.output_bytes


def _sets(wire: WireSet, result: Context) -> ItemSet:
    items = tuple(
        Item(i.name, i.key, result.read(i.offset - result.offset_bytes, i.size) if i.size else b"")
        for i in wire.items
    )
    return ItemSet(wire.name, items, wire.dtype, wire.shape)


def _death(code: int) -> str:
    return (
        f"its process was killed by signal {-code}" if code < 0 else f"it exited with code {code}"
    )
