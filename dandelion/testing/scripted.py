"""A backend whose every step is a callable that a test gives."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from dandelion.driver import (
    AsyncEngine,
    Call,
    Capacity,
    Checker,
    Demand,
    DeviceSharing,
    Driver,
    Engine,
    EngineFactory,
    Hosting,
    InstanceSets,
    Planner,
    Resource,
    Sharing,
)
from dandelion.errors import EngineDied
from dandelion.function import Function

Run: TypeAlias = Callable[[Engine, Call], InstanceSets]
RunAsync: TypeAlias = Callable[[AsyncEngine, Call], Awaitable[InstanceSets]]
Reads: TypeAlias = tuple[tuple[int, int], ...]


def echo(engine: object, call: Call) -> InstanceSets:
    """Give each input set as the output set at its position; outputs beyond them are empty."""
    count = len(call.function.spec.outputs)
    return (*call.inputs[:count], *[None] * (count - len(call.inputs)))


async def echo_async(engine: object, call: Call) -> InstanceSets:
    """Do as `echo`, on an event loop."""
    return echo(engine, call)


def _cannot_recover(engine: Engine) -> None:
    raise EngineDied(engine.name, "its script does not let it recover")


@dataclass(slots=True)
class Script:
    """What a scripted backend does at each step. Any step may raise, block or be replaced at any
    time, also while the backend is in use.

    Attributes:
        run: a call, in an engine that is not hosted by a loop.
        run_async: a call, in an engine on a loop.
        start: before an engine of this resource is up.
        cancel: whether a call with this id could be cancelled.
        clean_up: after the outputs of a call were handed over.
        recover: after an engine was lost; it works again unless this raises.
        close: as an engine is closed.
        check, prepare: code, at registration.
        reads, demand: see `Planner`; without `demand` the driver has no planner.
        share: how engine processes share a resource.
    """

    run: Run = echo
    run_async: RunAsync = echo_async
    start: Callable[[str], object] = lambda resource: None
    cancel: Callable[[int], bool] = lambda call_id: False
    clean_up: Callable[[], object] = lambda: None
    recover: Callable[[Engine], object] = _cannot_recover
    close: Callable[[], object] = lambda: None
    check: Callable[[Sequence[Function]], object] = lambda functions: None
    prepare: Callable[[Function, tuple[str, ...]], object] = lambda function, archs: None
    reads: Callable[[Function], Reads] = lambda function: ()
    demand: Callable[[Function, InstanceSets], Demand] | None = None
    share: Callable[[str], Sharing] = lambda resource: Sharing()


@dataclass(slots=True)
class Seen:
    """What happened to a scripted backend, in order.

    Attributes:
        ran: name of the engine and of the function, for each call as it began.
        cancelled: ids of calls that should be cancelled.
        prepared: name of the function and architectures.
        closed: names of engines.
        options: that it was configured with.
    """

    ran: list[tuple[str, str]] = field(default_factory=list)
    cancelled: list[int] = field(default_factory=list)
    prepared: list[tuple[str, tuple[str, ...]]] = field(default_factory=list)
    closed: list[str] = field(default_factory=list)
    options: dict[str, str] = field(default_factory=dict)


_ONE: Mapping[str, Capacity] = {"0": Capacity()}


class ScriptedDriver(Driver):
    """A backend that does as its script says.

    With PROCESS hosting no engine can be started from it, since an engine process finds backends by
    entry point; `FakeEngineProcess` plays the process then.

    Args:
        name: of the backend.
        script: the steps; by default calls give their inputs back.
        hosting: where engines run.
        resources: capacity of the engine on each resource, by the resource's name.
        code_format: the only format that it runs; by default its name.

    Attributes:
        script: the steps.
        seen: what happened.
    """

    def __init__(
        self,
        name: str = "scripted",
        script: Script | None = None,
        hosting: Hosting = Hosting.THREAD,
        resources: Mapping[str, Capacity] = _ONE,
        code_format: str = "",
    ) -> None:
        # Drivers have these by class; each of these drivers has its own.
        self.name = name  # type: ignore[misc]
        self.formats = frozenset({code_format or name})  # type: ignore[misc]
        self.hosting = hosting  # type: ignore[misc]
        self.script = script or Script()
        self.seen = Seen()
        self._checker = _ScriptedChecker(self)
        self._planner = _ScriptedPlanner(self)
        self._factory = _ScriptedFactory(
            self, {"0": Capacity()} if resources is None else resources
        )
        self._sharing = _ScriptedSharing(self)

    def configure(self, options: Mapping[str, str]) -> None:
        self.seen.options.update(options)

    def checker(self) -> Checker:
        return self._checker

    def planner(self) -> Planner | None:
        return None if self.script.demand is None else self._planner

    def factory(self) -> EngineFactory:
        return self._factory

    def sharing(self) -> DeviceSharing:
        return self._sharing


class ScriptedEngine(Engine):
    """An engine that does as its driver's script says."""

    def __init__(self, driver: ScriptedDriver, resource: str, capacity: Capacity) -> None:
        self.name = f"{driver.name}:{resource}"
        self.capacity = capacity
        self.lost = False
        self._driver = driver

    def _run(self, call: Call) -> InstanceSets:
        self._driver.seen.ran.append((self.name, call.function.spec.name))
        return self._driver.script.run(self, call)

    def cancel(self, call_id: int) -> bool:
        self._driver.seen.cancelled.append(call_id)
        return self._driver.script.cancel(call_id)

    def clean_up(self) -> None:
        self._driver.script.clean_up()

    def recover(self) -> None:
        self._driver.script.recover(self)
        self.lost = False

    def close(self) -> None:
        self._driver.seen.closed.append(self.name)
        self._driver.script.close()


class ScriptedAsyncEngine(AsyncEngine):
    """The same for an event loop."""

    def __init__(self, driver: ScriptedDriver, resource: str) -> None:
        self.name = f"{driver.name}:{resource}"
        self._driver = driver

    async def _run(self, call: Call) -> InstanceSets:
        self._driver.seen.ran.append((self.name, call.function.spec.name))
        return await self._driver.script.run_async(self, call)

    async def close(self) -> None:
        self._driver.seen.closed.append(self.name)
        closed = self._driver.script.close()
        if inspect.isawaitable(closed):
            await closed


class _ScriptedChecker(Checker):
    def __init__(self, driver: ScriptedDriver) -> None:
        self._driver = driver

    def check(self, functions: Sequence[Function]) -> None:
        self._driver.script.check(functions)

    def prepare(self, function: Function, archs: tuple[str, ...]) -> None:
        self._driver.seen.prepared.append((function.spec.name, archs))
        self._driver.script.prepare(function, archs)


class _ScriptedPlanner(Planner):
    def __init__(self, driver: ScriptedDriver) -> None:
        self._driver = driver

    def reads(self, function: Function) -> Reads:
        return self._driver.script.reads(function)

    def demand(self, function: Function, inputs: InstanceSets) -> Demand:
        demand = self._driver.script.demand
        return Demand() if demand is None else demand(function, inputs)


class _ScriptedFactory(EngineFactory):
    def __init__(self, driver: ScriptedDriver, resources: Mapping[str, Capacity]) -> None:
        self._driver = driver
        self._resources = resources

    def probe(self) -> list[Resource]:
        self._require_own_process()
        return [Resource(name, f"{self._driver.name} {name}") for name in self._resources]

    def engine(self, resource: str) -> Engine | AsyncEngine:
        self._require_own_process()
        self._driver.script.start(resource)
        if self._driver.hosting is Hosting.LOOP:
            return ScriptedAsyncEngine(self._driver, resource)
        return ScriptedEngine(self._driver, resource, self._resources[resource])

    def _require_own_process(self) -> None:
        if self._driver.hosting is Hosting.PROCESS:
            raise AssertionError("a node leaves devices to engine processes")


class _ScriptedSharing(DeviceSharing):
    def __init__(self, driver: ScriptedDriver) -> None:
        self._driver = driver

    def share(self, resource: str) -> Sharing:
        return self._driver.script.share(resource)
