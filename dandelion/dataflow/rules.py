"""Static rules within one composition: sets, bindings, joins, loops.

Every set of a composition is an input or produced by exactly one application; every set that is
read exists; no application waits for itself. A rule is a function that gives the problems it finds.
Applications of unknown functions are left out here: that their function is unknown has been said.
"""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator

import msgspec
import networkx as nx

from dandelion.dataflow.graph import (
    Application,
    Binding,
    Composition,
    Join,
    Place,
    Sharding,
    application_ids,
    to_networkx,
)
from dandelion.errors import Problem, nearest

NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
NAME_LIMIT = 255  # characters


class Signature(msgspec.Struct, frozen=True):
    """What a function or composition is called and which sets it has, in order."""

    name: str
    inputs: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.name}({', '.join(self.inputs)}) => ({', '.join(self.outputs)})"


def problem(
    code: str,
    message: str,
    place: Place,
    *,
    expected: str = "",
    found: str = "",
    nearest: str = "",
) -> Problem:
    """Make a problem of a place."""
    where = str(place)
    return Problem(code, message, where, place.line, place.column, expected, found, nearest)


def repeated(names: Iterable[str]) -> list[str]:
    """Give the names that occur more than once, in order."""
    return [name for name, count in Counter(names).items() if count > 1]


def meant(name: str, known: Iterable[str]) -> str:
    """Give the known name that is nearest, or an empty text; looks at the first 200 names only.

    Comparing names costs far more than all rules together, and a text may hold any number of them.
    """
    if len(name) > NAME_LIMIT:
        return ""
    few = itertools.islice((k for k in known if len(k) <= NAME_LIMIT), 200)
    return nearest(name, few) or ""


def bad_names(names: Iterable[str], place: Place) -> Iterator[Problem]:
    """Report what is no identifier; a text cannot hold such names, JSON and Python can."""
    for name in dict.fromkeys(names):
        if not NAME.fullmatch(name) or len(name) > NAME_LIMIT:
            rule = f"ASCII letters, digits and '_', at most {NAME_LIMIT}, no digit first"
            yield problem("bad-name", f"{name[:60]!r} cannot be a name", place, expected=rule)


def loops(graph: nx.DiGraph[str], order: Iterable[str]) -> Iterator[list[str]]:
    """Give one loop of each tangle (strongly connected component) of a graph.

    Args:
        graph: any directed graph.
        order: nodes at which a loop may start, the preferred ones first.

    Returns:
        The nodes of a shortest loop through the first node, which stands at both ends.
    """
    rank = {node: index for index, node in enumerate(order)}
    for component in nx.strongly_connected_components(graph):
        starts = [node for node in component if node in rank]
        if not starts:
            continue
        first = min(starts, key=rank.__getitem__)
        if len(component) > 1 or graph.has_edge(first, first):
            yield _loop_through(graph, first)


def _loop_through(graph: nx.DiGraph[str], first: str) -> list[str]:
    before = dict(nx.bfs_predecessors(graph, first))
    node = next(node for node in (first, *before) if graph.has_edge(node, first))
    path = [first]
    while node != first:
        path.append(node)
        node = before[node]
    return [first, *reversed(path)]


def check_composition(
    composition: Composition, signature: Callable[[str], Signature | None]
) -> Iterator[Problem]:
    """Check one composition.

    Args:
        composition: what was read.
        signature: gives the sets of what an application names, None if that is unknown.

    Returns:
        Its problems, rule by rule, found as they are asked for.
    """
    sources = _sources(composition)
    yield from _header(composition)
    yield from _producers(composition)
    for application in composition.applications:
        called = signature(application.function)
        yield from bad_names(_names(application), application.place)
        yield from _bindings(application, called)
        yield from _unknown_sets(application, sources)
        yield from _returns(application, called)
        if application.join is not None:
            yield from _join(application, application.join, called)
    yield from _undriven(composition, sources)
    yield from _cycles(composition)


def _sources(composition: Composition) -> dict[str, None]:
    produced = (r.target for a in composition.applications for r in a.returns)
    return dict.fromkeys((*composition.inputs, *produced))


def _names(application: Application) -> Iterator[str]:
    yield application.function
    for binding in application.bindings:
        yield from (binding.parameter, binding.source)
    for returned in application.returns:
        yield from (returned.target, returned.output)


def _header(composition: Composition) -> Iterator[Problem]:
    name, place = composition.name, composition.place
    yield from bad_names((name, *composition.inputs, *composition.outputs), place)
    for kind, sets in (("input", composition.inputs), ("output", composition.outputs)):
        for twice in repeated(sets):
            message = f"composition '{name}' has {kind} set '{twice}' twice"
            yield problem("duplicate-set", message, place)


def _producers(composition: Composition) -> Iterator[Problem]:
    first: dict[str, str] = dict.fromkeys(composition.inputs, "an input of the composition")
    for app_id, application in zip(
        application_ids(composition), composition.applications, strict=True
    ):
        for returned in application.returns:
            other = first.setdefault(returned.target, f"produced by {app_id}")
            if other != f"produced by {app_id}":
                message = f"{app_id} cannot produce set '{returned.target}', it is {other}"
                yield problem("duplicate-producer", message, returned.place)
        for twice in repeated(r.target for r in application.returns):
            place = [r.place for r in application.returns if r.target == twice][1]
            message = f"{app_id} produces set '{twice}' twice"
            yield problem("duplicate-producer", message, place)


def _bindings(application: Application, called: Signature | None) -> Iterator[Problem]:
    seen: set[str] = set()
    for binding in application.bindings:
        if called is not None and binding.parameter not in called.inputs:
            yield _no_such_set(
                "unknown-parameter", "input", called, binding.parameter, binding.place
            )
        if binding.parameter in seen:
            message = f"input set '{binding.parameter}' of '{application.function}' is bound twice"
            yield problem("duplicate-parameter", message, binding.place)
        seen.add(binding.parameter)


def _returns(application: Application, called: Signature | None) -> Iterator[Problem]:
    seen: set[str] = set()
    for returned in application.returns:
        if called is not None and returned.output not in called.outputs:
            yield _no_such_set("unknown-return", "output", called, returned.output, returned.place)
        if returned.output in seen:
            message = f"output set '{returned.output}' of '{application.function}' is named twice"
            yield problem("duplicate-return", message, returned.place)
        seen.add(returned.output)


def _no_such_set(code: str, kind: str, called: Signature, name: str, place: Place) -> Problem:
    sets = called.inputs if kind == "input" else called.outputs
    message = f"'{called.name}' has no {kind} set '{name}'"
    known = ", ".join(f"'{s}'" for s in sets) or f"no {kind} set at all"
    return problem(code, message, place, expected=known, nearest=meant(name, sets))


def _unknown_sets(application: Application, sources: dict[str, None]) -> Iterator[Problem]:
    for binding in application.bindings:
        if binding.source not in sources:
            message = f"set '{binding.source}' is neither an input nor produced here"
            near = meant(binding.source, sources)
            yield problem("unknown-set", message, binding.place, nearest=near)


def _join(application: Application, join: Join, called: Signature | None) -> Iterator[Problem]:
    if len(join.strategies) != len(join.order) - 1:
        message = f"{len(join.order)} sets cannot be joined by {len(join.strategies)} words"
        yield problem("join-shape", message, join.place)
    for twice in repeated(join.order):
        yield problem("join-duplicate", f"'{twice}' is joined twice", join.place)
    bound = {binding.parameter: binding for binding in application.bindings}
    kinds: dict[Sharding, str] = {}
    for parameter in dict.fromkeys(join.order):
        binding = bound.get(parameter)
        if binding is None:
            yield _not_bound(application, parameter, called, join.place)
        elif binding.sharding not in (Sharding.KEYED, Sharding.ANY_KEYED):
            yield _not_keyed(binding, join.place)
        else:
            kinds.setdefault(binding.sharding, parameter)
    if len(kinds) > 1:
        keyed, any_keyed = kinds[Sharding.KEYED], kinds[Sharding.ANY_KEYED]
        message = f"a join cannot mix keyed ('{keyed}') with anyKeyed ('{any_keyed}')"
        yield problem("join-mixed", message, join.place)


def _not_bound(
    application: Application, parameter: str, called: Signature | None, place: Place
) -> Problem:
    names = [binding.parameter for binding in application.bindings]
    by_source = [b.parameter for b in application.bindings if b.source == parameter]
    near = by_source[0] if by_source else meant(parameter, names)
    if called is not None and parameter in called.inputs:
        message = f"'{parameter}' is joined but not bound"
        return problem("join-unbound", message, place, nearest=near)
    message = f"'{application.function}' has no input set '{parameter}' to join"
    return problem("join-unknown", message, place, nearest=near)


def _not_keyed(binding: Binding, place: Place) -> Problem:
    message = f"'{binding.parameter}' is joined but bound with '{binding.sharding.value}'"
    return problem("join-sharding", message, place, expected="'keyed' or 'anyKeyed'")


def _undriven(composition: Composition, sources: dict[str, None]) -> Iterator[Problem]:
    for name in dict.fromkeys(composition.outputs):
        if name not in sources:
            message = f"nothing produces output set '{name}' of composition '{composition.name}'"
            near = meant(name, sources)
            yield problem("undriven-output", message, composition.place, nearest=near)


def _cycles(composition: Composition) -> Iterator[Problem]:
    graph = to_networkx(composition)
    ids = [f"app:{app_id}" for app_id in application_ids(composition)]
    for loop in loops(graph, ids):
        steps = [loop[0].removeprefix("app:")]
        for source, target in itertools.pairwise(loop):
            name = graph.edges[source, target]["bindings"][0][0]
            steps.append(f"-({name})-> {target.removeprefix('app:')}")
        place = composition.applications[ids.index(loop[0])].place
        yield problem("cycle", f"these wait for each other for ever: {' '.join(steps)}", place)
