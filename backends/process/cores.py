"""The driver of Python functions: engines for cores, and what is enforced here."""

from __future__ import annotations

import os
import platform
import threading
from collections.abc import Mapping
from typing import ClassVar

from dandelion.confinement import seccomp
from dandelion.confinement.syscalls import Architecture, native
from dandelion.driver import Driver, Hosting, Resource
from dandelion.errors import BackendUnavailable, InvalidInput
from dandelion.function import Function

from .check import check
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
        self._programs = Programs()
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
        check(function)

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
