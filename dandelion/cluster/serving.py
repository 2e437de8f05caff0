"""Calls of other nodes: each is run on engines of this node, and never sent on.

A call of another node is an invocation of one instance to this node's scheduler: tenants, quotas,
fairness, functions in memory and retries are as for all others. It is no invocation to metrics and
traces, since the node that owns it counts it.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterable
from functools import partial
from typing import Protocol

import msgspec

from dandelion.cluster.call_messages import Define, Done, Failed, Load, Run, StopRun, Undefine
from dandelion.cluster.control_end import ControlEnd, Hub
from dandelion.cluster.exchange import Exchange, Fetched
from dandelion.cluster.frames import Frames
from dandelion.cluster.handshake import BadPeer
from dandelion.cluster.instance_walk import InstanceWalk
from dandelion.cluster.messages import Leave, Message, Ping, Pong
from dandelion.cluster.shares import ToldShares
from dandelion.cluster.wire_sets import named_regions, pack, unpack
from dandelion.dispatcher import CompositionPlan
from dandelion.dispatcher.plan import direct_plan
from dandelion.driver import InstanceSets
from dandelion.errors import (
    BackendUnavailable,
    Cancelled,
    Conflict,
    ContextFull,
    DandelionError,
    NodeLost,
    NoEngine,
    Overloaded,
    TooLarge,
    TooMany,
)
from dandelion.function import FunctionSpec, Limits
from dandelion.node.invocation import Invocation
from dandelion.scheduler import Tenant
from dandelion.traces import Trace

FUNCTIONS_LIMIT = 100_000
RUNS_LIMIT = 65536
"""Calls that one other node may have here at once."""
_REFUSALS = (NoEngine, BackendUnavailable, NodeLost, Overloaded)
"""Errors of calls that did not begin, since this node lacks something."""
_ids = itertools.count(1)


class Host(Hub, Protocol):
    """What serving needs of the node."""

    def load(self, received: int) -> Load:
        """Tell what this node has."""

    def tenants(self) -> Iterable[Tenant]:
        """Give the tenants of this node."""

    def members(self) -> tuple[str, ...]:
        """Names of the nodes that this one knows."""

    def registered(self) -> int:
        """Length of the catalogue's log."""

    @property
    def draining(self) -> bool:
        """Whether this node takes no more calls."""

    def tenant(self, name: str) -> Tenant:
        """Give a tenant of this node."""

    def known(self, tenant: str, spec: FunctionSpec) -> FunctionSpec | None:
        """Give the function of that name and version that this node has run or would run."""

    def capped(self, spec: FunctionSpec) -> FunctionSpec:
        """Lower the limits of a function to those of this node."""

    def announce(self, blobs: dict[str, int], peer: ControlEnd) -> None:
        """Another node has blobs."""

    def submit(self, invocation: Invocation) -> None:
        """Begin an invocation; raises as the scheduler."""

    def cancel(self, invocation: Invocation, error: DandelionError) -> None:
        """End one."""

    def left(self, peer: str) -> None:
        """Another node shuts down."""


class _Served:
    """A call of the other node. `invocation` is None until its inputs are here."""

    __slots__ = ("cancelled", "invocation", "regions")

    def __init__(self) -> None:
        self.invocation: Invocation | None = None
        self.cancelled = False
        self.regions: list[int] = []


class _Known(msgspec.Struct, frozen=True, eq=False):
    """A function that the other node calls."""

    tenant: str
    plan: CompositionPlan
    spec: FunctionSpec


class InLink(ControlEnd):
    """The end of a link that another node opened: runs its calls.

    Attributes:
        count: of calls that came.
        heard_ns: when its last message came; it sends heartbeats.
        shares: what it is told of tenants' engine time.
    """

    def __init__(self, peer: str, control: Frames, exchange: Exchange, host: Host) -> None:
        super().__init__(peer, control, exchange, host)
        self._host = host
        self._functions: dict[int, _Known] = {}
        self._runs: dict[int, _Served] = {}
        self.count = 0
        self.shares = ToldShares(host.tenants())
        self.heard_ns = time.monotonic_ns()

    @property
    def under_way(self) -> int:
        """How many calls of the other node are here."""
        return len(self._runs)

    def received(self, message: Message, data: memoryview | None) -> None:
        self.heard_ns = time.monotonic_ns()
        if isinstance(message, Run):
            self._run(message, data)
        elif isinstance(message, Ping):
            host = self._host
            load = host.load(self.count)
            members, registered = host.members(), host.registered()
            used = self.shares.next(host.tenants())
            pong = Pong(message.number, load, members, registered, host.draining, *used)
            self.control.send(pong, urgent=True)
        elif isinstance(message, Define):
            self._define(message)
        elif isinstance(message, Undefine):
            self._functions.pop(message.function, None)
        elif isinstance(message, StopRun):
            self._stop(message.call)
        elif isinstance(message, Leave):
            self._host.left(self.peer)
        else:
            super().received(message, data)

    def _define(self, message: Define) -> None:
        spec = message.spec if message.fused is None else message.fused
        if spec is None or message.function in self._functions:
            raise BadPeer("it defined no function, or one twice")
        if len(self._functions) >= FUNCTIONS_LIMIT:
            raise BadPeer(f"it defined more than {FUNCTIONS_LIMIT} functions")
        spec = self._host.capped(spec)
        self._functions[message.function] = _Known(message.tenant, direct_plan(spec), spec)
        self._host.announce({str(d): size for d, size in message.blobs.items()}, self)

    def _run(self, message: Run, data: memoryview | None) -> None:
        known = self._functions.get(message.function)
        if known is None or message.call in self._runs:
            raise BadPeer("it called a function that it did not define, or used a number twice")
        if len(self._runs) >= RUNS_LIMIT:
            raise BadPeer(f"it has more than {RUNS_LIMIT} calls here")
        self.count += 1
        served = self._runs[message.call] = _Served()
        if self._host.draining:
            self._refuse(message.call, Cancelled("the node is shutting down"))
            return
        own: dict[int, memoryview] = {}
        for region in named_regions(message.inputs):
            view = self.exchange.regions.whole(region)
            if view is None:
                gone = NodeLost(self.peer, "data that it kept was dropped")
                self._refuse(message.call, gone, (region,))
                return
            own[-region] = view
        if not message.regions:
            self._begin(message, known, served, data, own)
            return
        fetched = partial(self._fetched, message, known, served, data, own)
        self.exchange.fetch(message.regions, fetched)

    def _fetched(
        self,
        message: Run,
        known: _Known,
        served: _Served,
        data: memoryview | None,
        own: dict[int, memoryview],
        found: Fetched | DandelionError,
    ) -> None:
        if self.closed:
            return
        if served.cancelled:
            self._fail(message.call, Cancelled("before it began"))
        elif isinstance(found, ContextFull) and found.needed_bytes > self.exchange.limit_bytes:
            self._fail(message.call, found)  # it will never fit
        elif isinstance(found, DandelionError):
            self._refuse(message.call, found)
        else:
            try:
                self._begin(message, known, served, data, {**own, **found})
            except BadPeer as error:
                self.close(str(error))

    def _begin(
        self,
        message: Run,
        known: _Known,
        served: _Served,
        data: memoryview | None,
        regions: dict[int, memoryview],
    ) -> None:
        inputs = unpack(message.inputs, data, regions)
        names = known.spec.input_names
        if len(inputs) != len(names):
            raise BadPeer(f"it gave {len(inputs)} sets to '{known.spec.name}'")
        try:
            plan = self._plan(known)
            tenant = self._host.tenant(known.tenant)
            now_ns = time.monotonic_ns()
            id_ = message.invocation or f"served-{next(_ids):x}"
            invocation = Invocation(
                f"{self.peer}#{next(_ids):x}",
                tenant,
                InstanceWalk(plan, message.origin, message.attempt),
                inputs,
                now_ns + int(message.deadline_s * 1e9),
                message.deadline_s,
                sum([s.size_bytes for s in inputs if s is not None]),
                message.priority,
                served=True,
                served_ns=self.shares.uncharged.setdefault(tenant.name, {}),
                trace=Trace(id_, known.spec.name, now_ns, tenant.name),
            )
            pure = known.spec.kind == "compute" or known.spec.idempotent
            invocation.on_end = partial(self._ended, message.call, pure)
            served.invocation = invocation
            self._host.submit(invocation)
        except DandelionError as error:
            served.invocation = None
            self._refuse(message.call, error)

    def _plan(self, known: _Known) -> CompositionPlan:
        """Give the plan of a function, if it is the same as the one of that name here.

        Raises:
            Conflict: it is another one: the nodes' catalogues differ.
        """
        here = self._host.known(known.tenant, known.spec)
        if here is not None and _unlimited(here) != _unlimited(known.spec):
            text = f"this node has another version {known.spec.version} of it"
            raise Conflict("function", known.spec.name, text)
        return known.plan

    def _stop(self, number: int) -> None:
        served = self._runs.get(number)
        if served is not None:
            served.cancelled = True
            if served.invocation is not None:
                self._host.cancel(served.invocation, Cancelled("its caller left"))

    def _ended(self, number: int, pure: bool, invocation: Invocation) -> None:
        """A call has its outputs or its error. One that is not pure is refused only untouched."""
        if self.closed or number not in self._runs:
            return
        error, outputs = invocation.error, invocation.outputs
        invocation.error = invocation.outputs = None
        if error is not None:
            if isinstance(error, _REFUSALS) and (pure or not invocation.calls_ended):
                self._refuse(number, error)
            else:
                self._fail(number, error, invocation)
            return
        assert outputs is not None, "it ended"
        try:
            self._give(number, invocation, outputs)
        except (TooLarge, TooMany) as large:
            self._fail(number, large, invocation)
        except BadPeer as broken:
            self.close(str(broken))

    def _give(self, number: int, invocation: Invocation, outputs: InstanceSets) -> None:
        """Send the outputs of a call."""
        packed = pack(outputs, self.exchange)
        call = invocation.trace.calls[-1] if invocation.trace.calls else None
        message = Done(
            number,
            packed.sets,
            tuple(packed.regions),
            self._host.load(self.count),
            0 if call is None else call.ended_ns - call.started_ns,
            "" if call is None else call.engine,
            {} if call is None else call.stages,
            invocation.printed,
        )
        try:
            self.control.send(message, packed.data, limited=False)
        except TooLarge:
            self.exchange.withdraw([region.region for region in packed.regions])
            raise
        del self._runs[number]

    def _refuse(self, number: int, error: DandelionError, gone: tuple[int, ...] = ()) -> None:
        """Give a call back that was not begun."""
        del self._runs[number]
        load = self._host.load(self.count)
        self.control.send(Failed(number, error.record(), load, True, gone=gone))

    def _fail(
        self, number: int, error: DandelionError, invocation: Invocation | None = None
    ) -> None:
        del self._runs[number]
        load = self._host.load(self.count)
        call = invocation.trace.calls[-1] if invocation and invocation.trace.calls else None
        self.control.send(
            Failed(
                number,
                error.record(),
                load,
                False,
                0 if call is None else call.ended_ns - call.started_ns,
                "" if call is None else call.engine,
                () if invocation is None else invocation.printed,
            )
        )

    def _closed(self, reason: str) -> None:
        runs, self._runs = self._runs, {}
        for served in runs.values():
            served.cancelled = True
            if served.invocation is not None:
                self._host.cancel(served.invocation, Cancelled("its owner is gone"))


def _unlimited(spec: FunctionSpec) -> FunctionSpec:
    return msgspec.structs.replace(spec, limits=Limits())
