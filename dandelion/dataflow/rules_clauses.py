"""Static rules of the clauses of an application: `by` and `repeat`."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from dandelion.dataflow.graph import (
    TIMES_LIMIT,
    Application,
    Binding,
    Join,
    RepeatClause,
    Sharding,
    SourcePosition,
)
from dandelion.dataflow.rules_names import (
    FunctionSignature,
    bad_names,
    meant,
    no_such_set,
    problem,
    repeated,
)
from dandelion.errors import Problem

SHOWN_LIMIT = 10**18  # numbers beyond it are not written out


def join_problems(
    application: Application, join: Join, called: FunctionSignature | None
) -> Iterator[Problem]:
    """Report the problems of a `by` clause; `called` is None if the function is unknown."""
    if len(join.strategies) != len(join.order) - 1:
        counts = f"{len(join.order)} input sets with {len(join.strategies)} join words"
        message = (
            f"the join of '{application.function}' has {counts}; "
            "write one join word between each two input sets"
        )
        yield problem("join-shape", message, join.place)
    for twice in repeated(join.order):
        message = f"'{twice}' is joined twice; an input set occurs once after 'by'"
        yield problem("join-duplicate", message, join.place)
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
        message = (
            f"a join cannot mix keyed ('{keyed}') with anyKeyed ('{any_keyed}'); "
            "bind all joined sets with one of them"
        )
        yield problem("join-mixed", message, join.place)


def _not_bound(
    application: Application,
    parameter: str,
    called: FunctionSignature | None,
    place: SourcePosition,
) -> Problem:
    names = [binding.parameter for binding in application.bindings]
    by_source = [b.parameter for b in application.bindings if b.source == parameter]
    near = by_source[0] if by_source else meant(parameter, names)
    if called is not None and parameter in called.inputs:
        message = f"'{parameter}' is joined but not bound; bind it, as in '{parameter} = keyed SET'"
        return problem("join-unbound", message, place, nearest=near)
    message = (
        f"'{application.function}' has no input set '{parameter}' to join; "
        "'by' takes input sets of the function, not sets of the composition"
    )
    return problem("join-unknown", message, place, nearest=near)


def _not_keyed(binding: Binding, place: SourcePosition) -> Problem:
    message = (
        f"'{binding.parameter}' is joined by key, so it cannot be bound with "
        f"'{binding.sharding.value}'"
    )
    return problem("join-sharding", message, place, expected="'keyed' or 'anyKeyed'")


def repeat_problems(
    application: Application, repeat: RepeatClause, called: FunctionSignature | None
) -> Iterator[Problem]:
    """Report the problems of a `repeat` clause; `called` is None if the function is unknown."""
    if not 1 <= repeat.times <= TIMES_LIMIT:
        said = str(repeat.times) if abs(repeat.times) < SHOWN_LIMIT else "a number far beyond"
        message = f"'{application.function}' cannot be repeated that often"
        rule = f"1 to {TIMES_LIMIT} iterations"
        yield problem("repeat-range", message, repeat.place, expected=rule, found=said)
    if not repeat.feedback:
        message = (
            f"the loop over '{application.function}' feeds nothing, so all iterations would be the "
            "same; say which input is fed with which output, as in 'feeding (input = output)'"
        )
        yield problem("feed-missing", message, repeat.place)
    if repeat.until is not None:
        yield from bad_names((repeat.until,), repeat.place)
        for found in _no_output(repeat.until, called, repeat.place):
            rule = "'until' takes the output set that ends the loop once it is empty"
            yield msgspec.structs.replace(found, message=f"{found.message}; {rule}")
    bound = {binding.parameter for binding in application.bindings}
    for feed in repeat.feedback:
        yield from _no_output(feed.output, called, feed.place)
        if called is not None and feed.parameter not in called.inputs:
            yield no_such_set("unknown-parameter", "input", called, feed.parameter, feed.place)
        elif feed.parameter not in bound:
            message = (
                f"'{feed.parameter}' is fed but not bound; bind the set that the first iteration "
                f"begins with, as in '{feed.parameter} = all SET'"
            )
            near = meant(feed.parameter, bound)
            yield problem("feed-unbound", message, feed.place, nearest=near)
    for twice in repeated(feed.parameter for feed in repeat.feedback):
        place = [f.place for f in repeat.feedback if f.parameter == twice][1]
        message = f"'{twice}' is fed twice; an input set is fed with one output set"
        yield problem("feed-duplicate", message, place)


def _no_output(
    name: str, called: FunctionSignature | None, place: SourcePosition
) -> Iterator[Problem]:
    if called is not None and name not in called.outputs:
        yield no_such_set("unknown-return", "output", called, name, place)
