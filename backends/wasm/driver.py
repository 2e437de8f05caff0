"""The driver of WebAssembly functions: engines for cores, in confined processes."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar

from dandelion.driver import Checker, Driver, Engine, EngineFactory, Hosting, Resource
from dandelion.errors import BackendUnavailable, InvalidFunction, Problem
from dandelion.function import Function

from . import module
from .compiler import require, require_installed
from .confine_check import confined_facts
from .programs import WasmPrograms

if TYPE_CHECKING:
    from .engine import WasmEngine


class WasmDriver(Driver):
    """Runs code of the format ``wasm``."""

    name: ClassVar[str] = "wasm"
    formats: ClassVar[frozenset[str]] = frozenset({"wasm"})
    hosting: ClassVar[Hosting] = Hosting.CONFINED

    def __init__(self) -> None:
        programs = WasmPrograms()
        self._checker = WasmChecker(programs)
        self._factory = WasmFactory(self.name, programs)

    def checker(self) -> Checker:
        return self._checker

    def factory(self) -> WasmFactory:
        return self._factory


class WasmChecker(Checker):
    """Refuses modules that could never run; compiles the others if wasmtime is installed."""

    def __init__(self, programs: WasmPrograms) -> None:
        self._programs = programs

    def check(self, functions: Sequence[Function]) -> None:
        for function in functions:
            self._check(function)

    def _check(self, function: Function) -> None:
        problems = [
            Problem("unknown-option", f"unknown option '{name}'", f"code.options.{name}")
            for name in function.code.options
        ]
        _, found = module.read(function.main, function.spec.limits.memory_bytes)
        problems += found
        if problems:
            raise InvalidFunction(tuple(problems))
        try:
            self._programs.compiled(function.main)
        except BackendUnavailable:
            return  # a node without the library may register functions that others run

    def binary(self, function: Function) -> bytes:
        return self._programs.compiled(function.main)

    def close(self) -> None:
        self._programs.close()


class WasmFactory(EngineFactory):
    """Starts engines for cores."""

    def __init__(self, name: str, programs: WasmPrograms) -> None:
        self._name = name
        self._programs = programs

    def probe(self) -> list[Resource]:
        require_installed()
        cores = sorted(os.sched_getaffinity(0))
        return [Resource(str(at), f"core {core}") for at, core in enumerate(cores)]

    def engine(self, resource: str) -> WasmEngine:
        require()
        from .engine import WasmEngine

        known = [r.name for r in self.probe()]
        if resource not in known:
            raise BackendUnavailable(
                self._name, f"no core '{resource}'", f"use 0 to {len(known) - 1}"
            )
        return WasmEngine(f"{self._name}:{resource}", self._programs)

    def confine(
        self, engine: Engine, channel: int, start_threads: Callable[[], None]
    ) -> Mapping[str, str]:
        from .confine import confine
        from .engine import WasmEngine

        assert isinstance(engine, WasmEngine)
        return confine(engine, channel, start_threads)


def enforcement() -> Mapping[str, str]:
    """Tell what confines engines on this machine, for ``dandelion doctor``.

    Raises:
        BackendUnavailable: a process cannot be confined here.
    """
    return confined_facts()
