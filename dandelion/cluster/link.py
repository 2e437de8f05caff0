"""The pair of connections between two nodes: one for control, one for data.

A node opens a link to each other member and sends its calls there (`OutLink`); the other end serves
them (`serving.InLink`). What both ends do alike is in `control_end`. All of it is on the loop.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from dandelion.cluster.call_messages import Define, Done, Failed, Run, StopRun, Undefine
from dandelion.cluster.control_end import ControlEnd, Hub
from dandelion.cluster.exchange import Exchange, Fetched
from dandelion.cluster.frames import Frames
from dandelion.cluster.handshake import BadPeer
from dandelion.cluster.messages import Leave, Message, Ping, Pong, Welcome
from dandelion.cluster.wire_sets import pack, unpack, whole_regions
from dandelion.driver import InstanceSets
from dandelion.errors import (
    BackendUnavailable,
    Cancelled,
    DandelionError,
    NodeLost,
    NoEngine,
    QuotaExceeded,
    TooLarge,
    from_record,
)
from dandelion.executors.contract import finish
from dandelion.function import FusedFunction
from dandelion.scheduler import CallState, Flow

LEAST_DEADLINE_S = 0.001
PINGS_LIMIT = 16
"""Of heartbeats that are not answered."""
LASTING = (QuotaExceeded, BackendUnavailable, NoEngine)
"""Errors of a node that will never run a call that it refused. After others it may do so later."""

log = logging.getLogger("dandelion.cluster")


@dataclass(slots=True, eq=False)
class SentRun:
    """A call that the other node has.

    Attributes:
        backend: whose engines it was sent for.
        held: regions of this node that it names.
        answered: its outputs are being fetched.
    """

    call: CallState
    backend: str
    held: list[int]
    answered: bool = False


class OutLink(ControlEnd):
    """The end that opened a link, and sends calls.

    Attributes:
        on_load: called with the backend of a call that ended, whether it was refused, and with what
            the other node says of its load.
        on_pong: called with each answer to a heartbeat, and the round trip in nanoseconds.
        on_leave: called when the other node says that it leaves.
        lost_calls: calls that were lost when it ended.
    """

    def __init__(self, peer: str, control: Frames, exchange: Exchange, hub: Hub) -> None:
        super().__init__(peer, control, exchange, hub)
        self.on_load: Callable[[str, bool, Done | Failed], None] = lambda b, r, m: None
        self.on_pong: Callable[[Pong, int], None] = lambda pong, round_trip: None
        self.on_leave: Callable[[], None] = lambda: None
        self._sent: dict[int, SentRun] = {}
        self._numbers: dict[CallState, int] = {}
        self._functions: dict[Flow, int] = {}
        self._calls = self._defined = self.lost_calls = 0
        self._drained = False
        self._pings: dict[int, int] = {}
        self._ping = 0

    @property
    def under_way(self) -> int:
        """How many calls the other node has."""
        return len(self._sent)

    def ping(self) -> None:
        """Send a heartbeat."""
        self.exchange.tidy()
        if len(self._pings) >= PINGS_LIMIT:
            return  # they wait behind a large message
        self._ping += 1
        self._pings[self._ping] = time.monotonic_ns()
        self.control.send(Ping(self._ping), urgent=True)

    # --- calls ----------------------------------------------------------------------------------

    def run(self, call: CallState, backend: str) -> None:
        """Send a call; it is answered with `Events` of the node.

        Raises:
            TooLarge: it has too many items; it was not sent.
            TooMany: too many regions are held for other calls; it was not sent.
        """
        function = self._functions.get(call.flow)
        if function is None:
            function = self._define(call.flow)
        run, invocation = call.run, call.invocation
        packed = pack(run.inputs, self.exchange)
        self._calls += 1
        number = self._calls
        held = [region.region for region in packed.regions]
        self._sent[number] = SentRun(call, backend, held)
        self._numbers[call] = number
        left_s = (invocation.deadline_ns - time.monotonic_ns()) / 1e9
        message = Run(
            number,
            function,
            packed.sets,
            tuple(packed.regions),
            min(max(left_s, LEAST_DEADLINE_S), 1e9 - 1),
            invocation.priority,
            run.origin,
            invocation.id,
            run.attempt,
        )
        try:
            self.control.send(message, packed.data, limited=False)
        except TooLarge:
            self._off(number, self._sent[number])
            raise

    def _define(self, flow: Flow) -> int:
        number = self._defined + 1
        spec = flow.spec
        fused = spec if isinstance(spec, FusedFunction) else None
        own = {code.main for code in spec.code} if fused is not None else set()
        blobs = {d: self._hub.catalog.blob_bytes(d) for d in spec.blobs() if d not in own}
        plain = None if fused is not None else spec
        self.control.send(Define(number, flow.tenant.name, plain, fused, blobs))
        self._defined = self._functions[flow] = number
        return number

    def forget(self, flow: Flow) -> None:
        """Keep a function no longer."""
        number = self._functions.pop(flow, None)
        if number is not None:
            self.control.send(Undefine(number))

    def stop(self, call: CallState) -> None:
        """Have a call ended soon, if it is there; it is answered all the same."""
        number = self._numbers.get(call)
        if number is not None:
            self.control.send(StopRun(number))

    def received(self, message: Message, data: memoryview | None) -> None:
        if isinstance(message, Done):
            self._done(message, data)
        elif isinstance(message, Failed):
            self._failed(message)
        elif isinstance(message, Pong):
            sent_ns = self._pings.pop(message.number, None)
            if sent_ns is None:
                raise BadPeer("it answered a heartbeat that was not sent")
            self.on_pong(message, time.monotonic_ns() - sent_ns)
        elif isinstance(message, Leave):
            self._drained = True
            self.on_leave()
        elif isinstance(message, Welcome):
            raise BadPeer("it welcomed this node twice")
        else:
            super().received(message, data)

    def _ended(self, number: int) -> SentRun:
        sent = self._sent.get(number)
        if sent is None or sent.answered:
            raise BadPeer(f"it answered call {number}, which it does not have")
        return sent

    def _off(self, number: int, sent: SentRun) -> None:
        del self._sent[number], self._numbers[sent.call]
        self.exchange.withdraw(sent.held)

    def _done(self, message: Done, data: memoryview | None) -> None:
        sent = self._ended(message.call)
        call = sent.call
        self._measure(call, message)
        call.stages = {**message.stages, f"{message.engine}@{self.peer}": message.run_ns}
        if not message.regions:
            self._finish(message, sent, unpack(message.outputs, data, {}))
            return
        regions = [region.region for region in message.regions]
        if call.cancelled:
            self.exchange.release(regions)
            self._off(message.call, sent)
            self.on_load(sent.backend, False, message)
            finish(self._hub.around.events, call, None, Cancelled("its result is not needed"))
            return
        sent.answered = True
        remember = whole_regions(message.outputs, message.regions)
        fetched = partial(self._fetched, message, sent, data, remember)
        self.exchange.fetch(message.regions, fetched, remember)

    def _fetched(
        self,
        message: Done,
        sent: SentRun,
        data: memoryview | None,
        remember: set[int],
        found: Fetched | DandelionError,
    ) -> None:
        """The outputs of a call are here, or cannot be had."""
        if self.closed:
            return
        all_regions = {region.region for region in message.regions}
        if isinstance(found, DandelionError):
            self.exchange.release(sorted(all_regions))
            self._off(message.call, sent)
            self.on_load(sent.backend, False, message)
            finish(self._hub.around.events, sent.call, None, found)
            return
        self.exchange.release(sorted(all_regions - remember))
        self.exchange.release(sorted(remember), copied=True)
        try:
            outputs = unpack(message.outputs, data, found)
        except BadPeer as error:
            self.close(str(error))
            return
        self._finish(message, sent, outputs)

    def _finish(self, message: Done, sent: SentRun, outputs: InstanceSets) -> None:
        call = sent.call
        names = [None if one is None else one.name for one in outputs]
        wanted = call.run.function.output_names
        if len(names) != len(wanted) or any(
            name not in (None, want) for name, want in zip(names, wanted, strict=False)
        ):
            raise BadPeer(f"it gave the sets {names} for '{call.run.function.name}'")
        self._off(message.call, sent)
        self.on_load(sent.backend, False, message)
        finish(self._hub.around.events, call, outputs, None)

    def _failed(self, message: Failed) -> None:
        sent = self._ended(message.call)
        call = sent.call
        self._measure(call, message)
        self.exchange.forget(message.gone)
        self._off(message.call, sent)
        error = from_record(message.error)
        lasts = isinstance(error, LASTING)
        self.on_load(sent.backend, message.refused and not lasts, message)
        events = self._hub.around.events
        if message.refused:
            if lasts:
                call.refusals = {**(call.refusals or {}), self.peer: error}
            events.failed(call, NodeLost(self.peer, f"it took no call: {error}"), begun=False)
        else:
            finish(events, call, None, error)

    @staticmethod
    def _measure(call: CallState, message: Done | Failed) -> None:
        now_ns = time.monotonic_ns()
        call.started_ns = max(call.sent_ns, now_ns - message.run_ns)
        call.ended_ns = now_ns
        call.printed = message.printed

    def _closed(self, reason: str) -> None:
        sent, self._sent = self._sent, {}
        self._numbers.clear()
        events = self._hub.around.events
        for one in sent.values():
            begun = one.answered or not self._drained
            self.lost_calls += begun
            one.call.ended_ns = time.monotonic_ns()
            events.failed(one.call, NodeLost(self.peer, reason), begun)
