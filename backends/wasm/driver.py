"""The driver of WebAssembly functions: engines for cores."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, ClassVar

from dandelion.driver import Driver, Hosting, Resource
from dandelion.errors import BackendUnavailable, InvalidFunction, Problem
from dandelion.function import Function

from . import module
from .compiler import require
from .programs import Programs

if TYPE_CHECKING:
    from .engine import WasmEngine


class WasmDriver(Driver):
    """Runs code of the format ``wasm``."""

    name: ClassVar[str] = "wasm"
    formats: ClassVar[frozenset[str]] = frozenset({"wasm"})
    hosting: ClassVar[Hosting] = Hosting.THREAD

    def __init__(self) -> None:
        self._programs = Programs()

    def probe(self) -> list[Resource]:
        require()
        cores = sorted(os.sched_getaffinity(0))
        return [Resource(str(at), f"core {core}") for at, core in enumerate(cores)]

    def check(self, function: Function) -> None:
        """Refuse modules that could never run, and compile the others, if that is possible here."""
        problems = [
            Problem("unknown-option", f"no option '{name}'", f"code.options.{name}")
            for name in function.code.options
        ]
        _, found = module.read(function.main, function.spec.limits.memory_bytes)
        problems += found
        if problems:
            raise InvalidFunction(tuple(problems))
        try:
            self._programs.compiled(function.main)
        except BackendUnavailable:
            return  # a node without the library may register what others run

    def close(self) -> None:
        self._programs.close()

    def engine(self, resource: str) -> WasmEngine:
        from .engine import WasmEngine

        known = [r.name for r in self.probe()]
        if resource not in known:
            raise BackendUnavailable(
                self.name, f"no core '{resource}'", f"there are 0 to {len(known) - 1}"
            )
        return WasmEngine(f"{self.name}:{resource}", self._programs)
