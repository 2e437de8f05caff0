"""Starting engines: from the backends of a node to executors.

Of the backends of an entry the first that works is used. Where the choice needs a device (PROCESS
hosting) the engine process makes it, so the node itself never touches one.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from functools import partial

from dandelion.controllers.cores import CoreDivision
from dandelion.driver import (
    AsyncEngine,
    Driver,
    Engine,
    Hosting,
    Resource,
    Sharing,
    load_driver,
)
from dandelion.errors import BackendUnavailable
from dandelion.executors import (
    ConfinedExecutor,
    ConstantsExchange,
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
from dandelion.node.loaded_backends import Backend
from dandelion.node.runtime import Runtime
from dandelion.scheduler import EngineState
from dandelion.scheduler.cores import CoreSide
from dandelion.search_path import one_blas_thread
from dandelion.settings import Settings

SHORT_THREAD_CALL_NS = 25_000_000
"""Under load a call's thread waits for the interpreter several times, 5 ms each. If calls then
counted as long, the thread would also wait for the loop after each call."""
THREAD_AHEAD = 7
"""Calls that a thread runs one after the other without the loop, which then takes all their answers
at once. With one call ahead, each call costs several switches between the thread and the loop."""
PROCESS_AHEAD = 3
"""Calls that an engine process has beside the one that runs, if they are short together. The loop
then handles several answers at once, and sends the next calls in one message."""
_COMPUTES = (Hosting.THREAD, Hosting.CONFINED)
ANY_NUMBER = 1 << 30
"""Places of an engine whose calls end where they begin."""


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
        self._exchanges: dict[tuple[str, str], ConstantsExchange] = {}
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
        state.ahead = PROCESS_AHEAD

        def ready(executor: Executor) -> None:
            assert isinstance(executor, ProcessExecutor), "it lives in a process"
            answer = executor.answer
            info.backend = answer.backend
            info.description = answer.description
            info.resource = resource or answer.resources[0]
            state.device = (info.backend, info.resource)
            state.planner = answer.plans
            executor.share_constants(self._exchange(state))
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

    def _exchange(self, engine: EngineState) -> ConstantsExchange:
        exchange = self._exchanges.get(engine.device)
        if exchange is None:
            exchange = self._exchanges[engine.device] = ConstantsExchange(self._around.pool)
        return exchange

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
            state.worker, state.elastic, state.ahead = True, elastic, PROCESS_AHEAD
            state.shared_fault_domain = sharing.shared_fault_domain

            def ready(executor: Executor, info: StartedEngine = info, number: int = number) -> None:
                assert isinstance(executor, ProcessExecutor), "it lives in a process"
                executor.engine.planner = executor.answer.plans
                executor.share_constants(self._exchange(executor.engine))
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
                self._runtime.poll,
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
        spin_us = self._settings.spins_us[1]
        options = {name: self._settings.options.get(name, {}) for name in backend.names}
        uses_blas = any(driver.uses_blas for driver in backend.drivers)
        processes = Processes(
            backend.names,
            info.resource,
            {name: {**given, "role": role} for name, given in options.items()},
            environment if uses_blas else {**one_blas_thread(), **environment},
            self._around.arena.map,
            spin_us,
        )
        executor = ProcessExecutor(
            state, info, self._around, processes, self._runtime.poll, self._demands
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
