"""Static rules within one composition: sets, bindings, joins, loops, cycles.

Every set of a composition is an input or produced by exactly one application; every set that is
read exists; no application waits for itself. A rule is a function that yields the problems it
finds. Applications of unknown functions are skipped here, since they are already reported. The
rules of joins and of `repeat` are in `dandelion.dataflow.rules_clauses`, those of `attempts` and
`catch` in `dandelion.dataflow.rules_failures`.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

from dandelion.dataflow.composition_graph import to_networkx
from dandelion.dataflow.graph import (
    Application,
    Binding,
    Composition,
    Return,
    application_ids,
)
from dandelion.dataflow.graph_order import order_of
from dandelion.dataflow.rules_clauses import join_problems, repeat_problems
from dandelion.dataflow.rules_failures import attempts_problems, catch_problems
from dandelion.dataflow.rules_names import (
    FunctionSignature,
    bad_names,
    meant,
    no_such_set,
    problem,
    repeated,
)
from dandelion.errors import Problem

if TYPE_CHECKING:
    import networkx as nx


def loops(graph: nx.DiGraph[str], order: Iterable[str]) -> Iterator[list[str]]:
    """Yield one loop of each strongly connected component of a graph.

    Args:
        graph: any directed graph.
        order: nodes at which a loop may start, the preferred ones first.

    Returns:
        The nodes of a shortest loop through the first node, which is also the last one.
    """
    import networkx as nx

    rank = {node: index for index, node in enumerate(order)}
    for component in nx.strongly_connected_components(graph):
        starts = [node for node in component if node in rank]
        if not starts:
            continue
        first = min(starts, key=rank.__getitem__)
        if len(component) > 1 or graph.has_edge(first, first):
            yield _loop_through(graph, first)


def _loop_through(graph: nx.DiGraph[str], first: str) -> list[str]:
    import networkx as nx

    before = {after: node for node, after in nx.bfs_edges(graph, first)}
    node = next(node for node in (first, *before) if graph.has_edge(node, first))
    path = [first]
    while node != first:
        path.append(node)
        node = before[node]
    return [first, *reversed(path)]


def check_composition(
    composition: Composition, signature: Callable[[str], FunctionSignature | None]
) -> Iterator[Problem]:
    """Check one composition.

    Args:
        composition: the composition.
        signature: returns the sets of a function or composition, None if it is unknown.

    Returns:
        Its problems, rule by rule, found lazily.
    """
    sources = _sources(composition)
    yield from _header(composition)
    yield from _producers(composition)
    for application in composition.applications:
        called = signature(application.function)
        yield from bad_names(_names(application), application.place)
        yield from _bindings(application, called, sources)
        yield from _unknown_sets(application, called, sources)
        yield from _returns(application, called)
        if application.join is not None:
            yield from join_problems(application, application.join, called)
        if application.repeat is not None:
            yield from repeat_problems(application, application.repeat, called)
        if application.attempts is not None:
            yield from attempts_problems(application, application.attempts)
        if application.catch is not None:
            yield from catch_problems(application.catch)
    yield from _undriven(composition, sources)
    yield from _cycles(composition)


def _sources(composition: Composition) -> dict[str, None]:
    produced = (target for a in composition.applications for target, _ in a.targets())
    return dict.fromkeys((*composition.inputs, *produced))


def _names(application: Application) -> Iterator[str]:
    yield application.function
    for binding in application.bindings:
        yield from (binding.parameter, binding.source)
    for returned in application.returns:
        yield from (returned.target, returned.output)
    if application.repeat is not None:
        yield from (name for f in application.repeat.feedback for name in (f.parameter, f.output))
    if application.catch is not None:
        yield application.catch.target


def _header(composition: Composition) -> Iterator[Problem]:
    name, place = composition.name, composition.place
    yield from bad_names((name, *composition.inputs, *composition.outputs), place)
    for kind, sets in (("input", composition.inputs), ("output", composition.outputs)):
        for twice in repeated(sets):
            message = f"composition '{name}' has {kind} set '{twice}' twice; name each set once"
            yield problem("duplicate-set", message, place)


def _producers(composition: Composition) -> Iterator[Problem]:
    first: dict[str, str] = dict.fromkeys(composition.inputs, "is an input of the composition")
    for app_id, application in zip(
        application_ids(composition), composition.applications, strict=True
    ):
        targets = application.targets()
        for target, place in targets:
            other = first.setdefault(target, f"is produced by {app_id}")
            if other != f"is produced by {app_id}":
                message = f"{app_id} cannot produce set '{target}': it {other} already"
                yield problem("duplicate-producer", f"{message}; {_RENAME}", place)
        for twice in repeated(target for target, _ in targets):
            place = [place for target, place in targets if target == twice][1]
            message = f"{app_id} produces set '{twice}' twice; {_RENAME}"
            yield problem("duplicate-producer", message, place)


_RENAME = "give this result a name of its own"


def _bindings(
    application: Application, called: FunctionSignature | None, sources: dict[str, None]
) -> Iterator[Problem]:
    seen: set[str] = set()
    for binding in application.bindings:
        if called is not None and binding.parameter not in called.inputs:
            advice = _swapped_binding(binding, called, sources)
            yield no_such_set(
                "unknown-parameter", "input", called, binding.parameter, binding.place, advice
            )
        if binding.parameter in seen:
            message = f"input set '{binding.parameter}' of '{application.function}' is bound twice"
            yield problem("duplicate-parameter", f"{message}; keep one of them", binding.place)
        seen.add(binding.parameter)


def _returns(application: Application, called: FunctionSignature | None) -> Iterator[Problem]:
    first: dict[str, str] = {}
    for returned in application.returns:
        if called is not None and returned.output not in called.outputs:
            advice = _swapped_return(returned, called)
            yield no_such_set(
                "unknown-return", "output", called, returned.output, returned.place, advice
            )
        if returned.output in first:
            message = f"output set '{returned.output}' of '{application.function}' is named twice"
            advice = f"use '{first[returned.output]}' wherever it is needed"
            yield problem("duplicate-return", f"{message}; {advice}", returned.place)
        first.setdefault(returned.output, returned.target)


def _swapped_binding(binding: Binding, called: FunctionSignature, sources: dict[str, None]) -> str:
    """Detect a binding that is written the wrong way round."""
    if binding.parameter in called.inputs or binding.parameter not in sources:
        return ""
    if binding.source not in called.inputs or meant(binding.parameter, called.inputs):
        return ""
    right = f"{binding.source} = {binding.sharding.value} {binding.parameter}"
    return f"put the input set of the function on the left: '{right}'"


def _swapped_return(returned: Return, called: FunctionSignature) -> str:
    """Detect a result that is written the wrong way round."""
    if returned.target not in called.outputs or meant(returned.output, called.outputs):
        return ""
    right = f"{returned.output} = {returned.target}"
    return f"put the output set of the function on the right: '{right}'"


def _unknown_sets(
    application: Application, called: FunctionSignature | None, sources: dict[str, None]
) -> Iterator[Problem]:
    for binding in application.bindings:
        is_swapped = called is not None and _swapped_binding(binding, called, sources)
        if binding.source not in sources and not is_swapped:
            message = (
                f"set '{binding.source}' is neither an input of the composition nor the result of "
                "an application"
            )
            near = meant(binding.source, sources)
            yield problem("unknown-set", message, binding.place, nearest=near)


def _undriven(composition: Composition, sources: dict[str, None]) -> Iterator[Problem]:
    for name in dict.fromkeys(composition.outputs):
        if name not in sources:
            message = (
                f"nothing produces output set '{name}' of composition '{composition.name}'; "
                "an output is an input or the result of an application, under that name"
            )
            near = meant(name, sources)
            yield problem("undriven-output", message, composition.place, nearest=near)


def _waited_for(composition: Composition) -> dict[str, list[str]]:
    """Return, for each application, those that make its inputs."""
    ids = application_ids(composition)
    makers = dict.fromkeys(composition.inputs, "")
    for app_id, application in zip(ids, composition.applications, strict=True):
        for target, _ in application.targets():
            makers.setdefault(target, app_id)
    return {
        app_id: [maker for b in application.bindings if (maker := makers.get(b.source))]
        for app_id, application in zip(ids, composition.applications, strict=True)
    }


def _cycles(composition: Composition) -> Iterator[Problem]:
    if order_of(_waited_for(composition)) is not None:
        return
    graph = to_networkx(composition)
    ids = [f"app:{app_id}" for app_id in application_ids(composition)]
    for loop in loops(graph, ids):
        steps = [loop[0].removeprefix("app:")]
        for source, target in itertools.pairwise(loop):
            name = graph.edges[source, target]["bindings"][0][0]
            steps.append(f"-({name})-> {target.removeprefix('app:')}")
        place = composition.applications[ids.index(loop[0])].place
        message = f"these applications wait for each other: {' '.join(steps)}"
        yield problem("cycle", f"{message}; use 'repeat' to feed results back", place)
