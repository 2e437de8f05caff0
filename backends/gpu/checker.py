"""Checking GPU functions at registration, without a device."""

from __future__ import annotations

from collections.abc import Sequence

from dandelion.blueprint.reading import read_config
from dandelion.data import Bytes
from dandelion.driver import Checker
from dandelion.errors import InvalidBlueprint
from dandelion.function import Function

from .batch_limits import batch_problems
from .launch_sizes import misfits
from .program import make_program
from .source import sources
from .source_check import checked_source
from .source_compiler import SourceCompiler


class GpuChecker(Checker):
    """Checks blueprints, the sources of their modules, and the sizes of their launches."""

    def check(self, functions: Sequence[Function]) -> None:
        for function in functions:
            _check(function)

    def references(self, main: Bytes) -> tuple[str, ...]:
        config, problems = read_config(main)
        if problems:
            raise InvalidBlueprint(problems)
        return config.paths

    def compiler(self) -> SourceCompiler | None:
        """Give the compiler of sources that works without a device, if there is one."""
        return None


def _check(function: Function) -> None:
    program = make_program(function)
    for code in sources(program.config, function.files):
        checked_source(code)
    problems = [
        *misfits(program.config, function.files),
        *batch_problems(function.spec, program.config),
    ]
    if problems:
        raise InvalidBlueprint(tuple(problems))
