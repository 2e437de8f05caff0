"""Starting engines: from the settings' list of backends to hosts.

An entry of the list is a backend, or several with ``|`` between them of which the first that works
is used. Where the choice needs a device (PROCESS hosting) the engine process makes it, so that the
node itself never touches one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, replace

from dandelion.driver import AsyncEngine, Driver, Engine, Hosting, load_driver
from dandelion.errors import BackendUnavailable
from dandelion.memory import SharedDomain, Transfers
from dandelion.node.hosts import EngineHost, HostFacts, InlineHost, LoopHost, ThreadHost
from dandelion.node.remote import RemoteEngine
from dandelion.settings import Settings


@dataclass(frozen=True, slots=True)
class Backend:
    """One entry of the list.

    Attributes:
        entry: as the settings have it.
        names: the backends that it names and that can be loaded.
        driver: the first of them: checks code, tells demands.
    """

    entry: str
    names: tuple[str, ...]
    driver: Driver


def load_backends(settings: Settings) -> tuple[list[Backend], list[BackendUnavailable]]:
    """Load the drivers of all entries; what cannot be loaded is given with its reason."""
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
            loaded.append(Backend(entry, tuple(d.name for d in drivers), drivers[0]))
    return loaded, reasons


class EngineStarter:
    """Makes the hosts of a node.

    Args:
        settings: of the node.
        arena, transfers: for engine processes.
        loop: the node's event loop.
        changed: told of every change of a host's state.
        add: told of every new host.
    """

    def __init__(
        self,
        settings: Settings,
        arena: SharedDomain,
        transfers: Transfers,
        loop: asyncio.AbstractEventLoop,
        changed: Callable[[EngineHost], None],
        add: Callable[[EngineHost], None],
    ) -> None:
        self._settings = settings
        self._arena = arena
        self._transfers = transfers
        self._loop = loop
        self._changed = changed
        self._add = add

    def start(self, backend: Backend) -> None:
        """Start the engines of one entry; they become ready in the background.

        Raises:
            BackendUnavailable: it is known at once that the backend does not work here.
        """
        driver = backend.driver
        if driver.hosting is Hosting.PROCESS:
            self._start_process(backend, "", self._settings.engines.get(backend.entry))
            return
        resources = driver.probe()
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
                lambda: _synchronous(driver.engine(facts.resource)),
                lambda engine, _: None,
            )
        engine = driver.engine(facts.resource)
        if isinstance(engine, AsyncEngine):
            return LoopHost(facts, driver.formats, self._changed, self._loop, engine)
        return InlineHost(facts, driver.formats, self._changed, engine)

    def _start_process(self, backend: Backend, resource: str, limit: int | None) -> None:
        """Start one engine process; when it is up, one more for each further resource."""
        facts = HostFacts(backend.entry, resource)

        def make() -> Engine:
            return RemoteEngine(
                backend.names,
                facts.resource,
                self._settings.options,
                backend.driver,
                self._arena,
                self._transfers,
            )

        def describe(engine: Engine, facts: HostFacts) -> None:
            assert isinstance(engine, RemoteEngine)
            facts.backend = engine.ready.backend
            facts.description = engine.ready.description
            if resource:
                return
            found = engine.ready.resources
            facts.resource = found[0]
            chosen = replace(backend, names=(engine.ready.backend,))
            for other in found[1:limit]:
                self._start_process(chosen, other, limit)

        self._add(ThreadHost(facts, backend.driver.formats, self._changed, make, describe))


def _synchronous(engine: Engine | AsyncEngine) -> Engine:
    if isinstance(engine, AsyncEngine):
        raise BackendUnavailable(engine.name, "its driver says THREAD, its engine is asynchronous")
    return engine
