"""The driver of native functions: engines for cores."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from dandelion.confinement import seccomp
from dandelion.confinement.syscalls import Architecture, native
from dandelion.driver import Checker, Driver, EngineFactory, Hosting, Resource
from dandelion.errors import (
    BackendUnavailable,
    EngineDied,
    InvalidFunction,
    InvalidInput,
    Problem,
    nearest,
)
from dandelion.function import Function

from . import elf
from .engine import NativeEngine
from .names import NAMES_OPTIONS, names_problem
from .programs import LEAST_BYTES, MOST_BYTES, NativePrograms, bounds, context_bytes
from .sandbox_pool import NativeSandboxPool

AHEAD_LIMIT = 256
_OPTIONS = ("context_bytes", *NAMES_OPTIONS)
_SETTINGS = ("ahead", "pin")


@dataclass(slots=True)
class NativeOptions:
    """How many sandboxes are kept ready for each engine, and whether they run on its core only."""

    ahead: int
    pin: bool


class NativeDriver(Driver):
    """Runs code of the format ``elf``.

    Args:
        ahead: how many sandboxes are kept ready for each engine.
        pin: run each engine's sandboxes on its core only.
    """

    name: ClassVar[str] = "native"
    formats: ClassVar[frozenset[str]] = frozenset({"elf"})
    hosting: ClassVar[Hosting] = Hosting.THREAD

    def __init__(self, ahead: int = 3, pin: bool = True) -> None:
        self._options = NativeOptions(ahead, pin)
        self._checker = NativeChecker()
        self._factory = NativeFactory(self.name, self._options)

    def configure(self, options: Mapping[str, str]) -> None:
        for name, value in options.items():
            where = f"options.native.{name}"
            if name == "ahead":
                if not value.isdecimal() or not 1 <= int(value) <= AHEAD_LIMIT:
                    raise InvalidInput(where, f"'{value}' is not valid", f"1 to {AHEAD_LIMIT}")
                self._options.ahead = int(value)
            elif name == "pin":
                if value not in ("yes", "no"):
                    raise InvalidInput(where, f"'{value}' is neither yes nor no")
                self._options.pin = value == "yes"
            else:
                close = nearest(name, _SETTINGS)
                hint = f"did you mean '{close}'?" if close else f"there are {', '.join(_SETTINGS)}"
                raise InvalidInput(where, "unknown setting", hint)

    def checker(self) -> Checker:
        return self._checker

    def factory(self) -> NativeFactory:
        return self._factory


class NativeChecker(Checker):
    """Checks options and executables."""

    def check(self, functions: Sequence[Function]) -> None:
        for function in functions:
            _check(function)


class NativeFactory(EngineFactory):
    """Starts engines for cores."""

    def __init__(self, name: str, options: NativeOptions) -> None:
        self._name = name
        self._options = options
        self._programs = NativePrograms()

    def probe(self) -> list[Resource]:
        _require()
        cores = sorted(os.sched_getaffinity(0))
        return [Resource(str(at), f"core {core}") for at, core in enumerate(cores)]

    def engine(self, resource: str) -> NativeEngine:
        architecture = _require()
        cores = sorted(os.sched_getaffinity(0))
        if not resource.isdecimal() or int(resource) >= len(cores):
            raise BackendUnavailable(
                self._name, f"no core '{resource}'", f"use 0 to {len(cores) - 1}"
            )
        name = f"{self._name}:{resource}"
        core = cores[int(resource)] if self._options.pin else -1
        engine = NativeEngine(
            name, NativeSandboxPool(name, core, self._options.ahead), self._programs, architecture
        )
        try:
            engine.start()
        except EngineDied as error:
            engine.close()
            raise BackendUnavailable(
                self._name,
                f"no sandbox starts: {error.message}",
                "allow this user seccomp filters, and programs in memory files",
            ) from None
        return engine


def enforcement() -> dict[str, str]:
    """Report what confines a function on this machine, by starting a zygote.

    Returns:
        A text for each of ``landlock``, ``seccomp``, ``namespaces``, ``user``, ``vdso``.

    Raises:
        BackendUnavailable: this machine does not support sandboxes.
        EngineDied: no zygote started, although this machine supports them.
    """
    _require()
    pool = NativeSandboxPool("native", ahead=1)
    try:
        return pool.facts() | {"seccomp": "exit and arch_prctl(ARCH_SET_FS) only"}
    finally:
        pool.close()


def _check(function: Function) -> None:
    limit = function.spec.limits.memory_bytes
    options = function.code.options
    problems = [p for item in options.items() if (p := _problem(*item, limit))]
    problems += [p for name in options if (p := names_problem(function, name))]
    if not problems:
        _, problems = elf.read(function.main, bounds(context_bytes(function))[0])
    if problems:
        raise InvalidFunction(tuple(problems))


def _problem(option: str, value: str, limit_bytes: int) -> Problem | None:
    where = f"code.options.{option}"
    if option not in _OPTIONS:
        close = nearest(option, _OPTIONS) or ""
        return Problem("unknown-option", f"unknown option '{option}'", where, nearest=close)
    if option in NAMES_OPTIONS:
        return None
    if not value.isascii() or not value.isdecimal() or not LEAST_BYTES <= int(value) <= MOST_BYTES:
        return Problem("bad-option", f"'{value}' is not a valid context size", where,
                       expected=f"{LEAST_BYTES} to {MOST_BYTES} bytes")  # fmt: skip
    if int(value) > limit_bytes:
        return Problem("bad-option", f"a context of {value} bytes is above the memory limit", where,
                       expected=f"at most limits.memory_bytes, {limit_bytes}")  # fmt: skip
    return None


def _require() -> Architecture:
    """Return the architecture.

    Raises:
        BackendUnavailable: this machine cannot confine a native function.
    """
    if platform.system() != "Linux" or platform.machine() != "x86_64":
        raise BackendUnavailable(
            "native", "native functions are Linux x86-64 executables", "use a Linux x86-64 machine"
        )
    architecture = native()
    try:
        seccomp.notification_available(architecture)
    except OSError as error:
        raise BackendUnavailable(
            "native", f"no system call filters: {error.strerror}", "use Linux 5.9 or newer"
        ) from None
    return architecture
