"""Compositions of a document become records: names resolve, nothing applies itself."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from typing import TypeAlias

import msgspec

from dandelion.catalog import CatalogView, CompositionRecord, LibraryRecord, Removal, kind_of
from dandelion.dataflow.excerpt import in_texts, with_excerpts
from dandelion.dataflow.graph import Composition, CompositionModule, Declaration
from dandelion.dataflow.graph_order import order_of
from dandelion.dataflow.language import check_length, parse
from dandelion.dataflow.printer import print_module
from dandelion.dataflow.validate import FunctionSignature, validate
from dandelion.errors import Conflict, InvalidComposition, InvalidInput, Problem
from dandelion.function import FunctionSpec

NESTING_LIMIT = 100
"""How many compositions may be inside of each other. A failure names each of them."""

Find: TypeAlias = Callable[[str], FunctionSpec | CompositionRecord | None]
"""Gives the function or composition of a name."""
Uses: TypeAlias = Mapping[str, Sequence[str]]
"""By composition, what it applies."""


class CompositionChecks:
    """Checks compositions against the catalogue and the platform.

    Args:
        registered: the records.
        platform: functions that the platform provides, by name.
        offered: backends that are installed and not started, by the functions that they provide.
    """

    def __init__(
        self,
        registered: CatalogView,
        platform: Mapping[str, FunctionSpec],
        offered: Mapping[str, str],
    ) -> None:
        self._registered = registered
        self._platform = platform
        self._offered = offered

    def records(
        self, texts: Mapping[str, str], functions: Mapping[str, FunctionSpec]
    ) -> list[CompositionRecord]:
        """Check texts of compositions together.

        Args:
            texts: by the names that errors give them.
            functions: registered with them.

        Raises:
            InvalidComposition: all problems of all texts.
            TooLarge: a text is too long.
            InvalidInput: compositions are nested too deeply.
        """
        if not texts:
            return []
        for name, text in texts.items():
            check_length(name, text)
        modules = [parse(text, name) for name, text in texts.items()]
        module = CompositionModule(  # texts may share nested compositions: equal records count once
            tuple(dict.fromkeys(d for m in modules for d in m.declarations)),
            tuple(dict.fromkeys(c for m in modules for c in m.compositions)),
        )
        known = self._known(functions)

        def names() -> list[str]:
            return [*functions, *self._platform, *(r.name for r in self._registered.newest())]

        problems = validate(module, known, names=names)
        if not problems:
            signatures = {
                c.name: FunctionSignature(c.name, c.inputs, c.outputs) for c in module.compositions
            }

            def find(name: str) -> FunctionSignature | None:
                return signatures.get(name) or known(name)

            uses = self._uses_with(module)
            order = order_of(uses)
            problems = [
                *_static_problems(module, lambda name: functions.get(name) or self.find(name)),
                *(_recursion_problems(module, uses) if order is None else ()),
            ]
            if not problems and order is not None:  # else others apply themselves
                _check_nesting(order, uses, {c.name for c in module.compositions})
        if problems:
            problems = [self._with_backend(problem) for problem in problems]
            raise InvalidComposition(tuple(with_excerpts(problems, in_texts(texts))))
        return [_record(module, c, find) for c in module.compositions]

    def _with_backend(self, problem: Problem) -> Problem:
        """Say which backend has a function that is unknown, if one has."""
        if problem.code != "unknown-function":
            return problem
        for name, backend in self._offered.items():
            if f"'{name}'" in problem.message:
                message = f"'{name}' is a function of the backend '{backend}'"
                message += ", which is not started here; add it to the node's setting 'backends'"
                return msgspec.structs.replace(problem, message=message, nearest="")
        return problem

    def _known(
        self, functions: Mapping[str, FunctionSpec]
    ) -> Callable[[str], FunctionSignature | None]:
        def known(name: str) -> FunctionSignature | None:
            found = functions.get(name) or self.find(name)
            return None if found is None else _signature_of(found)

        return known

    def find(self, name: str) -> FunctionSpec | CompositionRecord | None:
        """Find what is registered, or of the platform."""
        return self._platform.get(name) or self._registered.find_callable(name)

    def _uses_with(self, module: CompositionModule) -> Uses:
        """Return which names apply which, once a module is registered."""
        found: dict[str, Sequence[str]] = {
            record.name: record.uses for record in self._registered.compositions()
        }
        for composition in module.compositions:
            found[composition.name] = [a.function for a in composition.applications]
        return found

    def check_users(
        self,
        functions: Mapping[str, FunctionSpec],
        compositions: list[CompositionRecord],
        replaced: Iterable[str] = (),
    ) -> None:
        """Refuse new versions whose sets no longer fit the compositions that use them.

        Args:
            functions, compositions: the new versions.
            replaced: names of which versions are removed, so that an older one may be the newest.

        Raises:
            Conflict: a registered composition would break.
        """
        left = ((name, self.find(name)) for name in replaced)
        new: dict[str, FunctionSpec | CompositionRecord] = {n: f for n, f in left if f is not None}
        new |= {**functions, **{c.name: c for c in compositions}}
        defined = {c.name for c in compositions}
        for record in self._registered.compositions():
            if record.name in defined:
                continue
            problem = self._misfit(record, new)
            if problem is not None:
                used = sorted(new.keys() & set(record.uses))
                message = f"the new version of {', '.join(used)} breaks it; register both together"
                message += f", or remove it first (dandelion rm {record.name})"
                raise Conflict("composition", record.name, f"{message}: {problem}")

    def check_removals(self, removals: Sequence[Removal]) -> None:
        """Refuse a removal after which a composition would not fit what is newest then.

        Raises:
            Conflict: a registered composition would break.
        """
        gone = {(one.kind, one.name, one.version) for one in removals}
        touched = {one.name for one in removals}
        newest: dict[str, FunctionSpec | CompositionRecord] = {}
        stay: dict[str, CompositionRecord] = {}
        for now in self._registered.newest():
            if isinstance(now, LibraryRecord):
                continue
            kind, name = kind_of(now), now.name
            versions = [now.version]
            if name in touched:
                versions = self._registered.versions(type(now), name)
            left = [v for v in versions if gone.isdisjoint({(kind, name, v), (kind, name, None)})]
            after = self._registered.find_callable(name, left[-1]) if left else None
            if after is not None and after.version != now.version:
                newest[name] = after
            if isinstance(after, CompositionRecord):
                stay[name] = after
        uses: Uses = {name: stays.uses for name, stays in stay.items()}
        for stays in stay.values():
            problem = self._misfit(stays, newest)
            if problem is not None:
                names = sorted(newest.keys() & {stays.name, *stays.uses})
                told = " and ".join(f"version {newest[n].version} of {n}" for n in names)
                message = f"{told} would be the newest, which does not fit; remove both together"
                raise Conflict("composition", stays.name, f"{message}: {problem}")
        if order_of(uses) is None:
            for name, loop in _loops_through(newest, uses):
                message = f"version {newest[name].version} would apply itself: {loop}"
                raise Conflict("composition", name, message)

    def _misfit(
        self,
        record: CompositionRecord,
        changed: Mapping[str, FunctionSpec | CompositionRecord],
    ) -> Problem | None:
        """Tell why a composition does not fit a change of itself or what it uses."""
        if changed.keys().isdisjoint((record.name, *record.uses)):
            return None
        module = parse(record.text, record.name)
        return misfit(module, lambda name: changed.get(name) or self.find(name))


def misfit(module: CompositionModule, find: Find) -> Problem | None:
    """Tell why a checked composition does not fit what it uses now; None if it does."""

    def known(name: str) -> FunctionSignature | None:
        found = find(name)
        return None if found is None else _signature_of(found)

    problems = validate(module, known) or [*_static_problems(module, find)]
    return problems[0] if problems else None


def _static_problems(module: CompositionModule, find: Find) -> Iterator[Problem]:
    for composition in module.compositions:
        for application in composition.applications:
            callee = find(application.function)
            static = callee.fixed if isinstance(callee, FunctionSpec) else ()
            for binding in application.bindings:
                if binding.parameter in static:
                    yield Problem(
                        "static-set",
                        f"set '{binding.parameter}' of function '{application.function}' is "
                        "fixed at registration and cannot be bound",
                        str(binding.place),
                        binding.place.line,
                        binding.place.column,
                    )


def _recursion_problems(module: CompositionModule, uses: Uses) -> Iterator[Problem]:
    places = {composition.name: composition.place for composition in module.compositions}
    for name, loop in _loops_through(places, uses):
        message = f"composition '{name}' would apply itself: {loop}"
        place = places[name]
        yield Problem("recursion", message, str(place), place.line, place.column)


def _check_nesting(order: Sequence[str], uses: Uses, names: Container[str]) -> None:
    """Refuse compositions among `names` by which others, or they themselves, are too deep.

    Args:
        order: of all names, each after those that it applies.
        uses: which names apply which.
        names: those that are registered now.
    """
    below = dict.fromkeys(order, 0)
    for name in order:
        for used in uses.get(name, ()):
            below[name] = max(below[name], below[used] + 1)
    above = dict.fromkeys(order, 0)
    for name in reversed(order):
        levels = above[name] + below[name]
        if name in names and levels > NESTING_LIMIT:
            raise too_deep(name, levels)
        for used in uses.get(name, ()):
            above[used] = max(above[used], above[name] + 1)


def too_deep(name: str, levels: int) -> InvalidInput:
    """Return the error of a composition with this many inside of each other."""
    message = f"{levels} compositions are inside of each other, more than {NESTING_LIMIT}"
    return InvalidInput(f"composition '{name}'", message)


def _signature_of(found: FunctionSpec | CompositionRecord) -> FunctionSignature:
    """Return the names of the sets of a function or composition."""
    if isinstance(found, FunctionSpec):
        return FunctionSignature(found.name, found.input_names, found.output_names)
    return FunctionSignature(found.name, found.inputs, found.outputs)


def _record(
    module: CompositionModule,
    composition: Composition,
    find: Callable[[str], FunctionSignature | None],
) -> CompositionRecord:
    uses = tuple(dict.fromkeys(a.function for a in composition.applications))
    signatures = [s for s in map(find, uses) if s is not None]
    declarations = tuple(Declaration(s.name, s.inputs, s.outputs) for s in signatures)
    text = print_module(CompositionModule(declarations, (composition,)))
    return CompositionRecord(composition.name, text, composition.inputs, composition.outputs, uses)


def _loops_through(names: Iterable[str], uses: Uses) -> Iterator[tuple[str, str]]:
    """Yield those of the names that apply themselves, each with a shortest way, as text."""
    import networkx as nx

    graph = nx.DiGraph(uses)
    for name in names:
        for successor in uses.get(name, ()):
            if nx.has_path(graph, successor, name):
                way = [name, *nx.shortest_path(graph, successor, name)]
                yield name, " -> ".join(way)
                break
