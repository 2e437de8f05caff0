"""Starting engines: from the settings' list of backends to executors.

An entry of the list is a backend, or several with ``|`` between them of which the first that works
is used. Where the choice needs a device (PROCESS hosting) the engine process makes it, so the node
itself never touches one.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial

from dandelion.driver import (
    AsyncEngine,
    Checker,
    Driver,
    Engine,
    Hosting,
    Resource,
    Sharing,
    backend_names,
    load_driver,
    unknown_backend,
)
from dandelion.errors import BackendUnavailable, InvalidInput
from dandelion.executors import (
    ConfinedExecutor,
    Demands,
    Executor,
    InlineExecutor,
    LoopExecutor,
    Processes,
    ProcessExecutor,
    StartedEngine,
    Surroundings,
    ThreadExecutor,
    to_dandelion_error,
)
from dandelion.executors.coroutines import PLACES
from dandelion.function import FunctionSpec
from dandelion.node.runtime import Runtime
from dandelion.registration import Target
from dandelion.scheduler import EngineState
from dandelion.scheduler.cores import CoreDivision, CoreSide
from dandelion.scheduler.records import EnginePhase
from dandelion.settings import Settings

SHORT_THREAD_CALL_NS = 25_000_000
"""Under load a call's thread waits for the interpreter several times, 5 ms each. If calls then
counted as long, the thread would also wait for the loop after each call."""
THREAD_AHEAD = 7
"""Calls that a thread runs one after the other without the loop, which then takes all their answers
at once. With one call ahead, each call costs several switches between the thread and the loop."""
_COMPUTES = (Hosting.THREAD, Hosting.CONFINED)
ANY_NUMBER = 1 << 30
"""Places of an engine whose calls end where they begin."""


@dataclass(frozen=True, slots=True)
class Backend:
    """One entry of the list.

    Attributes:
        entry: as the settings have it.
        names: the backends that it names and that can be loaded.
        driver: the first of them: checks code.
        others: the drivers of the further ones.
    """

    entry: str
    names: tuple[str, ...]
    driver: Driver
    others: tuple[Driver, ...] = ()

    @property
    def drivers(self) -> tuple[Driver, ...]:
        """The drivers of all names."""
        return self.driver, *self.others


def load_backends(settings: Settings) -> tuple[list[Backend], list[BackendUnavailable]]:
    """Load the drivers of all entries, and give the reasons of those that cannot be loaded.

    Raises:
        InvalidInput: an entry names a backend that does not exist, or an option is unknown or bad.
    """
    loaded: list[Backend] = []
    reasons: list[BackendUnavailable] = []
    for entry in settings.backends:
        drivers: list[Driver] = []
        for name in entry.split("|"):
            try:
                driver = load_driver(name)
                driver.configure(settings.options.get(name, {}))
                drivers.append(driver)
            except BackendUnavailable as error:
                reasons.append(error)
        if drivers:
            first, *others = drivers
            loaded.append(Backend(entry, tuple(d.name for d in drivers), first, tuple(others)))
    return loaded, reasons


def check_names(settings: Settings, embedded: Iterable[str]) -> None:
    """Refuse options and numbers of engines that nothing would read.

    Options of a protocol that is served are checked by its adapter.

    Backends that are installed and not started may have both, so one file of settings can serve
    several nodes.

    Args:
        settings: of the node.
        embedded: names of drivers that the program provides.

    Raises:
        InvalidInput: a backend, or an option of it, does not exist; a number of engines is below 0.
    """
    started = {name for entry in settings.backends for name in entry.split("|")}
    for name in settings.options.keys() - started - {*embedded, *settings.protocols}:
        if name not in backend_names():
            raise unknown_backend(f"options.{name}", name)
        with contextlib.suppress(BackendUnavailable):
            load_driver(name).configure(settings.options[name])
    known = {*settings.backends, *started, *backend_names(), *embedded}
    for name, count in settings.engines.items():
        if name not in known:
            raise unknown_backend(f"engines.{name}", name)
        if count < 0:
            raise InvalidInput(f"engines.{name}", f"{count} engines", "give a number from 0")


def load_checkers(backends: list[Backend]) -> dict[str, Checker]:
    """Give a checker for every format that any installed backend runs.

    A node registers functions with code for backends that it does not run: another of their code
    objects may run here, or they are called elsewhere.
    """
    checkers: dict[str, Checker] = {}
    for name in backend_names():
        with contextlib.suppress(BackendUnavailable):
            driver = load_driver(name)
            checkers.update(dict.fromkeys(driver.formats, driver.checker()))
    for backend in backends:
        checkers.update(dict.fromkeys(backend.driver.formats, backend.driver.checker()))
    return checkers


def load_offered(platform: Mapping[str, FunctionSpec]) -> dict[str, str]:
    """Give the functions of backends that are installed and not started, and their backends."""
    offered: dict[str, str] = {}
    for name in backend_names():
        with contextlib.suppress(BackendUnavailable):
            functions = load_driver(name).platform_functions
            offered.update({f.name: name for f in functions if f.name not in platform})
    return offered


def targets(
    backends: Iterable[Backend], executors: Iterable[Executor], format_name: str
) -> list[Target]:
    """Give the devices that are up and run a format, one for each kind of device."""
    drivers = {d.name: d for b in backends for d in b.drivers}
    found: dict[tuple[str, tuple[str, ...]], Target] = {}
    for executor in executors:
        engine = executor.engine
        driver, archs = drivers.get(executor.info.backend), executor.info.capacity.archs
        closed = engine.phase in (EnginePhase.UNAVAILABLE, EnginePhase.CLOSED)
        if driver is not None and archs and not closed and format_name in engine.formats:
            found[driver.name, archs] = Target(driver.checker(), archs)
    return list(found.values())


class EngineStarter:
    """Makes the executors of a node, on its loop.

    Args:
        settings: of the node.
        around: what all executors share.
        runtime: takes them.
        division: how compute and I/O engines divide cores; None if they do not.

    Attributes:
        sharings: what was prepared for workers; to be closed after the executors.
    """

    def __init__(
        self,
        settings: Settings,
        around: Surroundings,
        runtime: Runtime,
        division: CoreDivision | None = None,
    ) -> None:
        self._settings = settings
        self._division = division
        self._around = around
        self._runtime = runtime
        self._demands = Demands()
        self._ids = itertools.count(1)
        self.sharings: list[Sharing] = []

    def start(self, backend: Backend) -> None:
        """Start the engines of one entry; they become ready in the background.

        Raises:
            BackendUnavailable: it is known at once that the backend does not work here.
        """
        driver = backend.driver
        if driver.hosting is Hosting.PROCESS:
            self._start_process(backend, "")
            return
        factory = driver.factory()
        resources = factory.probe()
        if not resources:
            raise BackendUnavailable(driver.name, "it finds nothing to run on")
        wanted = len(resources)
        if self._division is not None and driver.hosting in _COMPUTES:
            wanted = self._division.most_compute
        wanted = self._settings.engines.get(driver.name, wanted)
        if driver.hosting is Hosting.CONFINED:
            for index in range(wanted):
                self._add_confined(backend, resources[index % len(resources)])
            return
        for index in range(wanted):
            resource = resources[index % len(resources)]
            info = StartedEngine("", driver.name, resource.name, resource.description)
            self._runtime.add(self._executor(driver, info))

    def _state(self, driver: Driver, info: StartedEngine, places: int) -> EngineState:
        state = EngineState(next(self._ids), driver.formats, (info.backend, info.resource), places)
        if self._division is not None:
            if driver.hosting is Hosting.LOOP:
                state.side = CoreSide.IO
            elif driver.hosting in _COMPUTES:
                state.side = CoreSide.COMPUTE
        return state

    def _executor(self, driver: Driver, info: StartedEngine) -> Executor:
        factory, around = driver.factory(), self._around
        resource = info.resource
        if driver.hosting is Hosting.INLINE:
            state = self._state(driver, info, ANY_NUMBER)
            return InlineExecutor(
                state, info, around, lambda: _synchronous(factory.engine(resource), driver)
            )
        if driver.hosting is Hosting.THREAD:
            state = self._state(driver, info, 0)
            state.short_call_ns = SHORT_THREAD_CALL_NS
            state.joins = True
            state.ahead = THREAD_AHEAD
            return ThreadExecutor(
                state, info, around, lambda: _synchronous(factory.engine(resource), driver)
            )
        state = self._state(driver, info, PLACES)
        loop = self._runtime.loop
        return LoopExecutor(
            state, info, around, lambda: _asynchronous(factory.engine(resource), driver), loop
        )

    def _start_process(self, backend: Backend, resource: str) -> None:
        """Start the sequential engine of one resource; its answer decides what else is started.

        The first engine chooses among the backends of the entry. Once it is up, one more is started
        for each further resource, and workers that share its own.
        """
        info = StartedEngine("", backend.entry, resource)
        state = self._state(backend.driver, info, 0)

        def ready(executor: Executor) -> None:
            assert isinstance(executor, ProcessExecutor), "it lives in a process"
            answer = executor.answer
            info.backend = answer.backend
            info.description = answer.description
            info.resource = resource or answer.resources[0]
            state.device = (info.backend, info.resource)
            state.planner = answer.plans
            if state.name:
                return  # it was lost and is up again
            driver = next((d for d in backend.drivers if d.name == answer.backend), backend.driver)
            chosen = Backend(backend.entry, (answer.backend,), driver)
            if not resource:
                engines = self._settings.engines
                limit = engines.get(backend.entry, engines.get(answer.backend))
                for other in answer.resources[1:limit]:
                    self._start_process(chosen, other)
            if answer.workers:
                self._start_workers(chosen, info.resource, answer.workers, answer.elastic)

        self._add(backend, state, info, ready, {}, "sequential")

    def _start_workers(self, backend: Backend, resource: str, count: int, elastic: bool) -> None:
        """Add the workers of one resource; the scheduler says which are started."""
        name = backend.names[0]
        driver = load_driver(name)
        driver.configure(self._settings.options.get(name, {}))

        def share() -> None:
            sharing: Sharing | None = None
            try:
                sharing = driver.sharing().share(resource)
            except Exception as error:  # the sequential engine takes all calls then
                to_dandelion_error(error, f"sharing {name}:{resource}")
            add = partial(self._add_workers, backend, resource, count, elastic, sharing)
            self._runtime.post(add)

        self._runtime.starting += 1
        self._around.pool.submit(share)

    def _add_workers(
        self, backend: Backend, resource: str, count: int, elastic: bool, sharing: Sharing | None
    ) -> None:
        name = backend.names[0]
        self._runtime.starting -= 1
        if sharing is None:
            return
        self.sharings.append(sharing)
        for number in range(count):
            info = StartedEngine("", name, resource)
            state = self._state(backend.driver, info, 0)
            state.worker, state.elastic = True, elastic
            state.shared_fault_domain = sharing.shared_fault_domain

            def ready(executor: Executor, info: StartedEngine = info, number: int = number) -> None:
                assert isinstance(executor, ProcessExecutor), "it lives in a process"
                executor.engine.planner = executor.answer.plans
                info.name = f"{executor.answer.engine}/{number}"
                info.description = f"{executor.answer.description}, {sharing.description}"

            self._add(backend, state, info, ready, sharing.environment, "worker")

    def _add_confined(self, backend: Backend, resource: Resource) -> None:
        """Add an engine that starts when a call needs it."""
        driver = backend.driver
        info = StartedEngine("", driver.name, resource.name, resource.description)
        state = self._state(driver, info, 0)
        state.joins = state.on_demand = True
        state.short_call_ns, state.ahead = SHORT_THREAD_CALL_NS, THREAD_AHEAD
        options = {driver.name: self._settings.options.get(driver.name, {})}
        spin_us = self._settings.spins_us[1]
        processes = Processes((driver.name,), resource.name, options, {}, None, spin_us)
        self._runtime.add(
            ConfinedExecutor(
                state,
                info,
                self._around,
                processes,
                self._runtime,
                self._demands,
                driver.checker().binary,
            )
        )

    def _add(
        self,
        backend: Backend,
        state: EngineState,
        info: StartedEngine,
        ready: Callable[[Executor], None],
        environment: Mapping[str, str],
        role: str,
    ) -> None:
        state.joins = True
        options = {name: self._settings.options.get(name, {}) for name in backend.names}
        processes = Processes(
            backend.names,
            info.resource,
            {name: {**given, "role": role} for name, given in options.items()},
            environment,
            self._around.arena.map,
            self._settings.spins_us[1],
        )
        executor = ProcessExecutor(
            state, info, self._around, processes, self._runtime, self._demands
        )
        executor.ready = ready
        self._runtime.add(executor)


def _synchronous(engine: Engine | AsyncEngine, driver: Driver) -> Engine:
    if isinstance(engine, AsyncEngine):
        hosting = driver.hosting.name
        raise BackendUnavailable(engine.name, f"its hosting is {hosting}, its engine asynchronous")
    return engine


def _asynchronous(engine: Engine | AsyncEngine, driver: Driver) -> AsyncEngine:
    if isinstance(engine, Engine):
        raise BackendUnavailable(engine.name, "its hosting is LOOP, its engine synchronous")
    return engine
