"""The driver of Python functions: one engine for each core, and a report of the confinement."""

from __future__ import annotations

import os
import platform
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import ClassVar

from dandelion.confinement import seccomp
from dandelion.confinement.syscalls import Architecture, native
from dandelion.driver import Checker, Driver, EngineFactory, Hosting, Resource
from dandelion.errors import BackendUnavailable, InvalidFunction, InvalidInput, Problem, Raised
from dandelion.function import Function

from .check import stated_problems, too_long
from .constants import ConstantFiles
from .engine import ProcessEngine, content_of
from .examiner import SourceExaminer
from .handle import NoSandbox
from .import_limits import LIMITS
from .programs import PythonPrograms
from .sandbox_pool import ImportFailed, SandboxContent, SandboxPool
from .sandbox_pools import SandboxPools

ENGINES_PER_ZYGOTE = 4
AHEAD_LIMIT = 256


@dataclass(slots=True)
class ProcessOptions:
    """How many sandboxes are kept ready for each set of imports and group of engines."""

    ahead: int


class ProcessDriver(Driver):
    """Runs code of the format ``python``.

    Args:
        ahead: how many sandboxes are kept ready for each set of imports and group of engines.
    """

    name: ClassVar[str] = "process"
    formats: ClassVar[frozenset[str]] = frozenset({"python"})
    hosting: ClassVar[Hosting] = Hosting.THREAD

    def __init__(self, ahead: int = 4) -> None:
        self._options = ProcessOptions(ahead)
        self._checker = ProcessChecker(self.name)
        self._factory = ProcessFactory(self.name, self._options, self._checker)

    def configure(self, options: Mapping[str, str]) -> None:
        for name, value in options.items():
            if name != "ahead":
                raise InvalidInput(
                    f"options.process.{name}", "unknown setting", "the only setting is 'ahead'"
                )
            if not value.isdecimal() or not 1 <= int(value) <= AHEAD_LIMIT:
                raise InvalidInput(
                    "options.process.ahead", f"'{value}' is not valid", f"1 to {AHEAD_LIMIT}"
                )
            self._options.ahead = int(value)

    def checker(self) -> ProcessChecker:
        return self._checker

    def factory(self) -> ProcessFactory:
        return self._factory


class ProcessChecker(Checker):
    """Examines sources in sandboxes, and caches the compiled code.

    Attributes:
        programs: the cache.
        constants: static sets of functions, for their sandboxes.
    """

    takes_packages = True

    def __init__(self, name: str) -> None:
        self._name = name
        self.programs = PythonPrograms(self._compiled)
        self.constants = ConstantFiles()
        self._examiner: SourceExaminer | None = None
        self._lock = threading.Lock()

    def check(self, functions: Sequence[Function]) -> None:
        """Refuse code that could never run; cache the compiled code of the rest.

        A machine without sandboxes cannot run Python functions. There only the checks that need no
        sandbox are made, so that a function which has other code as well can be registered.

        Raises:
            InvalidFunction: with all problems, each at ``file:line:column`` where known.
            EngineDied: no sandbox started, although this machine supports them.
        """
        problems = [problem for function in functions for problem in stated_problems(function)]
        sources = [function for function in functions if not too_long(function)]
        with suppress(BackendUnavailable):
            examined = self.examiner().examine_all(sources)
            for function, found in zip(sources, examined, strict=True):
                problems += found.problems
                if found.code and not found.problems:
                    self.programs.add(function, found.code)
            if not problems:
                problems += self._import_problems(functions)
        if problems:
            raise InvalidFunction(tuple(problems))

    def _import_problems(self, functions: Sequence[Function]) -> Iterator[Problem]:
        """Load what functions import from their own packages, once, in a zygote for this alone."""
        tried: dict[SandboxContent, str] = {}
        for function in functions:
            content = content_of(function)
            if not content.environment:
                continue
            if content not in tried:
                tried[content] = _import_error(f"{self._name}-check", content)
            if tried[content]:
                where = f"{function.spec.name}.options.imports"
                yield Problem("import-failed", tried[content], where)

    def examiner(self) -> SourceExaminer:
        """Return the examiner; it is created on first use."""
        architecture = _require()
        with self._lock:
            if self._examiner is None:
                self._examiner = SourceExaminer(f"{self._name}-check", architecture)
            return self._examiner

    def _compiled(self, function: Function, deadline_ns: int) -> bytes:
        """Compile a called function that was registered before this node started."""
        examined = self.examiner().examine(function, deadline_ns)
        if not examined.code:
            raise Raised(function.spec.name, str(examined.problems[0]))
        return examined.code

    def close(self) -> None:
        with self._lock:
            examiner = self._examiner
        if examiner is not None:
            examiner.close()
        self.constants.close()


class ProcessFactory(EngineFactory):
    """Starts engines for cores."""

    def __init__(self, name: str, options: ProcessOptions, checker: ProcessChecker) -> None:
        self._name = name
        self._options = options
        self._checker = checker
        self._groups: dict[int, SandboxPools] = {}
        self._lock = threading.Lock()

    def probe(self) -> list[Resource]:
        _require()
        cores = sorted(os.sched_getaffinity(0))
        return [Resource(str(at), f"core {core}") for at, core in enumerate(cores)]

    def engine(self, resource: str) -> ProcessEngine:
        architecture = _require()
        known = [r.name for r in self.probe()]
        if resource not in known:
            raise BackendUnavailable(
                self._name, f"no core '{resource}'", f"use 0 to {len(known) - 1}"
            )
        name = f"{self._name}:{resource}"
        group = int(resource) // ENGINES_PER_ZYGOTE
        with self._lock:
            if group not in self._groups:
                self._groups[group] = SandboxPools(f"{self._name}-{group}", self._options.ahead)
        self._checker.examiner().start()  # the first call may have to compile
        checker, pools = self._checker, self._groups[group]
        return ProcessEngine(name, pools, checker.programs, checker.constants, architecture)


def enforcement() -> dict[str, str]:
    """Report what confines a function on this machine, by starting a sandbox.

    Returns:
        A text for each of ``landlock``, ``seccomp``, ``namespaces``, ``user``.

    Raises:
        BackendUnavailable: this machine does not support sandboxes.
        EngineDied: no sandbox started, although this machine supports them.
    """
    _require()
    pool = SandboxPool("process", ahead=1)
    try:
        return pool.facts()
    finally:
        pool.close()


def _import_error(name: str, content: SandboxContent) -> str:
    """Try whether a sandbox can have a content; return why not."""
    pool = SandboxPool(name, content, ahead=1)
    try:
        pool.take(time.monotonic_ns() + int(2e9 * LIMITS.wall_s)).close()
    except (ImportFailed, NoSandbox) as error:
        return str(error)
    finally:
        pool.close()
    return ""


def _require() -> Architecture:
    """Return the architecture.

    Raises:
        BackendUnavailable: this machine cannot confine a process.
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
