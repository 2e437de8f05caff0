"""Compositions described in Python. See ``docs/dsl.md`` for a tutorial.

A function under ``@composition`` runs once, at its definition, with a handle for each input set. To
call a `FunctionHandle` or another composition in it is to apply it; the result has a handle for
each output set. What comes out is the same `Module` that the language gives, so text and Python are
two views of one graph. Errors name the file and line of the user's program.
"""

from __future__ import annotations

import inspect
import linecache
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeAlias, overload

from dandelion.data import SetSpec
from dandelion.dataflow.draft import (
    Draft,
    DraftApplication,
    DraftBinding,
    SetHandle,
    current_draft,
    drafting,
    python_line,
    refuse,
    user_place,
)
from dandelion.dataflow.draw import to_svg
from dandelion.dataflow.excerpt import with_excerpts
from dandelion.dataflow.graph import (
    NOWHERE,
    Composition,
    Declaration,
    Join,
    Module,
    Place,
    Sharding,
    Strategy,
)
from dandelion.dataflow.language import parse_signature
from dandelion.dataflow.printer import print_module
from dandelion.dataflow.rules import Signature, meant, problem
from dandelion.dataflow.validate import check_module
from dandelion.errors import InvalidComposition

RESULT = "result"
"""Name of the output of a composition that returns a set and not a dict."""


@dataclass(slots=True, frozen=True)
class BoundSet:
    """A set with the way in which it is to be bound. `sharding` is None while nobody chose one."""

    source: SetHandle
    sharding: Sharding | None = None
    optional: bool = False


class ApplicationHandle:
    """One application: its output sets are attributes, or items where Python needs the name.

    An application with a single output set can be used wherever a set can.
    """

    __slots__ = ("_application", "_draft")

    def __init__(self, draft: Draft, application: DraftApplication) -> None:
        self._draft = draft
        self._application = application

    def __getattr__(self, name: str) -> SetHandle:
        if name.startswith("__"):
            raise AttributeError(name)
        return self[name]

    def __getitem__(self, name: str) -> SetHandle:
        application = self._application
        signature = application.signature
        if name not in signature.outputs:
            raise _no_such_output(signature, name)
        if name not in application.outputs:
            application.outputs[name] = SetHandle(self._draft, name, application)
        return application.outputs[name]

    def __dir__(self) -> list[str]:
        return list(self._application.signature.outputs)

    def __repr__(self) -> str:
        return f"<application of {self._application.signature}>"


SetLike: TypeAlias = SetHandle | ApplicationHandle | BoundSet
Returned: TypeAlias = SetHandle | ApplicationHandle | Mapping[str, SetHandle | ApplicationHandle]


class UnknownOutput(InvalidComposition, AttributeError):
    """An application was asked for an output set that its function does not have."""


def _no_such_output(signature: Signature, name: str) -> UnknownOutput:
    message = f"'{signature.name}' has no output set '{name}'"
    known = ", ".join(f"'{s}'" for s in signature.outputs) or "no output set at all"
    near = meant(name, signature.outputs)
    found = problem("unknown-return", message, user_place(), expected=known, nearest=near)
    return UnknownOutput(tuple(with_excerpts([found], python_line)))


# --- how sets are bound -----------------------------------------------------------------------


def all_(value: SetLike) -> BoundSet:
    """Give every instance the whole set. This is the default."""
    return _sharded(value, Sharding.ALL)


def each(value: SetLike) -> BoundSet:
    """Run an instance for each item."""
    return _sharded(value, Sharding.EACH)


def keyed(value: SetLike) -> BoundSet:
    """Run an instance for each key."""
    return _sharded(value, Sharding.KEYED)


def any_each(value: SetLike) -> BoundSet:
    """Spread the items over as many instances as the platform finds right."""
    return _sharded(value, Sharding.ANY_EACH)


def any_keyed(value: SetLike) -> BoundSet:
    """Spread the keys over as many instances as the platform finds right."""
    return _sharded(value, Sharding.ANY_KEYED)


def optional(value: SetLike) -> BoundSet:
    """Let the application run even if the set has no items."""
    return replace(_bound(value), optional=True)


def _sharded(value: SetLike, sharding: Sharding) -> BoundSet:
    bound = _bound(value)
    if bound.sharding is not None:
        message = f"the set is bound with '{bound.sharding.value}' already"
        refuse("two-shardings", message, found=f"'{sharding.value}'")
    return replace(bound, sharding=sharding)


def _bound(value: object) -> BoundSet:
    return value if isinstance(value, BoundSet) else BoundSet(_set(value))


def _set(value: object, place: Place | None = None) -> SetHandle:
    """Take a set, or the only output of an application."""
    if isinstance(value, SetHandle):
        return value
    if not isinstance(value, ApplicationHandle):
        refuse(
            "not-a-set",
            "a set of the composition is needed",
            found=f"{type(value).__name__} {value!r:.60}",
        )
    signature = value._application.signature
    if len(signature.outputs) != 1:
        sets = ", ".join(f".{name}" for name in signature.outputs) or "it has no output sets"
        message = f"'{signature.name}' does not have exactly one output set; say which one"
        refuse("not-a-set", message, place, expected=sets)
    return value[signature.outputs[0]]


@dataclass(slots=True, frozen=True)
class JoinChain:
    """Keyed sets that are joined from left to right, as ``by a inner b left c`` in the language.

    Each method adds one input set, by name. A set without a sharding is bound with ``keyed``.
    """

    sets: dict[str, BoundSet]
    strategies: tuple[Strategy, ...] = ()

    def cross(self, /, **operand: SetLike) -> JoinChain:
        """Pair every key so far with every key of this set."""
        return self._add(Strategy.CROSS, operand)

    def inner(self, /, **operand: SetLike) -> JoinChain:
        """Keep the keys that both sides have."""
        return self._add(Strategy.INNER, operand)

    def left(self, /, **operand: SetLike) -> JoinChain:
        """Keep the keys so far."""
        return self._add(Strategy.LEFT, operand)

    def right(self, /, **operand: SetLike) -> JoinChain:
        """Keep the keys of this set."""
        return self._add(Strategy.RIGHT, operand)

    def full(self, /, **operand: SetLike) -> JoinChain:
        """Keep the keys of either side."""
        return self._add(Strategy.FULL, operand)

    def _add(self, strategy: Strategy, operand: Mapping[str, SetLike]) -> JoinChain:
        added = _operand(operand)
        for name in added:
            if name in self.sets:
                refuse("join-duplicate", f"'{name}' is joined twice")
        return JoinChain({**self.sets, **added}, (*self.strategies, strategy))


def join(**operand: SetLike) -> JoinChain:
    """Begin a join: ``merge(join(pages=a).inner(names=b).left(dates=c), style=style)``."""
    return JoinChain(_operand(operand))


def _operand(operand: Mapping[str, SetLike]) -> dict[str, BoundSet]:
    if len(operand) != 1:
        refuse("join-shape", "a step of a join takes one set by name", found=f"{len(operand)}")
    bound = {name: _bound(value) for name, value in operand.items()}
    return {n: b if b.sharding else replace(b, sharding=Sharding.KEYED) for n, b in bound.items()}


# --- what can be applied ----------------------------------------------------------------------


class _Applicable:
    """Something with input and output sets that compositions apply by calling it."""

    def __init__(self, signature: Signature) -> None:
        self._signature = signature

    @property
    def name(self) -> str:
        """Its name in the catalogue."""
        return self._signature.name

    @property
    def inputs(self) -> tuple[str, ...]:
        """Names of the input sets, in order."""
        return self._signature.inputs

    @property
    def outputs(self) -> tuple[str, ...]:
        """Names of the output sets, in order."""
        return self._signature.outputs

    def _needs(self) -> Module:
        """Declarations and compositions that a text needs in order to apply this."""
        raise NotImplementedError

    def __call__(self, /, *joins: JoinChain, **sets: SetLike) -> ApplicationHandle:
        """Apply it to sets of the composition that is being described.

        Args:
            joins: at most one `join` chain.
            sets: sets by the name of the input set they are bound to. Input sets that are not
                named stay empty.

        Raises:
            InvalidComposition: no such input set, something that is no set of this composition, or
                no composition is being described.
        """
        draft = current_draft(self.name)
        chain = self._only_chain(joins)
        for name in chain.sets:
            if name in sets:
                refuse("duplicate-parameter", f"input set '{name}' of '{self.name}' is bound twice")
        bound = chain.sets | {name: _bound(value) for name, value in sets.items()}
        for name, value in bound.items():
            self._check(draft, name, value)
        bindings = tuple(
            DraftBinding(name, b.source, b.sharding or Sharding.ALL, b.optional)
            for name, b in bound.items()
        )
        place = user_place()
        by = Join(tuple(chain.sets), chain.strategies, place) if chain.sets else None
        application = DraftApplication(self._signature, bindings, by, place)
        draft.applications.append(application)
        draft.use(self._needs())
        return ApplicationHandle(draft, application)

    def _only_chain(self, joins: tuple[object, ...]) -> JoinChain:
        if not joins:
            return JoinChain({})
        chain = joins[0]
        if len(joins) > 1 or not isinstance(chain, JoinChain):
            names = ", ".join(f"{name}=..." for name in self.inputs)
            message = f"'{self.name}' takes sets by name, and before them at most one join"
            refuse("not-a-set", message, expected=f"{self.name}({names})")
        return chain

    def _check(self, draft: Draft, name: str, bound: BoundSet) -> None:
        if name not in self.inputs:
            known = ", ".join(f"'{s}'" for s in self.inputs) or "no input set at all"
            message = f"'{self.name}' has no input set '{name}'"
            near = meant(name, self.inputs)
            refuse("unknown-parameter", message, expected=known, nearest=near)
        if bound.source.draft is not draft:
            other = bound.source.draft.name
            message = f"{bound.source!r} belongs to composition '{other}', not to '{draft.name}'"
            refuse("foreign-set", message)


class FunctionHandle(_Applicable):
    """A function that is or will be registered; see `functions` and `handle_of`."""

    def __init__(self, declaration: Declaration) -> None:
        super().__init__(Signature(declaration.name, declaration.inputs, declaration.outputs))
        self.declaration = declaration

    def _needs(self) -> Module:
        return Module((self.declaration,))

    def __repr__(self) -> str:
        return f"<function {self._signature}>"


class CompositionHandle(_Applicable):
    """A composition that was described in Python.

    Attributes:
        composition: its record.
        module: the record, the compositions it applies and the declarations of its functions.
    """

    def __init__(self, module: Module, doc: str | None = None) -> None:
        composition = module.compositions[-1]
        super().__init__(Signature(composition.name, composition.inputs, composition.outputs))
        self.composition: Composition = composition
        self.module = module
        self.__doc__ = doc

    def text(self) -> str:
        """Write it in the composition language, with all that it needs: what is registered."""
        return print_module(self.module)

    def _needs(self) -> Module:
        return self.module

    def _repr_svg_(self) -> str:
        return to_svg(self.composition)

    def __repr__(self) -> str:
        return f"<composition {self._signature}>"


def functions(*signatures: str) -> tuple[FunctionHandle, ...]:
    """Declare functions: ``access, render = functions("Access(token) -> (request)", ...)``.

    Raises:
        InvalidComposition: a signature cannot be read.
    """
    place = user_place()
    return tuple(FunctionHandle(parse_signature(text, place)) for text in signatures)


class Described(Protocol):
    """What `handle_of` takes: a name and sets. Function documents and records are of this form."""

    @property
    def name(self) -> str:
        """Name of the function."""

    @property
    def inputs(self) -> Sequence[SetSpec | str]:
        """Input sets: records, or texts that begin with the name, as ``"image: uint8[28, 28]"``."""

    @property
    def outputs(self) -> Sequence[SetSpec | str]:
        """Output sets, likewise."""


def handle_of(function: Described) -> FunctionHandle:
    """Make a described function, such as a `FunctionDocument`, applicable."""
    inputs, outputs = (
        tuple(_set_name(s) for s in sets) for sets in (function.inputs, function.outputs)
    )
    return FunctionHandle(Declaration(function.name, inputs, outputs, user_place()))


def _set_name(spec: SetSpec | str) -> str:
    return spec.name if isinstance(spec, SetSpec) else spec.partition(":")[0].strip()


http = FunctionHandle(Declaration("HTTP", ("requests",), ("headers", "bodies"), NOWHERE))
"""The platform's HTTP client: an item of `requests` gives one of `headers` and one of `bodies`."""


# --- the decorator ----------------------------------------------------------------------------


@overload
def composition(function: Callable[..., Any], /) -> CompositionHandle: ...


@overload
def composition(*, name: str) -> Callable[[Callable[..., Any]], CompositionHandle]: ...


def composition(
    function: Callable[..., Any] | None = None, /, *, name: str = ""
) -> CompositionHandle | Callable[[Callable[..., Any]], CompositionHandle]:
    """Describe a composition by a Python function, which is run once, now.

    Its parameters are the input sets. It returns a dict from output names to sets, or one set,
    which becomes the output `RESULT`.

    Args:
        function: the function under the decorator.
        name: name of the composition; by default that of the function.

    Raises:
        InvalidComposition: the description breaks a static rule; `where` is the file and line of
            the user's program.
    """
    if function is None:
        return lambda given: _describe(given, name or given.__name__)
    return _describe(function, name or function.__name__)


def _describe(function: Callable[..., Any], name: str) -> CompositionHandle:
    place = _definition(function)
    parameters = _input_names(function, name, place)
    with drafting(name, place) as draft:
        returned = function(**{p: draft.add_input(p) for p in parameters})
        module = draft.close(_outputs(draft, returned))
    problems = with_excerpts(check_module(module), python_line)
    if problems:
        raise InvalidComposition(tuple(problems))
    return CompositionHandle(module, function.__doc__)


def _input_names(function: Callable[..., Any], name: str, place: Place) -> list[str]:
    if inspect.iscoroutinefunction(function) or inspect.isgeneratorfunction(function):
        refuse("bad-description", f"composition '{name}' needs a plain function", place)
    parameters = inspect.signature(function).parameters.values()
    for parameter in parameters:
        by_name = parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)
        if not by_name or parameter.default is not parameter.empty:
            message = f"parameter '{parameter}' of composition '{name}' cannot be an input set"
            refuse("bad-description", message, place, expected="plain names, without defaults")
    return [parameter.name for parameter in parameters]


def _outputs(draft: Draft, returned: object) -> dict[str, SetHandle]:
    named = returned if isinstance(returned, Mapping) else {RESULT: returned}
    outputs: dict[str, SetHandle] = {}
    for name, value in named.items():
        what = f"composition '{draft.name}' has to return sets: a dict of outputs, or one set"
        if not isinstance(name, str) or not isinstance(value, (SetHandle, ApplicationHandle)):
            found = f"{name!r:.40}: {value!r:.60}" if returned is named else f"{value!r:.60}"
            refuse("bad-return", what, draft.place, found=found)
        outputs[name] = _set(value, draft.place)
        if outputs[name].draft is not draft:
            message = f"output '{name}' of '{draft.name}' is a set of another composition"
            refuse("foreign-set", message, draft.place)
    return outputs


def _definition(function: Callable[..., Any]) -> Place:
    """Find the ``def`` line of a function, below its decorators."""
    code = getattr(function, "__code__", None)
    if code is None:
        return user_place()
    file, first = code.co_filename, code.co_firstlineno
    for line in range(first, first + 20):
        text = linecache.getline(file, line)
        if text.lstrip().startswith("def "):
            return Place(line, text.index("def ") + len("def ") + 1, file)
    return Place(first, 1, file)
