"""Compositions described in Python. See ``docs/dsl.md`` for a tutorial.

A function under ``@composition`` runs once, at its definition, with a handle for each input set. A
call of a `FunctionHandle` or of another composition applies it; the result has a handle for each
output set. The result is a `CompositionModule`, as for a text of the language, so text and Python
are two views of one graph. Errors name the file and line of the user's program.
"""

from __future__ import annotations

import contextlib
import inspect
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol, overload

from dandelion.data import SetSpec, next_name
from dandelion.dataflow.draft import (
    Draft,
    SetHandle,
    definition_place,
    drafting,
    python_line,
    refuse,
    user_place,
)
from dandelion.dataflow.draw import to_svg
from dandelion.dataflow.dsl_applying import Applicable
from dandelion.dataflow.dsl_sets import (
    ApplicationHandle,
    BoundSet,
    JoinChain,
    Returned,
    SetLike,
    UnknownOutput,
    all_,
    any_each,
    any_keyed,
    each,
    join,
    keyed,
    only_set,
    optional,
)
from dandelion.dataflow.excerpt import with_excerpts
from dandelion.dataflow.graph import (
    NOWHERE,
    Composition,
    CompositionModule,
    Declaration,
    SourcePosition,
)
from dandelion.dataflow.language import parse_signature
from dandelion.dataflow.printer import print_module
from dandelion.dataflow.rules_names import FunctionSignature
from dandelion.dataflow.validate import check_module
from dandelion.errors import InvalidComposition

__all__ = [
    "RESULT",
    "ApplicationHandle",
    "BoundSet",
    "CompositionHandle",
    "Described",
    "FunctionHandle",
    "JoinChain",
    "Returned",
    "SetHandle",
    "SetLike",
    "UnknownOutput",
    "all_",
    "any_each",
    "any_keyed",
    "composition",
    "each",
    "functions",
    "handle_of",
    "http",
    "join",
    "keyed",
    "optional",
]

RESULT = "result"
"""Name of the output of a composition that returns a set and not a dict."""


class FunctionHandle(Applicable):
    """A function that is or will be registered; see `functions` and `handle_of`.

    Args:
        declaration: its name and sets.
        source: what is registered with the compositions that apply it, such as a document.
        fixed: input sets that cannot be bound.
    """

    def __init__(
        self, declaration: Declaration, source: object = None, fixed: Iterable[str] = ()
    ) -> None:
        super().__init__(
            FunctionSignature(declaration.name, declaration.inputs, declaration.outputs)
        )
        self._source = source
        self._fixed = frozenset(fixed)
        self.declaration = declaration

    @property
    def sources(self) -> tuple[object, ...]:
        return () if self._source is None else (self._source,)

    def _positional(self) -> tuple[str, ...]:
        return tuple(name for name in self.inputs if name not in self._fixed)

    def _needs(self) -> CompositionModule:
        return CompositionModule((self.declaration,))

    def __repr__(self) -> str:
        return f"<function {self._signature}>"


class CompositionHandle(Applicable):
    """A composition described in Python.

    Attributes:
        composition: its record.
        module: the record, the compositions it applies and the declarations of its functions.
        sources: the functions that it applies and that are registered with it: those that were
            given as objects, and not as signatures.
    """

    def __init__(
        self, module: CompositionModule, doc: str | None = None, sources: Iterable[object] = ()
    ) -> None:
        composition = module.compositions[-1]
        super().__init__(
            FunctionSignature(composition.name, composition.inputs, composition.outputs)
        )
        self.composition: Composition = composition
        self.module = module
        self._sources = tuple(sources)
        self.__doc__ = doc

    def text(self) -> str:
        """Return its text in the composition language, with all that it needs, for registration."""
        return print_module(self.module)

    @property
    def sources(self) -> tuple[object, ...]:
        return self._sources

    def _needs(self) -> CompositionModule:
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
    """The argument of `handle_of`: a name and sets, such as a function document or record."""

    @property
    def name(self) -> str:
        """Name of the function."""

    @property
    def inputs(self) -> Sequence[SetSpec | str]:
        """Input sets: records, or texts that begin with the name, as ``"image: uint8[28, 28]"``."""

    @property
    def outputs(self) -> Sequence[SetSpec | str]:
        """Output sets, in the same form."""


def handle_of(function: Described) -> FunctionHandle:
    """Make a described function, such as a `FunctionDocument`, applicable."""
    if isinstance(function, FunctionHandle):
        return function
    inputs, outputs = (
        tuple(_set_name(s) for s in sets) for sets in (function.inputs, function.outputs)
    )
    source = function if hasattr(type(function), "code") else None
    fixed = [*getattr(function, "static", ()), *getattr(function, "secrets", ())]
    declaration = Declaration(function.name, inputs, outputs, user_place())
    return FunctionHandle(declaration, source, fixed)


def _set_name(spec: SetSpec | str) -> str:
    return spec.name if isinstance(spec, SetSpec) else spec.partition(":")[0].strip()


http = FunctionHandle(Declaration("HTTP", ("requests",), ("headers", "bodies"), NOWHERE))
"""The platform's HTTP client: each item of `requests` results in one of `headers` and `bodies`."""


# --- the decorator ----------------------------------------------------------------------------


@overload
def composition(function: Callable[..., Any], /) -> CompositionHandle: ...


@overload
def composition(*, name: str) -> Callable[[Callable[..., Any]], CompositionHandle]: ...


def composition(
    function: Callable[..., Any] | None = None, /, *, name: str = ""
) -> CompositionHandle | Callable[[Callable[..., Any]], CompositionHandle]:
    """Describe a composition by a Python function, which runs once, at its definition.

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
    place = definition_place(function)
    parameters = _input_names(function, name, place)
    with drafting(name, place) as draft:
        with _sets_are_no_values():
            returned = function(**{p: draft.add_input(p) for p in parameters})
        module = draft.close(_outputs(draft, returned))
        sources = draft.sources
    problems = with_excerpts(check_module(module), python_line)
    if problems:
        raise InvalidComposition(tuple(problems))
    return CompositionHandle(module, function.__doc__, sources)


@contextlib.contextmanager
def _sets_are_no_values() -> Iterator[None]:
    """Explain at its line that code under the decorator used a set as if it had the data."""
    try:
        yield
    except AttributeError as error:
        if not isinstance(error.obj, SetHandle | BoundSet):
            raise
        frame = traceback.extract_tb(error.__traceback__)[-1]
        place = SourcePosition(frame.lineno or 0, (frame.colno or 0) + 1, frame.filename)
        message = f"a set has no attribute '{error.name}' while the composition is described"
        expected = "@dandelion.function above each function that uses data"
        refuse("bad-description", message, place, expected=expected)


def _input_names(function: Callable[..., Any], name: str, place: SourcePosition) -> list[str]:
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
            expected = "results of functions with @dandelion.function, or input sets"
            refuse("bad-return", what, draft.place, expected=expected, found=found)
        handle = only_set(value, draft.place)
        if handle.draft is not draft:
            message = f"output '{name}' of '{draft.name}' is a set of another composition"
            refuse("foreign-set", message, draft.place)
        clashes = draft.inputs.get(name, handle) is not handle
        outputs[next_name(name) if clashes and next_name(name) not in named else name] = handle
    return outputs
