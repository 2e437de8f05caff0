"""Compositions that are one GPU function, so that a loop over them is a loop over that function.

The application of such a composition is written as one of its function: parameters and outputs get
the names that the function has for them. An input of the composition may be several parameters.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeAlias

import msgspec

from dandelion.dataflow.graph import (
    Application,
    Binding,
    Composition,
    Feed,
    RepeatClause,
    Return,
    Sharding,
)
from dandelion.function import FunctionSpec


class Whole(msgspec.Struct, frozen=True):
    """A composition that is one function.

    Attributes:
        function: which.
        inputs: the input of the composition that each parameter is.
        outputs: the output of the function that each output of the composition is.
    """

    function: FunctionSpec
    inputs: dict[str, str]
    outputs: dict[str, str]


Found: TypeAlias = FunctionSpec | Whole | None
"""A function, a composition that is one, or another composition."""


def whole(
    composition: Composition,
    find: Callable[[str], Found],
    joined: Mapping[str, FunctionSpec],
) -> Whole | None:
    """Give the function that a composition is; None if it is more, or less, than that.

    Args:
        composition: with functions that follow each other as one.
        find: gives what has a name.
        joined: such functions, by name.
    """
    if len(composition.applications) != 1:
        return None
    (application,) = composition.applications
    function = joined.get(application.function) or find(application.function)
    made = {returned.target: returned.output for returned in application.returns}
    bindings = application.bindings
    is_plain = (
        isinstance(function, FunctionSpec)
        and application.repeat is None
        and application.join is None
        and application.attempts is None
        and application.catch is None
        and all(b.sharding is Sharding.ALL and not b.optional for b in bindings)
        and {binding.source for binding in bindings} == set(composition.inputs)
        and made.keys() >= set(composition.outputs)
    )
    if not is_plain or not isinstance(function, FunctionSpec):
        return None
    return Whole(
        function,
        {binding.parameter: binding.source for binding in bindings},
        {name: made[name] for name in composition.outputs},
    )


def as_function(application: Application, found: Whole) -> Application:
    """Write the application of a composition as one of the function that it is."""
    bindings = {binding.parameter: binding for binding in application.bindings}
    return msgspec.structs.replace(
        application,
        function=found.function.name,
        bindings=tuple(
            Binding(parameter, b.source, b.sharding, b.optional)
            for parameter, name in found.inputs.items()
            if (b := bindings.get(name)) is not None
        ),
        returns=tuple(Return(r.target, found.outputs[r.output]) for r in application.returns),
        repeat=None if application.repeat is None else _repeat(application.repeat, found),
    )


def _repeat(repeat: RepeatClause, found: Whole) -> RepeatClause:
    feedback = tuple(
        Feed(parameter, found.outputs[feed.output])
        for feed in repeat.feedback
        for parameter, name in found.inputs.items()
        if name == feed.parameter
    )
    until = None if repeat.until is None else found.outputs[repeat.until]
    return RepeatClause(repeat.times, until, feedback)
