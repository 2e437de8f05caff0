"""Static rules of the composition language that need more than one composition: names.

A name in a composition means, in this order: a composition of the same text, in any order; a
function that the text declares; a registered function or composition. A declaration creates
nothing: it states the sets of a function, and is checked against the composition of the text or the
registration of that name. An application is checked against the declaration if there is one, so
that one mistake is reported once.

Rules within one composition are in `dandelion.dataflow.rules`. All problems are collected, in order
of their positions. The codes are listed in ``docs/language.md``.

Source: the checks of the original composition builder, and those that it lacks.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Container, Iterable, Iterator
from dataclasses import dataclass, field
from typing import TypeAlias

from dandelion.dataflow.excerpt import in_text, with_excerpts
from dandelion.dataflow.graph import (
    Application,
    Composition,
    CompositionModule,
    Declaration,
    SourcePosition,
)
from dandelion.dataflow.graph_order import order_of
from dandelion.dataflow.rules import check_composition, loops
from dandelion.dataflow.rules_names import FunctionSignature, bad_names, meant, problem, repeated
from dandelion.errors import InvalidComposition, Problem

__all__ = [
    "FunctionSignature",
    "Known",
    "Uses",
    "check_module",
    "ensure_valid",
    "signature_of",
    "validate",
]

LIMIT = 200  # problems reported of one module

Known: TypeAlias = Callable[[str], FunctionSignature | None]
"""Returns the sets of a registered function or composition, or None if the name is unknown."""

Uses: TypeAlias = Callable[[str], Collection[str]]
"""Returns the names that a registered composition applies; none for functions."""


def validate(
    module: CompositionModule,
    known: Known,
    taken: Container[str] = frozenset(),
    *,
    names: Callable[[], Iterable[str]] = tuple,
    uses: Uses = lambda _: (),
    text: str = "",
) -> list[Problem]:
    """Check a module against the registered functions and compositions.

    Args:
        module: the module.
        known: the registered functions and compositions, including those of the platform.
        taken: names that the module's compositions may not have, such as those of functions.
        names: gives the registered names, to suggest the nearest one of an unknown name.
        uses: names that registered compositions apply, to find recursion through them.
        text: the text of the module, if it has one, for excerpts.

    Returns:
        All problems (the first `LIMIT`, if there are more), in order of their positions; an empty
        list if it may be registered.
    """
    return _check(_Scope(module, known, uses, names, trust=False), taken, text)


def check_module(
    module: CompositionModule,
    known: Known = lambda _: None,
    *,
    names: Callable[[], Iterable[str]] = tuple,
    text: str = "",
) -> list[Problem]:
    """Check a module by itself: declared functions that `known` does not know are trusted.

    Args:
        module: the module.
        known: signatures that are known.
        names: gives further names, to suggest the nearest one of an unknown name.
        text: the text of the module, if it has one, for excerpts.
    """
    scope = _Scope(module, known, lambda _: (), names, trust=True)
    return _check(scope, frozenset(), text)


def ensure_valid(
    module: CompositionModule,
    known: Known,
    taken: Container[str] = frozenset(),
    *,
    names: Callable[[], Iterable[str]] = tuple,
    uses: Uses = lambda _: (),
    text: str = "",
) -> None:
    """Do as `validate`, but raise.

    Raises:
        InvalidComposition: there are problems; it carries all of them.
    """
    problems = validate(module, known, taken, names=names, uses=uses, text=text)
    if problems:
        raise InvalidComposition(tuple(problems))


def signature_of(what: Composition | Declaration) -> FunctionSignature:
    """Return the sets of a composition or declaration."""
    return FunctionSignature(what.name, what.inputs, what.outputs)


@dataclass(slots=True)
class _Scope:
    """Resolves the names of a module."""

    module: CompositionModule
    known: Known
    uses: Uses
    names: Callable[[], Iterable[str]]
    trust: bool
    compositions: dict[str, Composition] = field(default_factory=dict)
    declarations: dict[str, Declaration] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for composition in self.module.compositions:
            self.compositions.setdefault(composition.name, composition)
        for declaration in self.module.declarations:
            self.declarations.setdefault(declaration.name, declaration)

    def real(self, name: str) -> FunctionSignature | None:
        """Return the composition of the text or the registration, ignoring declarations."""
        local = self.compositions.get(name)
        return signature_of(local) if local else self.known(name)

    def signature(self, name: str) -> FunctionSignature | None:
        """Return the signature that applications of `name` are checked against."""
        declaration = self.declarations.get(name)
        return signature_of(declaration) if declaration else self.real(name)

    def nearest(self, name: str) -> str:
        """Return the callable name that was most likely meant, or an empty text."""
        own = [n for n in (*self.compositions, *self.declarations) if n != name]
        return meant(name, [*own, *self.names()])


def _check(scope: _Scope, taken: Container[str], text: str) -> list[Problem]:
    inner = (check_composition(c, scope.signature) for c in scope.module.compositions)
    found = itertools.chain(
        _declarations(scope),
        _names(scope, taken),
        _unknown_functions(scope),
        _recursion(scope),
        itertools.chain.from_iterable(inner),
    )
    problems = list(itertools.islice(found, LIMIT))
    problems.sort(key=lambda p: (p.where.rsplit(":", 2)[0], p.line, p.column))
    return with_excerpts(problems, in_text(text)) if text else problems


def _declarations(scope: _Scope) -> Iterator[Problem]:
    for declaration in scope.module.declarations:
        place, name = declaration.place, declaration.name
        yield from bad_names((name, *declaration.inputs, *declaration.outputs), place)
        for kind, listed in (("input", declaration.inputs), ("output", declaration.outputs)):
            for twice in repeated(listed):
                message = f"function '{name}' has {kind} set '{twice}' twice; name each set once"
                yield problem("duplicate-set", message, place)
        first = scope.declarations[name]
        if declaration != first:
            message = f"function '{name}' has a different declaration at {first.place}"
            yield _differs("declaration-conflict", message, signature_of(first), declaration)
            continue
        real = scope.real(name)
        sets = (declaration.inputs, declaration.outputs)
        if real is not None and (real.inputs, real.outputs) != sets:
            kind = "composition of this text" if name in scope.compositions else "registered one"
            message = f"the declaration of '{name}' differs from the {kind}"
            yield _differs("declaration-mismatch", message, real, declaration)
        if real is None and not scope.trust:
            message = (
                f"no function or composition '{name}' is registered; a declaration only states its "
                "sets"
            )
            yield problem("unknown-function", message, place, nearest=scope.nearest(name))


def _differs(code: str, message: str, real: FunctionSignature, declaration: Declaration) -> Problem:
    said = signature_of(declaration)
    wrong = [s for s in (*said.inputs, *said.outputs) if s not in (*real.inputs, *real.outputs)]
    near = meant(wrong[0], (*real.inputs, *real.outputs)) if wrong else ""
    return problem(
        code,
        message,
        declaration.place,
        expected=f"{real}",
        found=f"{said}",
        nearest=near,
    )


def _names(scope: _Scope, taken: Container[str]) -> Iterator[Problem]:
    for composition in scope.module.compositions:
        name, place = composition.name, composition.place
        first = scope.compositions[name]
        if composition is not first:
            message = f"composition '{name}' is defined twice, first at {first.place}; rename one"
            yield problem("duplicate-composition", message, place)
        elif name in taken:
            message = f"the name '{name}' is already in use; rename the composition"
            yield problem("name-taken", message, place)


def _unknown_functions(scope: _Scope) -> Iterator[Problem]:
    for composition in scope.module.compositions:
        for application in composition.applications:
            name = application.function
            if scope.signature(name) is None:
                near = scope.nearest(name)
                message = f"there is no function or composition '{name}'"
                if not near:
                    declared = _line(application)
                    message += f"; register it, define it in this text, or declare it: {declared}"
                yield problem("unknown-function", message, application.place, nearest=near)


def _line(application: Application) -> str:
    """Write the declaration that an application needs."""
    inputs = ", ".join(binding.parameter for binding in application.bindings)
    outputs = ", ".join(returned.output for returned in application.returns)
    return f"function {application.function}({inputs}) => ({outputs});"


def _recursion(scope: _Scope) -> Iterator[Problem]:
    uses = _uses(scope)
    if order_of(uses) is not None:
        return
    import networkx as nx

    for loop in loops(nx.DiGraph(uses), scope.compositions):
        place = _application_place(scope.compositions[loop[0]], loop[1])
        message = f"a composition cannot apply itself: {' -> '.join(loop)}"
        yield problem("recursion", f"{message}; loops are written with 'repeat'", place)


def _uses(scope: _Scope) -> dict[str, list[str]]:
    """Return which names apply which, starting from the compositions of the text."""
    found: dict[str, list[str]] = {}
    waiting = list(scope.compositions)
    seen = set(waiting)
    while waiting:
        name = waiting.pop()
        local = scope.compositions.get(name)
        used = [a.function for a in local.applications] if local else list(scope.uses(name))
        found[name] = used
        for applied in used:
            if applied not in seen:
                seen.add(applied)
                waiting.append(applied)
    return found


def _application_place(composition: Composition, function: str) -> SourcePosition:
    places = [a.place for a in composition.applications if a.function == function]
    return places[0] if places else composition.place
