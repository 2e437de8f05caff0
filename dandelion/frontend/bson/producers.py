"""The names of sets in replies: a set has the name that its producer gave it.

In the original a set keeps its name on its way through a composition, and a reply shows that name
and not the composition's output. The producer is the function that made the set. HTTP makes its
outputs from the requests and keeps their name, and a set that a composition passes through has the
name that the client gave it.

So the name of each output follows from the text of the composition, and from those that it applies.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

from dandelion.catalog import CompositionRecord
from dandelion.dataflow.graph import Application, Composition
from dandelion.dataflow.language import parse
from dandelion.frontend.bson.names import Find, output_labels
from dandelion.function import FunctionSpec

Label: TypeAlias = str | int
"""The name of an output, or the position of the input whose name it has."""


def labels_of(
    found: FunctionSpec | CompositionRecord,
    find: Find,
    known: dict[str, tuple[Label, ...]] | None = None,
) -> tuple[Label, ...]:
    """Return the label of each output of a function or composition, in order.

    Args:
        found: the function or composition.
        find: finds those that it applies.
        known: labels of those that were looked into on the way.
    """
    if isinstance(found, FunctionSpec):
        if _keeps_names(found):
            return (0,) * len(found.outputs)
        return output_labels(found)
    inner: dict[str, tuple[Label, ...]] = {} if known is None else known
    module = parse(found.text, found.name)
    composition = next(c for c in module.compositions if c.name == found.name)
    return _Producers(composition, find, inner).labels()


def _keeps_names(function: FunctionSpec) -> bool:
    return function.kind == "io" and any(code.format == "http" for code in function.code)


class _Producers:
    """The producers of the sets of one composition."""

    def __init__(
        self, composition: Composition, find: Find, known: dict[str, tuple[Label, ...]]
    ) -> None:
        self._composition = composition
        self._find = find
        self._known = known
        self._producers: Mapping[str, tuple[Application, str]] = {
            r.target: (a, r.output) for a in composition.applications for r in a.returns
        }

    def labels(self) -> tuple[Label, ...]:
        return tuple(self._label(name) for name in self._composition.outputs)

    def _label(self, name: str) -> Label:
        """Follow a set to its producer. Compositions have no cycles, so this ends."""
        while name not in self._composition.inputs:
            application, output = self._producers[name]
            callee = self._find(application.function)
            if application.function not in self._known:
                self._known[application.function] = labels_of(callee, self._find, self._known)
            if isinstance(callee, FunctionSpec):
                inputs, outputs = callee.input_names, callee.output_names
            else:
                inputs, outputs = callee.inputs, callee.outputs
            label = self._known[application.function][outputs.index(output)]
            if isinstance(label, str):
                return label
            bound = {b.parameter: b.source for b in application.bindings}
            source = bound.get(inputs[label])
            if source is None:
                return ""
            name = source
        return self._composition.inputs.index(name)
