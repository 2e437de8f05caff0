"""The backends of a node: from the settings' list to drivers, checkers and functions.

An entry of the list is a backend, or several with ``|`` between them of which the first that works
is used. No device is touched here.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from dandelion.driver import (
    Checker,
    Driver,
    Hosting,
    backend_names,
    backends_of_functions,
    load_driver,
    unknown_backend,
)
from dandelion.errors import BackendUnavailable, InvalidInput
from dandelion.executors import Executor
from dandelion.function import FunctionSpec
from dandelion.node.closing import close_safely
from dandelion.registration import Target
from dandelion.scheduler.engine import EnginePhase
from dandelion.settings import Settings


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


class LoadedBackends:
    """What the backends of a node have.

    Args:
        settings: of the node.
        drivers: of further backends, made by the embedding program.

    Attributes:
        all: the entries of the list and the further ones.
        missing: the reasons of backends that do not work here.
        checkers: what checks code objects, by their format.
        platform: functions that the platform provides, by name.
        offered: backends that are installed and not started, by the functions that they provide.
        in_arena: formats whose code is read by processes that map the arena.

    Raises:
        InvalidInput: an entry names a backend that does not exist, or an option is unknown or bad.
    """

    def __init__(self, settings: Settings, drivers: Sequence[Driver]) -> None:
        self.all, self.missing = load_backends(settings)
        self.all += [Backend(d.name, (d.name,), d) for d in drivers]
        self.checkers = Checkers(self.all)
        self.platform: dict[str, FunctionSpec] = {
            f.name: f for b in self.all for f in b.driver.platform_functions
        }
        self.offered: dict[str, str] = {
            name: backend
            for name, backend in backends_of_functions().items()
            if name not in self.platform
        }
        self.in_arena = frozenset[str]().union(
            *(b.driver.formats for b in self.all if b.driver.hosting is Hosting.PROCESS)
        )

    def takes_packages(self, format_name: str) -> bool:
        """Tell whether code objects of a format may name packages."""
        checker = self.checkers.get(format_name)
        return checker is not None and checker.takes_packages

    def close_checkers(self) -> None:
        """End what checkers run; a failure must not keep the rest from being closed."""
        for checker in self.checkers.loaded():
            close_safely(checker.close)


class Checkers(Mapping[str, Checker]):
    """What checks code objects, for every format that any installed backend runs.

    A node registers functions with code for backends that it does not run: another of their code
    objects may run here, or they are called elsewhere. Drivers of such backends are loaded when a
    format is looked up that no started one runs, since that takes longer than a small node to
    start. Safe from any thread.

    Args:
        backends: those that are started; their checkers come first.
    """

    def __init__(self, backends: Iterable[Backend] = ()) -> None:
        self._found = {f: b.driver.checker() for b in backends for f in b.driver.formats}
        self._complete = False
        self._lock = threading.Lock()

    def __getitem__(self, format_name: str) -> Checker:
        found = self._found.get(format_name)
        return found if found is not None else self._all()[format_name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._all())

    def __len__(self) -> int:
        return len(self._all())

    def loaded(self) -> list[Checker]:
        """Give the checkers that anything may have used."""
        return list(self._found.values())

    def _all(self) -> dict[str, Checker]:
        with self._lock:
            if not self._complete:
                found: dict[str, Checker] = {}
                for name in backend_names():
                    with contextlib.suppress(BackendUnavailable):
                        driver = load_driver(name)
                        found.update(dict.fromkeys(driver.formats, driver.checker()))
                self._found = found | self._found
                self._complete = True
            return self._found


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
