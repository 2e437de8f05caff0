"""A function with all that it uses, as source.

The result is the user's file with everything blanked out that the function does not need: so lines
keep their numbers, and the same code gives the same text. Kept are

- the function, without the decorators of this library;
- functions and classes of the module that it uses, and what these use;
- imports of modules that are used. A module of the user's own project is taken as source as well
  (`modules`); of all others the names are noted, so that sandboxes have them;
- constants: literals as they are written, other values as an expression (`constants`).

What cannot be taken is refused with the line that uses it. Names that are found in other cells of a
notebook go to a part for each cell; the parts are executed before the function's own.

Everything here happens in the user's program. Values are looked at, never called.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from types import FunctionType, ModuleType
from typing import Any

from dandelion.capture.capturing import Capturing
from dandelion.capture.modules import CapturedModules, Roles
from dandelion.capture.sources import cells, code_of, refuse, source_file
from dandelion.errors import InvalidInput
from dandelion.errors.misfits import named_type


@dataclass(frozen=True, slots=True)
class Captured:
    """A captured function.

    Attributes:
        text: source of its module, with the lines of the user's file.
        entry: name of the function in it.
        files: further sources, as a code object names them.
        uses: installed modules that are imported.
        label: name of the user's file.
    """

    text: str
    entry: str
    files: dict[str, str]
    uses: tuple[str, ...]
    label: str


def capture(
    function: Callable[..., Any],
    include: Iterable[object] = (),
    roles: Roles | None = None,
    names: Iterable[str] = (),
) -> Captured:
    """Take a function with all that it uses.

    Args:
        function: a plain function of a file, a notebook or a console that keeps its text.
        include: functions, classes and modules that it reaches in ways that its source does not
            show. The source of such modules is taken wherever they lie.
        roles: the decorators of this library.
        names: of classes of its module that its annotations need.

    Raises:
        InvalidFunction: something cannot be taken; with the line at fault and what to do.
    """
    plain = inspect.unwrap(function)
    code = code_of(function)
    if code is None or not isinstance(plain, FunctionType):
        message = f"{named_type(function)} has no source"
        raise InvalidInput("function", message, "give a function that is defined with def")
    if code.co_name == "<lambda>":
        where = code.co_filename, code.co_firstlineno, 1
        refuse("not-captured", "a lambda cannot be captured", *where, "define it with def")
    file = source_file(code.co_filename, plain.__globals__)
    if file is None:
        message = f"the source of function '{code.co_name}' is not available"
        hint = "write it to a file, use a notebook, or give its text to dandelion.python_function"
        refuse("not-captured", message, code.co_filename, code.co_firstlineno, 1, hint)
    included = list(include)
    forced = frozenset(m.__name__ for m in included if isinstance(m, ModuleType))
    state = Capturing(
        function, code, plain.__globals__, file, CapturedModules(roles or Roles(), forced)
    )
    state.keep_entry()
    assert state.entry is not None
    for name in names:
        state.need(name, state.own, state.entry)
    for extra in included:
        _include(state, extra)
    return _captured(state)


def _include(state: Capturing, extra: object) -> None:
    where = state.own.name, state.code.co_firstlineno, 1
    if isinstance(extra, ModuleType):
        state.modules.add(extra.__name__, where)
        return
    plain = inspect.unwrap(extra) if callable(extra) else None
    name = getattr(plain, "__name__", "")
    found = state.namespace.get(name)
    if (
        plain is None
        or not name
        or (inspect.unwrap(found) if callable(found) else None) is not plain
    ):
        message = f"include has {extra!r:.60}, which is no function, class or module of this module"
        refuse("not-captured", message, *where, "import it at the top of the module")
    assert state.entry is not None
    state.need(name, state.own, state.entry)


def _captured(state: Capturing) -> Captured:
    files = dict(state.modules.files)
    order = ["", *cells()]
    others = [name for name in state.pieces if name != state.own.name]
    others.sort(key=lambda name: order.index(name) if name in order else 0)
    for number, name in enumerate(others, start=1):
        files[f"part:{number:03} {'imports' if not name else 'cell'}"] = state.pieces[name].text()
    return Captured(
        state.pieces[state.own.name].text(),
        state.code.co_name,
        dict(sorted(files.items())),
        tuple(sorted(state.modules.uses)),
        state.own.label,
    )
