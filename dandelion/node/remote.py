"""The node's side of an engine process: an `Engine` whose `run` happens elsewhere.

A call is sent by `begin` and its answer read by `take`, neither of which ever waits; so any thread
that has nothing better to do may carry a call there and back. Whatever takes time is done by `run`
and `finish`, on the thread that starts and replaces the process: functions not loaded yet, large
copies, a process that dies, answers what nobody understands, or does not answer until the deadline
and a grace after it. Such a process is killed and replaced; the call that was out gets `EngineDied`
or `TimedOut`. Calls are pure, so the node may run others again.

A call may be sent while another one is out; they are answered in order, so the process has the
next one at hand when it is done with the first. Their data never meet on the device: it is zeroed
between them. The owner sees to it that only one thread at a time sends, and one takes or finishes.
"""

from __future__ import annotations

import contextlib
import enum
import socket
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from dandelion.data import Bytes, Item, ItemSet
from dandelion.driver import (
    Call,
    Demand,
    Driver,
    Engine,
    InstanceSets,
)
from dandelion.engine_process.messages import (
    Begun,
    Channel,
    Done,
    Ended,
    Failed,
    Forget,
    Load,
    Ready,
    Reply,
    Run,
    WireItem,
    WireSet,
    WireSets,
    wire_set,
)
from dandelion.errors import (
    BackendUnavailable,
    ContextFull,
    EngineDied,
    InternalError,
    TimedOut,
    from_record,
)
from dandelion.function import Function
from dandelion.memory import Context, SharedDomain, Transfers
from dandelion.node.processes import Processes

RETRY_S = (0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2)
"""Pauses between attempts to replace a process that was lost. Where workers share a device, none
can start before all of the broken ones are gone."""
_LEAVE_LIMIT_S = 2.0
_CODE_LIMIT_S = 0.05  # how long to wait for the exit code of a process that ended by itself
GRACE_S = 0.25
"""How long after a call's deadline its process may still answer before it is killed."""
FORGET_LIMIT_S = 5.0
"""How long a process that is not in a call may take to read that it may forget a function."""
LOADED_LIMIT = 64
"""How many functions a process keeps; the one not used for longest is forgotten."""
LIGHT_BYTES = 64 * 1024 * 1024
"""How much device memory is there beside a process that ends, for sure."""
QUICK_BYTES = 256 * 1024
"""How much may be copied into the arena by a thread that must not be kept."""


class Sent(enum.Enum):
    """How much of a call `RemoteEngine.begin` sent."""

    ALL = "all"
    PART = "not all; somebody must finish the call"
    NOTHING = "nothing; the call is to be run by a thread that may wait"


class Answer(enum.Enum):
    """What `RemoteEngine.take` gives where there are no outputs."""

    NOT_YET = "not yet"
    CARE = "somebody must finish the call"


@dataclass(slots=True)
class _Out:
    """A call that is out.

    Attributes:
        inputs: what the process reads from the arena until it answers.
        result: the context for its outputs.
        unsent: the end of its request, if there was no room for it.
        reply: what came, if it was more than `take` could deal with.
        reached: False if the process was gone before any of its request was sent.
    """

    call: Call
    inputs: InstanceSets
    result: Context
    unsent: Bytes = b""
    reply: Reply | None = None
    reached: bool = True


class RemoteEngine(Engine):
    """An engine in a process of its own.

    Args:
        backends: names of backends; the first that works is used.
        resource: which resource, or empty for the best.
        options: settings of the backends.
        environment: further variables of the process.
        drivers: of these backends, one or more; they tell the demand of calls, without a device.
        arena: mapped by the process.
        transfers: brings inputs into the arena where they are not there yet.
        spin_us: how long `run` looks for an answer before it sleeps, in microseconds.
        engine_spin_us: how long the process looks for the next call before it sleeps.

    Attributes:
        driver: of the backend that the process uses; the first one until it has said which.
        posted: id of the call that was sent last, as far as that went.
        ready: what the process said when its engine was up.
    """

    def __init__(
        self,
        backends: tuple[str, ...],
        resource: str,
        options: dict[str, dict[str, str]],
        environment: Mapping[str, str],
        drivers: Sequence[Driver],
        arena: SharedDomain,
        transfers: Transfers,
        spin_us: int = 0,
        engine_spin_us: int = 0,
    ) -> None:
        self._processes = Processes(
            backends, resource, options, environment, arena.map, engine_spin_us
        )
        self._spin_us = spin_us
        self._drivers = {driver.name: driver for driver in drivers}
        self._arena = arena
        self._transfers = transfers
        self._loaded: OrderedDict[str, InstanceSets] = OrderedDict()  # with their static sets
        self._sending = threading.Lock()  # requests, and what the process has loaded
        self._out: deque[_Out] = deque()
        self.name = "|".join(backends)
        self.driver = drivers[0]
        self.posted = 0
        self.ready: Ready

    def start(self) -> None:
        """Start the process and wait until it is ready.

        Raises:
            BackendUnavailable: no backend of the list works.
            EngineDied: the process ended.
        """
        self.ready = self._start()
        self.name = self.ready.engine
        self.capacity = self.ready.capacity
        self.workers = self.ready.workers

    def abandon(self) -> None:
        """Have the processes end soon, whatever they are at; from any thread."""
        self._processes.abandon()

    @property
    def lost(self) -> bool:  # type: ignore[override]  # here it is known, not remembered
        return self._processes.current is None

    @property
    def _channel(self) -> Channel[Reply] | None:
        process = self._processes.current
        return None if process is None else process.channel

    def fileno(self) -> int:
        """Give what becomes readable when an answer comes; -1 if there is no process."""
        channel = self._channel
        return -1 if channel is None else channel.fileno()

    # the process

    def _start(self, device_bytes: int = 0) -> Ready:
        reply = self._processes.start(device_bytes)
        if isinstance(reply, Ready):
            self.driver = self._drivers.get(reply.backend, self.driver)
            return reply
        code = self._end(_CODE_LIMIT_S)
        if isinstance(reply, Failed):
            raise from_record(reply.error)
        raise EngineDied(self.name, f"{_death(code)} before it was ready")

    def recover(self) -> None:
        self._end()
        for pause_s in (*RETRY_S, None):
            try:
                self.ready = self._start(self.capacity.device_bytes)
                break
            except (EngineDied, BackendUnavailable, OSError):  # it worked before
                if pause_s is None or not self._processes.pause(pause_s):
                    raise
        self.capacity = self.ready.capacity

    # a call that must not wait

    def begin(self, call: Call, quickly: bool = True) -> Sent:
        """Send a call.

        Args:
            quickly: send nothing if that would take more than microseconds: if the function is not
                loaded, or there is much to copy, or no clean memory.

        Raises:
            ContextFull, InternalError: nothing was sent.
        """
        function, demand = call.function, call.demand
        channel = self._channel
        if function.identity not in self._loaded or channel is None:
            return Sent.NOTHING
        if demand is None:
            planner = self.driver.planner()
            demand = planner.demand(function, call.inputs) if planner is not None else Demand()
        if self._processes.ending and (function.static or demand.device_bytes > LIGHT_BYTES):
            if quickly:
                return Sent.NOTHING
            self._wait_for_ends(call)
        size = max(1, _result_bytes(demand, function))
        wired = self._wired(call, quickly)
        if wired is None:
            return Sent.NOTHING
        result = self._arena.acquire_clean(size) if quickly else self._arena.acquire(size)
        if result is None:
            return Sent.NOTHING
        wire, inputs = wired
        latest_ns = call.latest_ns or call.deadline_ns
        limit_s = call.limit_s
        request = Run(
            call.id, function.identity, wire, result.offset_bytes, size, latest_ns, limit_s
        )
        out = _Out(call, inputs, result)
        if not self._sending.acquire(blocking=not quickly):
            return Sent.NOTHING
        try:
            if function.identity not in self._loaded or channel is not self._channel:
                return Sent.NOTHING
            if self._out and self._out[-1].unsent:
                return Sent.NOTHING
            self._loaded.move_to_end(function.identity)
            self._out.append(out)  # first: whoever looks for answers must know of it
            self.posted = call.id
            try:
                out.unsent = channel.post(request)
            except OSError:
                out.reached = False
                return Sent.PART
        finally:
            self._sending.release()
        return Sent.PART if out.unsent else Sent.ALL

    def _wired(self, call: Call, quickly: bool) -> tuple[WireSets, InstanceSets] | None:
        """Name the inputs by their place in the arena, and bring them there if they are not.

        Gives the names, and the sets as they lie there.
        """
        arena = self._arena
        moving = kept = 0
        wire: list[WireSet | None] = []
        inputs = call.inputs
        for position in call.function.given:
            item_set = inputs[position]
            if item_set is None:
                wire.append(None)
                continue
            items: list[WireItem] = []
            for item in item_set.items:
                size = item.size_bytes
                offset = arena.locate(item.data) if size else 0
                if offset is None:
                    moving += size
                else:
                    kept += size > 0
                    items.append(
                        WireItem(item.name, item.key, offset, size, item.dtype, item.shape)
                    )
            wire.append(WireSet(item_set.name, tuple(items), item_set.dtype, item_set.shape))
        if not moving:
            self._transfers.kept(kept)
            return tuple(wire), inputs
        if quickly and (moving > QUICK_BYTES or 2 * moving > arena.largest_free_bytes):
            return None
        given = self._transfers.place(tuple(inputs[p] for p in call.function.given), arena)
        return tuple(None if s is None else wire_set(s, arena.map) for s in given), given

    def sent(self, call: Call) -> bool:
        """Tell whether a call is out."""
        return any(out.call is call for out in tuple(self._out))

    def reached(self, call: Call) -> bool:
        """Tell whether a call that is out may have come to the process."""
        return not self.lost and all(out.reached for out in tuple(self._out) if out.call is call)

    def take(self, call: Call) -> InstanceSets | Answer:
        """Take the outputs of a call, if it is the one that is out first, and they are here.

        Raises:
            DandelionError: the call failed, the engine is well.
        """
        channel = self._channel
        if channel is None:
            return Answer.CARE
        if not self._out or self._out[0].call is not call:
            return Answer.NOT_YET  # it is being sent
        out = self._out[0]
        if out.reply is not None:
            return Answer.CARE
        try:
            reply = channel.take()
        except Ended:
            return Answer.CARE
        while isinstance(reply, Begun):
            call.start_deadline(time.monotonic_ns())
            try:
                reply = channel.take()
            except Ended:
                return Answer.CARE
        if reply is None:
            return Answer.NOT_YET
        out.reply = reply
        if isinstance(reply, Ready) or reply.call != out.call.id:
            return Answer.CARE
        if isinstance(reply, Failed) and reply.fatal:
            return Answer.CARE
        return self._answered(out, reply)

    def _answered(self, out: _Out, reply: Done | Failed) -> InstanceSets:
        if self._out:
            self._out.popleft()
        if self._out:
            self._out[0].call.start_deadline(time.monotonic_ns())
        out.call.stages.update(reply.stages)
        if isinstance(reply, Failed):
            raise from_record(reply.error)
        # The engine's process is trusted, and has held them against the declaration already.
        return tuple(None if s is None else _sets(s, out.result) for s in reply.outputs)

    # a call that may wait

    def _run(self, call: Call) -> InstanceSets:
        try:
            self._send(call)
        except ContextFull:
            if not self._processes.ending:
                raise
            self._wait_for_ends(call)  # what they keep is enough, perhaps
            self._send(call)
        return self.finish(call)

    def _send(self, call: Call) -> None:
        self._load(call)
        if self.begin(call, quickly=False) is Sent.NOTHING:
            raise EngineDied(self.name, "it lost a function while it was called")

    def _wait_for_ends(self, call: Call) -> None:
        """Wait until the memory of processes that end is there again; that is no time of the call.

        Raises:
            TimedOut: it took too long.
            EngineDied: the engine is about to be closed.
        """
        until_ns = call.latest_ns or call.deadline_ns
        self._processes.wait_for_ends(max(0.0, (until_ns - time.monotonic_ns()) / 1e9))
        if self._processes.leaving:
            raise EngineDied(self.name, "it is being closed")
        if self._processes.ending:
            raise TimedOut(call.function.spec.name, "wall", call.limit_s)
        call.start_deadline(time.monotonic_ns())

    def finish(self, call: Call) -> InstanceSets:
        """Wait for the outputs of the call that is out first; end the process if it has to be.

        Raises:
            DandelionError: the call failed; see `lost` for the engine.
        """
        channel = self._channel
        if not self._out or channel is None:
            raise EngineDied(self.name, "it ended before the call began")
        out = self._out[0]
        assert out.call is call, "calls end in the order in which they were sent"
        reply = out.reply
        if reply is None:
            try:
                if out.unsent:
                    with self._sending:
                        channel.push(out.unsent, call.left_s() + GRACE_S)
                    out.unsent = b""
                reply = _received(channel, call, 1000 * self._spin_us)
            except OSError:
                reply = None
        if isinstance(reply, Ready | Begun) or reply is None:
            raise self._lost(call)
        if reply.call != call.id:
            self._end()
            raise InternalError(f"{self.name} answered call {reply.call}, not {call.id}")
        if isinstance(reply, Failed) and reply.fatal:
            self._end()  # it has nothing left to do, and its device is wanted
        return self._answered(out, reply)

    def _lost(self, call: Call) -> TimedOut | EngineDied:
        """End a process that did not answer a call, or not in time."""
        late = call.left_s() <= 0
        code = self._end(0.0 if late else _CODE_LIMIT_S)
        if late:
            limit_s = min(call.function.spec.limits.wall_s, call.limit_s)
            return TimedOut(call.function.spec.name, "wall", limit_s)
        return EngineDied(self.name, _death(code))

    def knows(self, function: str) -> bool:
        """Tell whether the process has a function, by its identity."""
        return function in self._loaded

    def _load(self, call: Call) -> None:
        function = call.function
        if function.identity in self._loaded:
            return
        files = {name: bytes(data) for name, data in function.files.items()}
        static = self._transfers.place(tuple(function.static.values()), self._arena)
        wire = {s.name: wire_set(s, self._arena.map) for s in static if s is not None}
        main = bytes(function.main)
        load = Load(function.identity, function.spec, function.code, main, files, wire)
        channel = self._channel
        if channel is None:
            raise EngineDied(self.name, "it ended before the call began")
        limit_s = call.left_s() + GRACE_S
        try:
            with self._sending:
                channel.send(load, limit_s)
                self._loaded[function.identity] = static
                if len(self._loaded) > LOADED_LIMIT:
                    channel.send(Forget(self._loaded.popitem(last=False)[0]), limit_s)
        except OSError:
            raise self._lost(call) from None

    def forget(self, function: Function) -> None:
        channel = self._channel
        if function.identity not in self._loaded or channel is None:
            return
        try:
            with self._sending:
                self._loaded.pop(function.identity, None)
                channel.send(Forget(function.identity), FORGET_LIMIT_S)
        except OSError:  # calls may be out: who looks for them, or sends the next, finds the end
            with contextlib.suppress(OSError):
                channel.peer.shutdown(socket.SHUT_RDWR)

    # the end

    def _end(self, limit_s: float = 0.0) -> int | None:
        """End the process; the next call starts another. Gives its exit code, if it ended in time.

        What was out, and what it had loaded, is kept until it is gone: its device may have read
        from and written to this memory.
        """
        with self._sending:  # nothing is sent to it after this
            process, self._processes.current = self._processes.current, None
        kept = (tuple(self._out), tuple(self._loaded.values()))
        self._out.clear()
        self._loaded.clear()
        return 0 if process is None else self._processes.end(process, limit_s, kept)

    def close(self) -> None:
        self._end(_LEAVE_LIMIT_S)
        self._processes.close()


def _received(channel: Channel[Reply], call: Call, spin_ns: int = 0) -> Reply | None:
    """Wait for the answer of a call until its deadline, which may move away meanwhile."""
    try:
        while True:
            reply = channel.receive(call.left_s() + GRACE_S, spin_ns)
            if not isinstance(reply, Begun):
                return reply
            call.start_deadline(time.monotonic_ns())
    except Ended:
        return None


def _result_bytes(demand: Demand, function: Function) -> int:
    if demand.output_bytes is None:
        return function.spec.limits.output_bytes
    return demand.output_bytes


def _sets(wire: WireSet, result: Context) -> ItemSet:
    start = result.offset_bytes
    items = tuple(
        Item(
            i.name,
            i.key,
            result.read(i.offset - start, i.size) if i.size else b"",
            i.dtype,
            i.shape,
        )
        for i in wire.items
    )
    return ItemSet(wire.name, items, wire.dtype, wire.shape)


def _death(code: int | None) -> str:
    if code is None:
        return "its process ended"
    return (
        f"its process was killed by signal {-code}" if code < 0 else f"it exited with code {code}"
    )
