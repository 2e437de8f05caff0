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
from dandelion.data import ItemSet, Origin, SetSpec
from dandelion.errors import InvalidInput, nearest
from dandelion.own_modules import OwnModule, OwnModules
from dandelion.set_values import item_set

from . import wire

MODULE = "function"
"""Module name of the user's code."""


class InvalidReturnValue(Exception):
    """The function's return value is not valid as its outputs."""


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
        return _outputs(program.outputs, _entry(module, program)(**inputs), origin)
    files = inputs.pop(FILES, None)
    with attached({} if files is None else {item.name: item.data for item in files}):
        _execute(program, code, module)
        values = program.values or CallValues()
        given = arguments(values.inputs, inputs, module)
        returned = _entry(module, program)(**given)
        if values.outputs:
            names = [spec.name for spec in program.outputs]
            returned = results(values.outputs, names, returned)
        return _outputs(program.outputs, returned, origin)  # a generator runs here


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


def _outputs(
    specs: tuple[SetSpec, ...], result: Any, origin: Origin | None
) -> list[ItemSet | None]:
    names = [spec.name for spec in specs]
    if not isinstance(result, dict):
        if len(specs) != 1 and (specs or result is not None):
            expected = ", ".join(names) or "none"
            raise InvalidReturnValue(
                f"a {type(result).__name__} was returned; return a dict from the names of the "
                f"output sets ({expected}) to their values"
            )
        result = dict.fromkeys(names, result)
    for name in result:
        if name not in names:
            close = nearest(str(name), names)
            hint = f"; did you mean '{close}'?" if close else ""
            raise InvalidReturnValue(f"there is no output set {name!r}{hint}")
    try:
        return [item_set(spec.name, result.get(spec.name), spec, origin) for spec in specs]
    except InvalidInput as error:
        raise InvalidReturnValue(str(error)) from None
