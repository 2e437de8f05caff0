"""An engine in a process that maps the arena: it reads inputs there, and writes outputs there.

Such a process runs no host code of users, so its answers are believed; one that does not fit a call
is a bug and ends the process.

Planning goes the same way as calls: the process plans a call whose like it has not seen, and the
demand is kept (`demands`).
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Sequence
from typing import ClassVar

import msgspec

from dandelion.data import Bytes
from dandelion.driver import InstanceSets, SharedConstants
from dandelion.engine_process.messages import (
    Begun,
    Done,
    Failed,
    Plan,
    Planned,
    Ready,
    Reply,
    Run,
    Shared,
)
from dandelion.errors import DandelionError, InternalError, from_record
from dandelion.executors.constants_exchange import ConstantsExchange
from dandelion.executors.contract import StartedEngine, Surroundings, finish, function_of
from dandelion.executors.demands import Demands
from dandelion.executors.loaded_functions import load_message
from dandelion.executors.process import EngineProcessExecutor
from dandelion.executors.processes import Processes
from dandelion.executors.sent_calls import SentCall, Watcher, read_set
from dandelion.executors.staging import Order, Stager
from dandelion.scheduler import CallState, EngineState, Flow


class ProcessExecutor(EngineProcessExecutor):
    """Runs calls in a process that maps the arena.

    Args:
        engine, info, around, processes, watcher: see `EngineProcessExecutor`.
        demands: what calls need, for all engines of the node.

    Attributes:
        exchange: of the constants that engines of the device share; None if they share none.
    """

    overtakes: ClassVar[bool] = True
    exchange: ConstantsExchange | None = None

    def __init__(
        self,
        engine: EngineState,
        info: StartedEngine,
        around: Surroundings,
        processes: Processes,
        watcher: Watcher,
        demands: Demands,
    ) -> None:
        stager = Stager(info, around, processes)
        super().__init__(engine, info, around, processes, watcher, stager)
        self._demands = demands

    # --- shared constants -------------------------------------------------------------------------

    def share_constants(self, exchange: ConstantsExchange) -> None:
        """The process is up: share constants with others of its device, if it can."""
        self.exchange = exchange if self.answer.capacity.constants_shared else None
        if self.exchange is not None:
            self.exchange.join(self)

    def drop_constants(self, flows: Iterable[Flow]) -> None:
        self._messages += self._functions.constants.evictions(flows)
        self.events.post(self.flush)

    def resume(self) -> None:
        self.events.post(self._go_on)

    def _go_on(self) -> None:
        self._advance()
        self.flush()

    def _is_held(self, order: Order) -> bool:
        """Tell whether a call waits until another process has copied its constants."""
        exchange = self.exchange
        return (
            exchange is not None
            and order.keep
            and not order.is_plan
            and exchange.is_copied_elsewhere(self, order.call.flow)
        )

    def _evict(self, order: Order) -> None:
        if self.exchange is None:
            super()._evict(order)
        elif order.evict:
            self.exchange.drop(order.evict)

    def _keeps(self, order: Order) -> bool:
        """Tell whether the scheduler keeps them still; it may have evicted them meanwhile."""
        return order.keep and (self.exchange is None or order.call.flow in self.engine.held)

    def forget(self, flow: Flow) -> None:
        super().forget(flow)
        if self.exchange is not None:
            self.exchange.forgot(self, flow)

    def _process_gone(self) -> None:
        if self.exchange is not None:
            self.exchange.leave(self)

    def _offered(self, order: Order) -> str:
        """Send the descriptor of constants that the process is to map; return their key."""
        if self.exchange is None or not order.keep:
            return ""
        shared = self.exchange.kept(self, order.call.flow)
        descriptors = None if self._process is None else self._process.descriptors
        if shared is None or descriptors is None or not descriptors.send(shared.descriptor):
            return ""  # without one, the process copies them
        return shared.key

    def _take_shared(self, reply: Shared, sent: SentCall) -> None:
        descriptors = None if self._process is None else self._process.descriptors
        descriptor = -1 if descriptors is None else descriptors.receive()
        if descriptor >= 0:
            if self.exchange is None:
                os.close(descriptor)
            else:
                constants = SharedConstants(reply.key, descriptor)
                self.exchange.copied(self, sent.call.flow, constants)

    # --- plans ------------------------------------------------------------------------------------

    def plan(self, call: CallState) -> None:
        function = function_of(self, call)
        call.demand = self._demands.find(self.info.backend, function, call.run.inputs)
        if call.demand is not None:
            self.events.planned(call)
            return
        self._waiting.append(Order(call, function, is_plan=True))
        self._advance()

    def _post_plan(self, order: Order) -> None:
        call, function = order.call, order.function
        if call.members:
            call.demand = self._demands.find(self.info.backend, function, call.run.inputs)
            if call.demand is not None:
                self._planned(order)
                return
        order.behind = self._out[-1].call.id if self._out else 0
        self._plans[call.id] = order
        self._messages.append(Plan(call.id, function.identity, self.stager.wire(order)))

    def _take_plan(self, reply: Planned) -> None:
        order = self._plans.pop(reply.call, None)
        if order is None:
            return
        call = order.call
        inputs = call.run.inputs
        self._demands.add(self.info.backend, order.function, inputs, reply.reads, reply.demand)
        call.demand = reply.demand
        if call.members:
            self._planned(order)
            self._advance()
            self.flush()
        else:
            self.events.planned(call)

    def _planned(self, order: Order) -> None:
        """The demand of a batch is known: send it before the others."""
        order.is_plan = False
        self._waiting.appendleft(order)

    # --- calls ------------------------------------------------------------------------------------

    def _run_messages(self, order: Order, limit_s: float) -> Sequence[msgspec.Struct | Bytes]:
        call, result = order.call, order.result
        assert result is not None, "it is prepared"
        run = Run(
            call.id,
            order.function.identity,
            self.stager.wire(order),
            result.offset_bytes,
            result.size_bytes,
            call.invocation.deadline_ns,
            limit_s,
            order.keep,
            shared=self._offered(order),
        )
        return (run,)

    def _load_messages(self, order: Order) -> Sequence[msgspec.Struct | Bytes]:
        return (load_message(order.function, self.around.arena.map),)

    def _answered(self, reply: Reply) -> None:
        if isinstance(reply, Planned):
            self._take_plan(reply)
            return
        if isinstance(reply, Failed) and reply.call in self._plans:
            order = self._plans.pop(reply.call)
            self.events.failed(order.call, from_record(reply.error))
            return
        first = self._out[0] if self._out else None
        if first is None or isinstance(reply, Ready) or reply.call != first.call.id:
            self._lose(self._confused(first, reply))
            return
        now_ns = time.monotonic_ns()
        if isinstance(reply, Begun):
            first.begin(now_ns)
            return
        if isinstance(reply, Shared):
            self._take_shared(reply, first)
            return
        if self.exchange is not None:
            self.exchange.ended(self, first.call.flow)
        first.call.stages = reply.stages
        if isinstance(reply, Failed):
            error = from_record(reply.error)
            if reply.fatal:
                self._lose({first.call.id: error}, 0.0)
                return
            self._next(now_ns)
            finish(self.events, first.call, None, error)
            return
        # The process is trusted, and has checked the outputs against the declaration.
        try:
            outputs = self._outputs(reply, first)
        except Exception as error:
            text = f"{self.info.name} put outputs of call {first.call.id} elsewhere: {error}"
            self._lose({first.call.id: InternalError(text)})
            return
        self._next(now_ns)
        finish(self.events, first.call, outputs, None)

    def _outputs(self, reply: Done, sent: SentCall) -> InstanceSets:
        """Read the outputs of a call."""
        result = sent.result
        assert result is not None, "it was sent with one"
        return tuple([None if s is None else read_set(s, result) for s in reply.outputs])

    def _confused(self, first: SentCall | None, reply: Reply) -> dict[int, DandelionError]:
        if first is None:
            return {}
        text = f"{self.info.name} answered {type(reply).__name__}, not call {first.call.id}"
        return {first.call.id: InternalError(text)}
