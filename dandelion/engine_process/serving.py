"""Serve an engine to the process at the other end of a socket: calls in, answers out."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import ClassVar

from dandelion.data import Bytes, Item, ItemSet
from dandelion.driver import Call, Driver, Engine, InstanceSets, Resource, load_driver
from dandelion.engine_process.messages import (
    Begun,
    Channel,
    Done,
    Ended,
    Failed,
    Forget,
    Load,
    Open,
    Ready,
    Request,
    Run,
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


@dataclass(slots=True)
class _Call(Call):
    """A call whose node is told when it begins later than it came."""

    node: Channel[Request] | None = None

    def start_deadline(self, now_ns: int) -> None:
        Call.start_deadline(self, now_ns)
        if self.node is not None:
            self.node.send(Begun(self.id))


class EngineProcess:
    """Serves one engine to the node."""

    def __init__(self, node: Channel[Request], arena: ArenaMap, spin_us: int) -> None:
        self._node = node
        self._arena = arena
        self._spin_ns = 1000 * spin_us
        self._functions: dict[str, Function] = {}

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
                factory.attach(self._arena)
                resources = factory.probe()
                chosen = resource or resources[0].name
                factory.warm(chosen)
                order = order or self._node.receive()
                if isinstance(order, Open) and order.hurry:
                    factory.prepare_failover(order.device_bytes)
                engine = factory.engine(chosen)
            except BackendUnavailable as error:
                reasons.append(error)
                continue
            assert isinstance(engine, Engine), "only synchronous engines live in a process"
            self._greet(driver, engine, chosen, resources)
            return engine
        if len(reasons) == 1:
            raise reasons[0]
        missing = "; ".join(f"{r.backend}: {r.missing}" for r in reasons)
        remedy = next((r.remedy for r in reversed(reasons) if r.remedy), "")
        raise BackendUnavailable("|".join(backends), missing, remedy)

    def _greet(
        self, driver: Driver, engine: Engine, chosen: str, resources: list[Resource]
    ) -> None:
        names = tuple(r.name for r in resources)
        description = next((r.description for r in resources if r.name == chosen), chosen)
        self._node.send(
            Ready(
                driver.name,
                engine.name,
                names,
                description,
                engine.capacity,
                engine.workers,
                engine.standby,
            )
        )

    def serve(self, engine: Engine) -> None:
        """Answer requests until the node leaves or the engine can no longer work."""
        while True:
            try:
                request = self._node.receive(spin_ns=self._spin_ns)
            except Ended:
                return
            assert request is not None, "it waits without a limit"
            if isinstance(request, Load):
                self._functions[request.identity] = Function(
                    request.spec,
                    request.code,
                    request.main,
                    request.files,
                    {name: self._set(wire) for name, wire in request.static.items()},
                    identity=Digest(request.identity),
                )
            elif isinstance(request, Forget):
                function = self._functions.pop(request.identity, None)
                if function is not None:
                    engine.forget(function)
            elif isinstance(request, Run) and self._run(engine, request):
                return

    def _run(self, engine: Engine, request: Run) -> bool:
        """Run a call and answer it. True if the process must leave: its device is lost."""
        function = self._functions[request.identity]
        inputs: list[ItemSet | None] = [None] * len(function.spec.inputs)
        for position, wire in zip(function.given, request.inputs, strict=True):
            inputs[position] = None if wire is None else self._set(wire)
        call = _Call(
            request.call,
            function,
            function.with_static(inputs),
            SliceDomain(self._arena, request.result_offset, request.result_bytes),
            min(request.latest_ns, time.monotonic_ns() + int(request.limit_s * 1e9)),
            request.limit_s,
            latest_ns=request.latest_ns,
            node=self._node,
        )
        try:
            outputs = self._wire(engine.run(call))
        except DandelionError as error:
            fatal = engine.lost or isinstance(error, DeviceFault | EngineDied)
            self._node.send(Failed(request.call, error.record(), call.stages, fatal))
            return fatal
        self._node.send(Done(request.call, outputs, call.stages))
        engine.clean_up()
        return False

    def _set(self, wire: WireSet) -> ItemSet:
        view = self._arena.view
        items = tuple(
            Item(
                i.name,
                i.key,
                view[i.offset : i.offset + i.size].toreadonly() if i.size else b"",
                i.dtype,
                i.shape,
            )
            for i in wire.items
        )
        return ItemSet(wire.name, items, wire.dtype, wire.shape)

    def _wire(self, sets: InstanceSets) -> WireSets:
        return tuple(None if s is None else wire_set(s, self._arena) for s in sets)
