"""An engine in a confined process, which maps no arena and may have been taken over by a function.

Inputs are sent behind the message of their call, and outputs come behind the answer. So a process
has the data of its own calls only. Inputs of half a megabyte and more are sent when the process has
no other call, since it reads nothing while it runs one; a thread sends them, and one receives such
outputs.

**Nothing that such a process says is trusted.** An answer must be to the first call that is out.
Outputs are made anew from the names, keys and bytes in it: types are those of the declaration, and
everything is checked again. Errors must be of a kind that a function can cause, stages have fixed
names. Anything else ends the process, and its calls fail as if it had crashed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial

import msgspec

from dandelion.data import Bytes, Item, ItemSet
from dandelion.driver import InstanceSets, check_outputs
from dandelion.engine_process.channel import Ended
from dandelion.engine_process.confined import FollowingData
from dandelion.engine_process.messages import Done, Failed, Load, Reply, Run, WireSet
from dandelion.errors import (
    BadOutput,
    Cancelled,
    ContextFull,
    DandelionError,
    EngineDied,
    Exited,
    Faulted,
    InternalError,
    InvalidFunction,
    InvalidInput,
    OutOfMemory,
    TimedOut,
    from_record,
)
from dandelion.executors.batches import is_joined, join, joined_bytes
from dandelion.executors.contract import StartedEngine, Surroundings, finish
from dandelion.executors.failures import to_dandelion_error
from dandelion.executors.incoming import Incoming
from dandelion.executors.process import EngineProcessExecutor
from dandelion.executors.processes import CODE_LIMIT_S, Process, Processes
from dandelion.executors.sent_calls import SentCall, Watcher
from dandelion.executors.staging import INLINE_COPY_BYTES, Order, Stager
from dandelion.function import Function, FunctionSpec
from dandelion.scheduler import EngineState

_STAGES = ("instance", "run", "outputs")
_LONGEST_NS = 10**15
_ACCEPTED = (
    Exited,
    Faulted,
    TimedOut,
    OutOfMemory,
    BadOutput,
    InvalidFunction,
    InvalidInput,
    Cancelled,
    ContextFull,
    InternalError,
)
_SILENT_S = 1.0
"""How often a thread that receives data looks whether the process is still used."""


class ConfinedExecutor(EngineProcessExecutor):
    """Runs calls in a confined process.

    Args:
        engine, info, around, processes, watcher: see `EngineProcessExecutor`.
        binary: gives what the engine runs instead of a function's code; may take long.
    """

    def __init__(
        self,
        engine: EngineState,
        info: StartedEngine,
        around: Surroundings,
        processes: Processes,
        watcher: Watcher,
        binary: Callable[[Function], Bytes],
    ) -> None:
        stager = ConfinedStager(self, info, around, processes, binary)
        super().__init__(engine, info, around, processes, watcher, stager)
        self._incoming: Incoming | None = None

    # --- calls on their way there -----------------------------------------------------------------

    def _is_held(self, order: Order) -> bool:
        return bool(self._out) and _given_bytes(order) > INLINE_COPY_BYTES

    def _give_up(self, order: Order, error: DandelionError) -> None:
        # A process that died compiled this function's code.
        self.events.failed(order.call, error, begun=isinstance(error, EngineDied))

    def _run_messages(self, order: Order, limit_s: float) -> Sequence[msgspec.Struct | Bytes]:
        call, function, data = order.call, order.function, FollowingData()
        inputs = call.run.inputs
        given = tuple([_wire_set(inputs[position], data) for position in function.given])
        latest_ns = call.invocation.deadline_ns
        run = Run(
            call.id,
            function.identity,
            given,
            0,
            0,
            latest_ns,
            limit_s,
            data_bytes=data.size_bytes,
        )
        return (run, *data.pieces)

    def _load_messages(self, order: Order) -> Sequence[msgspec.Struct | Bytes]:
        function, data = order.function, FollowingData()
        assert order.binary is not None, "it is prepared"
        load = Load(
            function.identity,
            function.spec,
            function.code,
            data.item("main", 0, function.main),
            {name: data.item(name, 0, content) for name, content in function.files.items()},
            {name: _wire_static(s, data) for name, s in function.static.items()},
            function.scope,
            data.item("binary", 0, order.binary),
        )
        load = msgspec.structs.replace(load, data_bytes=data.size_bytes)
        return (load, *data.pieces)

    # --- answers ----------------------------------------------------------------------------------

    def _take(self, process: Process) -> Reply | None:
        incoming = self._incoming
        if incoming is None:
            reply = process.channel.take()
            if not isinstance(reply, Done) or not reply.data_bytes:
                return reply
            incoming = self._expected(reply)
            if reply.data_bytes > INLINE_COPY_BYTES:
                self._watcher.unwatch(process.channel.fileno())
                self.around.pool.submit(self._receive, process, incoming)
                return None
            incoming.make_room(self.around)
            self._incoming = incoming
        if not incoming.take(process):
            return None
        self._incoming = None
        return incoming.reply

    def _expected(self, reply: Done) -> Incoming:
        """Prepare for the outputs of an answer.

        Raises:
            Ended: no such answer is possible now.
        """
        first = self._out[0] if self._out else None
        if first is None or first.call.id != reply.call:
            raise Ended("an answer to no call")
        limit = first.function.spec.limits.output_bytes * (len(first.call.members) or 1)
        if not 0 < reply.data_bytes <= limit:
            raise Ended(f"{reply.data_bytes} bytes of outputs, more than {limit}")
        first.incoming = incoming = Incoming(reply)
        return incoming

    def _receive(self, process: Process, incoming: Incoming) -> None:
        """Receive large outputs; in a thread."""
        ended = False
        try:
            incoming.make_room(self.around)
            while not incoming.take(process):
                if self._process is not process:
                    return
                process.channel.wait(_SILENT_S)
        except (Ended, OSError):
            ended = True
        except BaseException as error:
            to_dandelion_error(error, self.info.name)
            ended = True
        self.events.post(partial(self._received, process, incoming, ended))

    def _received(self, process: Process, incoming: Incoming, ended: bool) -> None:
        if self._process is not process:
            return
        if ended:
            self._lose({})
            return
        self._watcher.watch(process.channel.fileno(), self._read)
        self._answered(incoming.reply)
        self._read()

    def _lose(self, begun: dict[int, DandelionError], code_limit_s: float = CODE_LIMIT_S) -> None:
        self._incoming = None
        super()._lose(begun, code_limit_s)

    def _answered(self, reply: Reply) -> None:
        first = self._out[0] if self._out else None
        if first is None or not isinstance(reply, Done | Failed) or reply.call != first.call.id:
            self._lose({})
            return
        stages = _stages(reply.stages)
        if isinstance(reply, Failed):
            error = _accepted(reply)
            if error is None:
                self._lose({})
                return
            self._end(first, stages, None, error)
            return
        incoming = first.incoming
        if incoming is not None and incoming.error is not None:
            self._end(first, stages, None, incoming.error)
            return
        spec = first.function.spec
        try:
            outputs = check_outputs(spec, _outputs(reply, spec, incoming))
        except (BadOutput, ValueError):
            self._lose({})  # its engine has checked them already
            return
        self._end(first, stages, outputs, None)

    def _end(
        self,
        sent: SentCall,
        stages: dict[str, int],
        outputs: InstanceSets | None,
        error: DandelionError | None,
    ) -> None:
        sent.call.stages = stages
        self._next(time.monotonic_ns())
        finish(self.events, sent.call, outputs, error)
        if self._waiting:
            self._advance()
            self.flush()


class ConfinedStager(Stager):
    """Prepares the calls of one confined process."""

    def __init__(
        self,
        executor: EngineProcessExecutor,
        info: StartedEngine,
        around: Surroundings,
        processes: Processes,
        binary: Callable[[Function], Bytes],
    ) -> None:
        super().__init__(info, around, processes)
        self._executor = executor
        self.binary = binary

    def prepared(self, order: Order) -> bool:
        if order.binary is None and not self._executor.has_loaded(order.function):
            return False
        if not is_joined(order.call):
            size = joined_bytes([member.run for member in order.call.members])
            if size > INLINE_COPY_BYTES or 2 * size > self._arena.largest_free_bytes:
                return False
            join(order.call, self._arena, self._transfers)
        return True

    def prepare(self, order: Order) -> DandelionError | None:
        try:
            order.binary = self.binary(order.function)
            join(order.call, self._arena, self._transfers)
        except BaseException as failure:
            return to_dandelion_error(failure, self._info.name)
        return None


def _outputs(reply: Done, spec: FunctionSpec, incoming: Incoming | None) -> InstanceSets:
    """Make sets of names, keys and bytes alone."""
    if len(reply.outputs) != len(spec.outputs):
        raise ValueError("another number of sets")
    sets: list[ItemSet | None] = []
    for declared, wire in zip(spec.outputs, reply.outputs, strict=True):
        if wire is None:
            sets.append(None)
            continue
        items = tuple(
            [
                Item(item.name, item.key, _data(incoming, item.offset, item.size))
                for item in wire.items
            ]
        )
        sets.append(ItemSet(declared.name, items, declared.dtype, declared.shape))
    return tuple(sets)


def _data(incoming: Incoming | None, offset: int, size: int) -> Bytes:
    if not size:
        return b""
    if incoming is None:
        raise ValueError("an output without data")
    return incoming.read(offset, size)


def _stages(given: Mapping[str, int]) -> dict[str, int]:
    return {name: min(max(given.get(name, 0), 0), _LONGEST_NS) for name in _STAGES if name in given}


def _accepted(reply: Failed) -> DandelionError | None:
    """Return the error of a call; None if no function can cause it."""
    if reply.fatal:
        return None
    try:
        error = from_record(reply.error)
    except Exception:  # the record is not one of ours
        return None
    return error if type(error) in _ACCEPTED else None


def _given_bytes(order: Order) -> int:
    inputs = order.call.run.inputs
    sets = [inputs[position] for position in order.function.given]
    return sum([s.size_bytes for s in sets if s is not None])


def _wire_set(item_set: ItemSet | None, data: FollowingData) -> WireSet | None:
    return None if item_set is None else _wire_static(item_set, data)


def _wire_static(item_set: ItemSet, data: FollowingData) -> WireSet:
    items = [data.item(i.name, i.key, i.data, i.dtype, i.shape) for i in item_set.items]
    return WireSet(item_set.name, tuple(items), item_set.dtype, item_set.shape)
