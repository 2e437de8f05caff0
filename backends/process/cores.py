"""The driver of Python functions: engines for cores, and what is enforced here."""

from __future__ import annotations

import os
import platform
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import ClassVar

from dandelion.confinement import seccomp
from dandelion.confinement.syscalls import Architecture, native
from dandelion.driver import Driver, Hosting, Resource
from dandelion.errors import BackendUnavailable, InvalidFunction, InvalidInput, Raised
from dandelion.function import Function

from .check import stated_problems, too_long
from .checker import Checker
from .engine import ProcessEngine
from .nurseries import Nurseries
from .nursery import Nursery
from .programs import Programs

ENGINES_PER_ZYGOTE = 4
AHEAD_LIMIT = 256


class ProcessDriver(Driver):
    """Runs code of the format ``python``.

    Args:
        ahead: how many sandboxes wait for each set of imports and group of engines.
    """

    name: ClassVar[str] = "process"
    formats: ClassVar[frozenset[str]] = frozenset({"python"})
    hosting: ClassVar[Hosting] = Hosting.THREAD

    def __init__(self, ahead: int = 4) -> None:
        self._ahead = ahead
        self._programs = Programs(self._compiled)
        self._checker: Checker | None = None
        self._groups: dict[int, Nurseries] = {}
        self._lock = threading.Lock()

    def configure(self, options: Mapping[str, str]) -> None:
        for name, value in options.items():
            if name != "ahead":
                raise InvalidInput(
                    f"options.process.{name}", "there is no such setting", "there is only 'ahead'"
                )
            if not value.isdecimal() or not 1 <= int(value) <= AHEAD_LIMIT:
                raise InvalidInput(
                    "options.process.ahead", f"'{value}' is no number", f"1 to {AHEAD_LIMIT}"
                )
            self._ahead = int(value)

    def probe(self) -> list[Resource]:
        _require()
        cores = sorted(os.sched_getaffinity(0))
        return [Resource(str(at), f"core {core}") for at, core in enumerate(cores)]

    def check(self, function: Function) -> None:
        self.check_all((function,))

    def check_all(self, functions: Sequence[Function]) -> None:
        """Refuse code that could never run; sources are examined in sandboxes, and kept compiled.

        Where there are no sandboxes no Python function can run. Then only what needs none is
        checked, so that a function which has other code as well can be registered.

        Raises:
            InvalidFunction: with all problems, each at ``file:line:column`` where it has a place.
            EngineDied: sandboxes should be possible, but there are none.
        """
        problems = [problem for function in functions for problem in stated_problems(function)]
        sources = [function for function in functions if not too_long(function)]
        with suppress(BackendUnavailable):
            examined = self._checking().examine_all(sources)
            for function, found in zip(sources, examined, strict=True):
                problems += found.problems
                if found.code and not found.problems:
                    self._programs.add(function, found.code)
        if problems:
            raise InvalidFunction(tuple(problems))

    def _checking(self) -> Checker:
        architecture = _require()
        with self._lock:
            if self._checker is None:
                self._checker = Checker(f"{self.name}-check", architecture)
            return self._checker

    def _compiled(self, function: Function, deadline_ns: int) -> bytes:
        """Compile a function that is called, and was registered before this node was started."""
        examined = self._checking().examine(function, deadline_ns)
        if not examined.code:
            raise Raised(function.spec.name, str(examined.problems[0]))
        return examined.code

    def close(self) -> None:
        with self._lock:
            checker = self._checker
        if checker is not None:
            checker.close()

    def engine(self, resource: str) -> ProcessEngine:
        architecture = _require()
        known = [r.name for r in self.probe()]
        if resource not in known:
            raise BackendUnavailable(
                self.name, f"no core '{resource}'", f"there are 0 to {len(known) - 1}"
            )
        name = f"{self.name}:{resource}"
        group = int(resource) // ENGINES_PER_ZYGOTE
        with self._lock:
            if group not in self._groups:
                self._groups[group] = Nurseries(f"{self.name}-{group}", self._ahead)
        self._checking().start()  # the first call may have to compile
        return ProcessEngine(name, self._groups[group], self._programs, architecture)


def enforcement() -> dict[str, str]:
    """Tell what confines a function on this machine, by making a sandbox and asking.

    Returns:
        Words by subject: ``landlock``, ``seccomp``, ``namespaces``, ``user``.

    Raises:
        BackendUnavailable: sandboxes cannot be made here.
        EngineDied: they should be possible, but none came up.
    """
    _require()
    nursery = Nursery("process", ahead=1)
    try:
        return nursery.facts()
    finally:
        nursery.close()


def _require() -> Architecture:
    """Give the architecture, if this machine can confine a process.

    Raises:
        BackendUnavailable: it cannot.
    """
    if platform.system() != "Linux":
        raise BackendUnavailable("process", "sandboxes need Linux", "run the node in a Linux VM")
    architecture = native()
    try:
        seccomp.notification_available(architecture)
    except OSError as error:
        raise BackendUnavailable(
            "process", f"no system call filters: {error.strerror}", "use Linux 5.9 or newer"
        ) from None
    return architecture
