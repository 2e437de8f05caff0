"""Runs the program of one call, in its sandbox: sources, arguments, results.

A program without files and kinds takes the short way: its function gets its input sets.
"""

from __future__ import annotations

import marshal
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

from dandelion.attached_files import attached
from dandelion.call_values import FILES, CallValues, arguments, results
from dandelion.data import ItemSet, Origin
from dandelion.own_modules import OwnModule, OwnModules
from dandelion.set_values import returned_sets

from . import wire

MODULE = "function"
"""Module name of the user's code."""


def run_program(
    program: wire.PythonProgram, inputs: dict[str, ItemSet | None], origin: Origin | None
) -> list[ItemSet | None]:
    """Execute a program, call its function, and make its output sets.

    Raises:
        InvalidReturnValue, OutputMismatch: what it returned is not valid.
        BaseException: the user's code may raise anything.
    """
    module = ModuleType(MODULE)
    module.__file__ = program.filename
    sys.modules[MODULE] = module  # dataclasses and others look their module up
    code = marshal.loads(program.code)  # noqa: S302 (sent by the node, and confined)
    if program.values is None and not program.files:
        exec(code, module.__dict__)
        return returned_sets(program.outputs, _entry(module, program)(**inputs), origin)
    files = inputs.pop(FILES, None)
    with attached({} if files is None else {item.name: item.data for item in files}):
        _execute(program, code, module)
        values = program.values or CallValues()
        given = arguments(values.inputs, inputs, module)
        returned = _entry(module, program)(**given)
        if values.outputs:
            names = [spec.name for spec in program.outputs]
            returned = results(values.outputs, names, returned)
        return returned_sets(program.outputs, returned, origin)  # a generator runs here


def _entry(module: ModuleType, program: wire.PythonProgram) -> Callable[..., Any]:
    function: Callable[..., Any] | None = getattr(module, program.entry, None)
    if not callable(function):
        raise NameError(f"the code does not define a function '{program.entry}'")
    return function


def _execute(program: wire.PythonProgram, code: Any, module: ModuleType) -> None:
    """Execute a program that may have several sources."""
    if not program.files:
        exec(code, module.__dict__)
        return
    main, *others = code
    found = list(zip(program.files, others, strict=True))
    own = {
        file.name: OwnModule(part, file.filename, file.kind == "package")
        for file, part in found
        if file.kind != "part"
    }
    sys.meta_path.insert(0, OwnModules(own))
    for file, part in found:
        if file.kind == "part":
            exec(part, module.__dict__)
    exec(main, module.__dict__)
