"""Serve an engine to the process at the other end of a socket: calls in, answers out."""

from __future__ import annotations

import contextlib
import os
import time
from collections import deque
from typing import ClassVar

from dandelion.data import Bytes, Item, ItemSet
from dandelion.driver import (
    Driver,
    Engine,
    EngineFactory,
    InstanceSets,
    Planner,
    Resource,
    SharedConstants,
    load_driver,
)
from dandelion.engine_process.calls import ServedCall
from dandelion.engine_process.channel import Channel, Ended
from dandelion.engine_process.descriptors import DescriptorChannel
from dandelion.engine_process.messages import (
    Begun,
    Done,
    Evict,
    Failed,
    Forget,
    Load,
    Open,
    Plan,
    Planned,
    Ready,
    Request,
    Run,
    Shared,
    StopCall,
    WireItem,
    WireSet,
    WireSets,
    wire_set,
)
from dandelion.errors import (
    BackendUnavailable,
    ContextFull,
    DandelionError,
    DeviceFault,
    EngineDied,
)
from dandelion.function import Digest, Function
from dandelion.memory import ArenaMap, Context, DomainStats, MemoryDomain
from dandelion.polling import OF_ENGINE, Polling

_ALIGNMENT_BYTES = 256


class SliceDomain(MemoryDomain):
    """The context that the node acquired for a call's outputs, given out piece by piece."""

    kind: ClassVar[str] = "shared"

    def __init__(self, arena: ArenaMap, offset_bytes: int, size_bytes: int) -> None:
        self._arena = arena
        self._next = offset_bytes
        self._end = offset_bytes + size_bytes
        self._size_bytes = size_bytes

    def _acquire(self, size_bytes: int) -> Context:
        start = -(-self._next // _ALIGNMENT_BYTES) * _ALIGNMENT_BYTES
        if start + size_bytes > self._end:
            raise ContextFull("result context", size_bytes, max(0, self._end - start))
        self._next = start + size_bytes
        return Context(self, start, size_bytes, self._arena.view[start : start + size_bytes])

    def locate(self, data: Bytes) -> int | None:
        return self._arena.locate(data)

    def stats(self) -> DomainStats:
        return DomainStats(self._size_bytes, self._size_bytes - (self._end - self._next), 0)


class EngineProcess:
    """Serves one engine to the node.

    Args:
        node: the channel to the node.
        arena: None if the process is confined.
        descriptors: passes descriptors of constants from and to the node.
    """

    def __init__(
        self,
        node: Channel[Request],
        arena: ArenaMap | None,
        descriptors: DescriptorChannel | None = None,
    ) -> None:
        self.node = node
        self._descriptors = descriptors
        self._arena = arena
        self._polling = Polling(OF_ENGINE)
        self._functions: dict[str, Function] = {}
        self._planner: Planner | None = None
        self._requests: deque[Request] = deque()
        self._stopped: set[int] = set()

    def open(
        self, backends: list[str], resource: str, options: dict[str, dict[str, str]]
    ) -> Engine:
        """Prepare the first backend that works, open its engine when told to, and tell the node.

        Raises:
            BackendUnavailable: none works; the error names every one with its reason.
            Ended: the node does not want it any more.
        """
        order: Request | None = None
        reasons: list[BackendUnavailable] = []
        for name in backends:
            try:
                driver = load_driver(name)
                driver.configure(options.get(name, {}))
                factory = driver.factory()
                if self._arena is not None:
                    factory.attach(self._arena)
                resources = factory.probe()
                chosen = resource or resources[0].name
                factory.warm(chosen)
                order = order or self.node.receive()
                if isinstance(order, Open) and order.failover:
                    factory.prepare_failover(order.device_bytes)
                engine = factory.engine(chosen)
            except BackendUnavailable as error:
                reasons.append(error)
                continue
            assert isinstance(engine, Engine), "only synchronous engines live in a process"
            try:
                self._planner = driver.planner()
                self._confine(factory, engine)
                self._greet(driver, engine, chosen, resources)
            except BaseException:  # such as the end of the node
                engine.close()
                raise
            return engine
        if len(reasons) == 1:
            raise reasons[0]
        missing = "; ".join(f"{r.backend}: {r.missing}" for r in reasons)
        remedy = next((r.remedy for r in reversed(reasons) if r.remedy), "")
        raise BackendUnavailable("|".join(backends), missing, remedy)

    def _confine(self, factory: EngineFactory, engine: Engine) -> None:
        """Give up rights before the node is told that the engine is up, if it runs user code."""

    def _greet(
        self, driver: Driver, engine: Engine, chosen: str, resources: list[Resource]
    ) -> None:
        names = tuple(r.name for r in resources)
        description = next((r.description for r in resources if r.name == chosen), chosen)
        self.node.send(
            Ready(
                driver.name,
                engine.name,
                names,
                description,
                engine.capacity,
                engine.workers,
                engine.standby,
                self._planner is not None,
                engine.elastic,
            )
        )

    def serve(self, engine: Engine) -> None:
        """Answer requests until the node leaves or the engine can no longer work."""
        while True:
            try:
                request = self._next()
            except Ended:
                return
            if isinstance(request, Run):
                if self._run(engine, request):
                    return
            elif isinstance(request, Plan):
                self._plan(request)
            elif isinstance(request, Load):
                self._functions[request.identity] = self._loaded(request)
            elif isinstance(request, Evict):
                engine.evict(self._functions[request.identity])
            elif isinstance(request, Forget):
                function = self._functions.pop(request.identity, None)
                if function is not None:
                    engine.forget(function)

    def _next(self) -> Request:
        if self._requests:
            return self._requests.popleft()
        request = self.node.receive(polling=self._polling)
        assert request is not None, "it waits without a limit"
        return request

    def begun(self, call: int) -> None:
        """Tell the node that the time of a call counts from now."""
        self.node.send(Begun(call))

    def is_stopped(self, call: int) -> bool:
        """Tell whether the node does not want the result of a call any more; never waits."""
        self._waiting_calls()
        return call in self._stopped

    def _waiting_calls(self) -> int:
        """Read all requests that are here; gives the number of those that wait."""
        with contextlib.suppress(Ended):  # `serve` comes to that later
            while (request := self.node.take()) is not None:
                if isinstance(request, StopCall):
                    self._stopped.add(request.call)
                else:
                    self._requests.append(request)
        return len(self._requests)

    def _loaded(self, request: Load) -> Function:
        code = {name: self._code(wire) for name, wire in request.files.items()}
        return Function(
            request.spec,
            request.code,
            self._code(request.main),
            code,
            {name: self._set(wire) for name, wire in request.static.items()},
            identity=Digest(request.identity),
            scope=request.scope,
            binary=self._binary(request),
        )

    def _binary(self, request: Load) -> Bytes:
        return b""

    def _code(self, wire: bytes | WireItem) -> bytes:
        return wire if isinstance(wire, bytes) else bytes(self._item(wire).data)

    def _inputs(self, function: Function, wired: WireSets) -> InstanceSets:
        inputs: list[ItemSet | None] = [None] * len(function.spec.inputs)
        for position, wire in zip(function.given, wired, strict=True):
            inputs[position] = None if wire is None else self._set(wire)
        return function.with_static(inputs)

    def _plan(self, request: Plan) -> None:
        assert self._planner is not None, "the node was told that there is one"
        function = self._functions[request.identity]
        try:
            demand = self._planner.demand(function, self._inputs(function, request.inputs))
            reads = self._planner.reads(function)
        except DandelionError as error:
            self.node.send(Failed(request.call, error.record()))
        else:
            self.node.send(Planned(request.call, demand, reads))

    def _run(self, engine: Engine, request: Run) -> bool:
        """Run a call and answer it. True if the process must leave: its device is lost."""
        function = self._functions[request.identity]
        call = ServedCall(
            request.call,
            function,
            self._inputs(function, request.inputs),
            self._domain(function, request),
            min(request.latest_ns, time.monotonic_ns() + int(request.limit_s * 1e9)),
            request.limit_s,
            latest_ns=request.latest_ns,
            keep_constants=request.keep,
            shared_constants=self._shared(request),
            owner=self,
        )
        try:
            outputs = engine.run(call)
            if OF_ENGINE.limit_ns:
                OF_ENGINE.counted(1 + self._waiting_calls())
        except DandelionError as error:
            fatal = engine.lost or isinstance(error, DeviceFault | EngineDied)
            self.node.send(Failed(request.call, error.record(), call.stages, fatal))
            return fatal
        finally:
            self._stopped.discard(request.call)
            if call.shared_constants is not None:
                os.close(call.shared_constants.descriptor)
        self._done(request, outputs, call.stages)
        del outputs  # its data ends before the memory of the call is cleaned up
        engine.clean_up()
        return False

    def _shared(self, request: Run) -> SharedConstants | None:
        if not request.shared or self._descriptors is None:
            return None
        descriptor = self._descriptors.receive()
        return None if descriptor < 0 else SharedConstants(request.shared, descriptor)

    def share(self, call: int, constants: SharedConstants) -> None:
        """Send the node a descriptor of constants that a call has copied to the device."""
        if self._descriptors is not None and self._descriptors.send(constants.descriptor):
            self.node.send(Shared(call, constants.key))

    def _domain(self, function: Function, request: Run) -> MemoryDomain:
        return SliceDomain(self._mapped, request.result_offset, request.result_bytes)

    @property
    def _mapped(self) -> ArenaMap:
        assert self._arena is not None, "only confined processes have none"
        return self._arena

    def _done(self, request: Run, sets: InstanceSets, stages: dict[str, int]) -> None:
        """Answer a call with its outputs."""
        self.node.send(Done(request.call, self._wire(sets), stages))

    def _item(self, wire: WireItem) -> Item:
        end = wire.offset + wire.size
        data = self._mapped.view[wire.offset : end].toreadonly() if wire.size else b""
        return Item(wire.name, wire.key, data, wire.dtype, wire.shape)

    def _set(self, wire: WireSet) -> ItemSet:
        items = tuple([self._item(item) for item in wire.items])
        return ItemSet(wire.name, items, wire.dtype, wire.shape)

    def _wire(self, sets: InstanceSets) -> WireSets:
        return tuple(None if s is None else wire_set(s, self._mapped) for s in sets)
