"""Starting engines: from the settings' list of backends to hosts.

An entry of the list is a backend, or several with ``|`` between them of which the first that works
is used. Where the choice needs a device (PROCESS hosting) the engine process makes it, so that the
node itself never touches one.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from dandelion.driver import (
    AsyncEngine,
    Checker,
    Driver,
    Engine,
    Hosting,
    Sharing,
    backend_names,
    load_driver,
    unknown_backend,
)
from dandelion.engine_process.messages import Ready
from dandelion.errors import BackendUnavailable, InvalidInput
from dandelion.memory import SharedDomain, Transfers
from dandelion.node.hosts import EngineHost, HostFacts, InlineHost, State
from dandelion.node.loop_host import LoopHost
from dandelion.node.process_host import ProcessHost
from dandelion.node.remote import RemoteEngine
from dandelion.node.replies import Replies
from dandelion.node.thread_host import ThreadHost
from dandelion.registration import Target
from dandelion.settings import Settings


@dataclass(frozen=True, slots=True)
class Backend:
    """One entry of the list.

    Attributes:
        entry: as the settings have it.
        names: the backends that it names and that can be loaded.
        driver: the first of them: checks code.
        others: of the further ones.
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
    """Load the drivers of all entries; what cannot be loaded is given with its reason.

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

    Backends that are installed and not started may have both, so that one file of settings serves
    several nodes.

    Args:
        settings: of the node.
        embedded: names of drivers that the program brings along.

    Raises:
        InvalidInput: a backend, or an option of it, does not exist; a number of engines is below 0.
    """
    started = {name for entry in settings.backends for name in entry.split("|")}
    for name in settings.options.keys() - started - set(embedded):
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

    A node registers functions that have code for backends which it does not run, as long as one of
    their alternatives runs here or elsewhere; calling them tells.
    """
    checkers: dict[str, Checker] = {}
    for name in backend_names():
        with contextlib.suppress(BackendUnavailable):
            driver = load_driver(name)
            checkers.update(dict.fromkeys(driver.formats, driver.checker()))
    for backend in backends:
        checkers.update(dict.fromkeys(backend.driver.formats, backend.driver.checker()))
    return checkers


def targets(
    backends: Iterable[Backend], hosts: Iterable[EngineHost], format_name: str
) -> list[Target]:
    """Give the devices that are up and run a format, once each kind; none without architectures."""
    drivers = {d.name: d for b in backends for d in b.drivers}
    found: dict[tuple[str, tuple[str, ...]], Target] = {}
    for host in hosts:
        driver, archs = drivers.get(host.facts.backend), host.facts.capacity.archs
        gone = host.state in (State.UNAVAILABLE, State.CLOSED)
        if driver is not None and archs and not gone and format_name in host.formats:
            found[driver.name, archs] = Target(driver.checker(), archs)
    return list(found.values())


class EngineStarter:
    """Makes the hosts of a node.

    Args:
        settings: of the node.
        arena, transfers: for engine processes.
        loop: the node's event loop.
        replies: looks for the answers of engine processes.
        changed: told of every change of a host's state.
        add: told of every new host.

    Attributes:
        sharings: what was prepared for workers; to be closed after the hosts.
    """

    def __init__(
        self,
        settings: Settings,
        arena: SharedDomain,
        transfers: Transfers,
        loop: asyncio.AbstractEventLoop,
        replies: Replies,
        changed: Callable[[EngineHost], None],
        add: Callable[[EngineHost], None],
    ) -> None:
        self._settings = settings
        self._arena = arena
        self._transfers = transfers
        self._loop = loop
        self._replies = replies
        self._changed = changed
        self._add = add
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
        resources = driver.factory().probe()
        if not resources:
            raise BackendUnavailable(driver.name, "it finds nothing to run on")
        wanted = self._settings.engines.get(driver.name, len(resources))
        for index in range(wanted):
            resource = resources[index % len(resources)]
            facts = HostFacts(driver.name, resource.name, description=resource.description)
            self._add(self._host(driver, facts))

    def _host(self, driver: Driver, facts: HostFacts) -> EngineHost:
        if driver.hosting is Hosting.THREAD:
            return ThreadHost(
                facts,
                driver.formats,
                self._changed,
                lambda: _synchronous(driver.factory().engine(facts.resource)),
                lambda engine, _: None,
            )
        engine = driver.factory().engine(facts.resource)
        if isinstance(engine, AsyncEngine):
            return LoopHost(facts, driver.formats, self._changed, self._loop, engine)
        return InlineHost(facts, driver.formats, self._changed, engine)

    def _start_process(self, backend: Backend, resource: str) -> None:
        """Start the sequential engine of one resource; what it says decides what else is started.

        The first engine chooses among the backends of the entry. Once it is up, one more is started
        for each further resource, and workers that share its own.
        """
        facts = HostFacts(backend.entry, resource)

        def describe(engine: Engine, facts: HostFacts) -> None:
            ready = _ready(engine)
            facts.backend = ready.backend
            facts.description = ready.description
            facts.resource = resource or ready.resources[0]
            driver = next((d for d in backend.drivers if d.name == ready.backend), backend.driver)
            chosen = Backend(backend.entry, (ready.backend,), driver)
            if not resource:
                engines = self._settings.engines
                limit = engines.get(backend.entry, engines.get(ready.backend))
                for other in ready.resources[1:limit]:
                    self._start_process(chosen, other)
            if ready.workers:
                self._start_workers(chosen, facts.resource, ready.workers)

        self._add(self._process_host(backend, facts, describe, {}, "sequential"))

    def _start_workers(self, backend: Backend, resource: str, count: int) -> None:
        """Start the workers of the concurrent engine of one resource."""
        driver = load_driver(backend.names[0])
        driver.configure(self._settings.options.get(backend.names[0], {}))
        sharing = driver.sharing().share(resource)
        self.sharings.append(sharing)
        for number in range(count):
            facts = HostFacts(
                backend.names[0],
                resource,
                worker=True,
                shared_fault_domain=sharing.shared_fault_domain,
            )

            def describe(engine: Engine, facts: HostFacts, number: int = number) -> None:
                engine.name = facts.name = f"{engine.name}/{number}"
                facts.description = f"{_ready(engine).description}, {sharing.description}"

            self._add(self._process_host(backend, facts, describe, sharing.environment, "worker"))

    def _process_host(
        self,
        backend: Backend,
        facts: HostFacts,
        describe: Callable[[Engine, HostFacts], None],
        environment: Mapping[str, str],
        role: str,
    ) -> EngineHost:
        options = {name: self._settings.options.get(name, {}) for name in backend.names}
        remote = RemoteEngine(
            backend.names,
            facts.resource,
            {name: {**given, "role": role} for name, given in options.items()},
            environment,
            backend.drivers,
            self._arena,
            self._transfers,
            *self._settings.spins_us,
        )
        formats = backend.driver.formats
        return ProcessHost(facts, formats, self._changed, remote, describe, self._replies)


def _ready(engine: Engine) -> Ready:
    assert isinstance(engine, RemoteEngine), "it lives in a process"
    return engine.ready


def _synchronous(engine: Engine | AsyncEngine) -> Engine:
    if isinstance(engine, AsyncEngine):
        raise BackendUnavailable(engine.name, "its driver says THREAD, its engine is asynchronous")
    return engine
