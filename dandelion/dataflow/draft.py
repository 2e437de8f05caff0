"""A composition while Python code describes it: handles of sets, applications, and their names.

A `Draft` is current while the function under ``@composition`` runs. Handles represent sets that
will exist when the composition is invoked; nothing is computed. When the function has returned, the
draft is closed: sets get names, and the result is a `Composition`.

Names are deterministic and unique:

- a returned set has the name of its output;
- every other used set is called ``FUNCTION_OUTPUT`` in lower case (``fan_out_requests``), with a
  number for further uses of a function and wherever that name is already used; an errors set is
  called ``FUNCTION_errors``;
- unused outputs have no name: the language drops them.

In the language a set has only one name. If a set is returned twice, or an input is returned under
another name, an application of ``_same`` renames it: a composition without applications whose
output is its input. It has no instance and copies nothing.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import itertools
import linecache
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from types import FrameType
from typing import Any, NoReturn, ParamSpec, TypeVar

from dandelion.dataflow.excerpt import with_excerpts
from dandelion.dataflow.graph import (
    Application,
    AttemptsClause,
    Binding,
    CatchClause,
    Composition,
    CompositionModule,
    Declaration,
    Join,
    RepeatClause,
    Return,
    Sharding,
    SourcePosition,
)
from dandelion.dataflow.rules_names import FunctionSignature, problem
from dandelion.errors import InvalidComposition, Problem

Given = ParamSpec("Given")
Result = TypeVar("Result")
SAME = Composition("_same", ("set",), ("set",))
_OWN = {
    *(__name__, "dandelion.dataflow.dsl", "dandelion.dataflow.dsl_sets"),
    "dandelion.dataflow.dsl_applying",
    *("dandelion.documents.records", "dandelion.decorators.python_function"),
}
_current: ContextVar[Draft | None] = ContextVar("draft", default=None)


class Handle:
    """Stands for what has neither a value nor items while a composition is described."""

    __slots__ = ()
    _what = ""

    def __bool__(self) -> bool:
        self._refuse_value()

    def __eq__(self, other: object) -> bool:
        if isinstance(other, (bool, int, float, str, bytes)):  # with which users may compare it
            self._refuse_value()
        return self is other

    __hash__ = object.__hash__

    def __iter__(self) -> Iterator[SetHandle]:
        hint = "bind it with each(...) to have an instance for each item"
        refuse("no-value", f"{self._what} has no items while the composition is described; {hint}")

    def _refuse_value(self, *_: object) -> NoReturn:
        hint = "compute with it in a function, and apply that"
        refuse("no-value", f"{self._what} has no value while the composition is described; {hint}")

    __len__ = __contains__ = __int__ = __float__ = __index__ = _refuse_value
    __lt__ = __le__ = __gt__ = __ge__ = __neg__ = __abs__ = __invert__ = _refuse_value
    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __matmul__ = _refuse_value
    __rmatmul__ = __truediv__ = __rtruediv__ = __floordiv__ = __rfloordiv__ = _refuse_value
    __mod__ = __rmod__ = __pow__ = __rpow__ = __and__ = __rand__ = __or__ = __ror__ = _refuse_value


class SetHandle(Handle):
    """A set of a composition that is being described: an input, or an output of an application."""

    __slots__ = ("application", "draft", "name")
    _what = "a set"

    def __init__(self, draft: Draft, name: str, application: DraftApplication | None) -> None:
        self.draft = draft
        self.name = name
        self.application = application

    def __repr__(self) -> str:
        of = f"{self.application.signature.name}." if self.application else ""
        return f"<set {of}{self.name}>"


@dataclass(slots=True, eq=False)
class DraftApplication:
    """One application: its function, its bindings, and handles of the outputs used so far.

    `errors` is its errors set, if it catches failures, of `caught` kinds.
    """

    signature: FunctionSignature
    bindings: tuple[DraftBinding, ...]
    join: Join | None
    place: SourcePosition
    repeat: RepeatClause | None = None
    attempts: AttemptsClause | None = None
    errors: SetHandle | None = None
    caught: tuple[str, ...] = ()
    outputs: dict[str, SetHandle] = field(default_factory=dict)


@dataclass(slots=True, frozen=True)
class DraftBinding:
    """An input set bound to a handle."""

    parameter: str
    source: SetHandle
    sharding: Sharding
    optional: bool


@dataclass(slots=True, eq=False)
class Draft:
    """The composition that is being described."""

    name: str
    place: SourcePosition
    inputs: dict[str, SetHandle] = field(default_factory=dict)
    applications: list[DraftApplication] = field(default_factory=list)
    declarations: list[Declaration] = field(default_factory=list)
    compositions: list[Composition] = field(default_factory=list)
    sources: list[object] = field(default_factory=list)
    renamed: dict[SetHandle, str] = field(default_factory=dict)

    def add_input(self, name: str) -> SetHandle:
        """Add an input set."""
        handle = self.inputs[name] = SetHandle(self, name, None)
        return handle

    def use(self, module: CompositionModule, sources: Iterable[object] = ()) -> None:
        """Add the declarations and compositions that an application refers to.

        Args:
            module: the declarations and compositions.
            sources: the functions that are applied, as they will be registered.
        """
        self.sources += [s for s in sources if not any(s is known for known in self.sources)]
        self.declarations += [d for d in module.declarations if d not in self.declarations]
        self.compositions += [c for c in module.compositions if c not in self.compositions]

    def close(self, outputs: Mapping[str, SetHandle]) -> CompositionModule:
        """Name all sets; return the composition with everything that it refers to."""
        self._rename_where_needed(outputs)
        names = self._names(outputs)
        applications = tuple(_application(a, names) for a in self.applications)
        own = Composition(self.name, tuple(self.inputs), tuple(outputs), applications, self.place)
        return CompositionModule(tuple(self.declarations), (*self.compositions, own))

    def _rename_where_needed(self, outputs: Mapping[str, SetHandle]) -> None:
        """Apply ``_same`` before outputs whose set already has another name."""
        named: dict[SetHandle, str] = {handle: name for name, handle in self.inputs.items()}
        for name, handle in outputs.items():
            if self.inputs.get(name, handle) is not handle:
                message = f"output '{name}' has the name of an input but is another set"
                refuse("duplicate-producer", message, self.place)
            if named.setdefault(handle, name) != name:
                self._add_same(name, handle)

    def _add_same(self, name: str, handle: SetHandle) -> None:
        binding = DraftBinding("set", handle, Sharding.ALL, optional=False)
        signature = FunctionSignature(SAME.name, SAME.inputs, SAME.outputs)
        same = DraftApplication(signature, (binding,), None, self.place)
        same.outputs["set"] = SetHandle(self, "set", same)
        self.renamed[same.outputs["set"]] = name
        self.applications.append(same)
        self.use(CompositionModule(compositions=(SAME,)))

    def _names(self, outputs: Mapping[str, SetHandle]) -> dict[SetHandle, str]:
        names = {handle: name for name, handle in self.inputs.items()}
        for name, handle in outputs.items():
            names.setdefault(handle, name)
        names.update(self.renamed)
        taken = {*names.values(), *outputs}
        used = {b.source for a in self.applications for b in a.bindings}
        counts: dict[str, int] = {}
        for application in self.applications:
            function = application.signature.name
            count = counts[function] = counts.get(function, 0) + 1
            base = _snake(function) + (f"_{count}" if count > 1 else "")
            for output in application.signature.outputs:
                wanted = application.outputs.get(output)
                if wanted is not None and wanted in used and wanted not in names:
                    names[wanted] = _free(f"{base}_{output}", taken)
                    taken.add(names[wanted])
            if application.errors is not None and application.errors not in names:
                names[application.errors] = _free(f"{base}_errors", taken)
                taken.add(names[application.errors])
        return names


@contextlib.contextmanager
def drafting(name: str, place: SourcePosition) -> Iterator[Draft]:
    """Make a new draft the current one."""
    draft = Draft(name, place)
    token = _current.set(draft)
    try:
        yield draft
    finally:
        _current.reset(token)


def is_drafting() -> bool:
    """Tell whether a composition is being described."""
    return _current.get() is not None


def current_draft(what: str) -> Draft:
    """Return the current draft; `what` is the name of the applied function, for the message."""
    draft = _current.get()
    if draft is None:
        message = f"'{what}' is applied outside of a function under @composition"
        refuse("outside-composition", message)
    return draft


# --- places and problems ----------------------------------------------------------------------


def user_place() -> SourcePosition:
    """Find the current expression of the user's program."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_globals.get("__name__") in _OWN:
        frame = frame.f_back
    if frame is None:
        return SourcePosition()
    positions = itertools.islice(frame.f_code.co_positions(), frame.f_lasti // 2, None)
    line, _, column, _ = next(positions, (None, None, None, None))
    return SourcePosition(line or frame.f_lineno, (column or 0) + 1, frame.f_code.co_filename)


def definition_place(function: Callable[..., Any]) -> SourcePosition:
    """Find the ``def`` line of a function, below its decorators."""
    code = getattr(function, "__code__", None)
    if code is None:
        return user_place()
    file, first = code.co_filename, code.co_firstlineno
    for line in range(first, first + 20):
        text = linecache.getline(file, line)
        if text.lstrip().startswith(("def ", "async def ")):
            return SourcePosition(line, text.index("def ") + len("def ") + 1, file)
    return SourcePosition(first, 1, file)


def refuse(
    code: str,
    message: str,
    place: SourcePosition | None = None,
    *,
    expected: str = "",
    found: str = "",
    nearest: str = "",
) -> NoReturn:
    """Raise one problem, by default at the user's current expression.

    Raises:
        InvalidComposition: always.
    """
    at = user_place() if place is None else place
    found_problem = problem(code, message, at, expected=expected, found=found, nearest=nearest)
    raise InvalidComposition(tuple(with_excerpts([found_problem], python_line)))


def called_as(
    code: str, example: str
) -> Callable[[Callable[Given, Result]], Callable[Given, Result]]:
    """Refuse a call with arguments that a function does not have, as `refuse`.

    Args:
        code: of the problem.
        example: a call as it should be.
    """

    def decorate(function: Callable[Given, Result]) -> Callable[Given, Result]:
        signature = inspect.signature(function)

        @functools.wraps(function)
        def checked(*given: Given.args, **named: Given.kwargs) -> Result:
            misfit = ""
            try:
                signature.bind(*given, **named)
            except TypeError as error:
                misfit = str(error)
            if misfit:
                refuse(code, f"{function.__name__}: {misfit}", expected=example)
            return function(*given, **named)

        return checked

    return decorate


def python_line(where: Problem) -> str:
    """Return the line of the user's program at a problem's position, if it can be read."""
    file = where.where.rsplit(":", 2)[0]
    return linecache.getline(file, where.line).rstrip("\n")


# --- names ------------------------------------------------------------------------------------


def _application(application: DraftApplication, names: Mapping[SetHandle, str]) -> Application:
    place = application.place
    returns = [
        Return(names[handle], handle.name, place)
        for handle in _ordered(application)
        if handle in names
    ]
    bindings = [
        Binding(b.parameter, names[b.source], b.sharding, b.optional, place)
        for b in application.bindings
    ]
    name = application.signature.name
    join, repeat, attempts = application.join, application.repeat, application.attempts
    catch = None
    if application.errors is not None:
        catch = CatchClause(names[application.errors], application.caught, place)
    return Application(name, tuple(bindings), tuple(returns), join, repeat, attempts, catch, place)


def _ordered(application: DraftApplication) -> list[SetHandle]:
    order = application.signature.outputs
    return sorted(application.outputs.values(), key=lambda handle: order.index(handle.name))


def _snake(name: str) -> str:
    """``FanOut`` becomes ``fan_out``, ``HTTP`` becomes ``http``."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", name).lower()


def _free(name: str, taken: set[str]) -> str:
    numbered = (f"{name}_{number}" for number in itertools.count(2))
    return next(n for n in itertools.chain([name], numbered) if n not in taken)
