"""The walk of a call by name: one function, all its sets, one instance. The same events and
instructions as `Walk`, without a graph; calls by name are the most frequent and the shortest.
"""

from __future__ import annotations

from collections.abc import Sequence

from dandelion.data import ItemSet
from dandelion.dataflow.sharding import merged
from dandelion.dispatcher.plan import CompositionPlan
from dandelion.dispatcher.walk import Cancel, Complete, Fail, Instruction, Run
from dandelion.errors import DandelionError
from dandelion.function import FunctionSpec


class DirectWalk:
    """One invocation of a function by its name; see `dandelion.dispatcher.plan.direct_plan`."""

    __slots__ = ("done", "plan")
    unsettled = False

    def __init__(self, plan: CompositionPlan) -> None:
        self.plan = plan
        self.done = False

    def start(self, inputs: Sequence[ItemSet | None]) -> list[Instruction]:
        """Begin, with the input sets by position, without static ones."""
        application = self.plan.applications[0]
        function = application.target
        assert isinstance(function, FunctionSpec), "a call by name is of a function"
        sets = tuple(None if s is None else inputs[s] for s in application.sources)
        return [Run(0, function, sets, application, 0)]

    def finished(self, instance: int, outputs: tuple[ItemSet | None, ...]) -> list[Instruction]:
        """The instance gave its outputs, by position."""
        if self.done:
            return []
        self.done = True
        return [Complete(merged(self.plan.output_names, (outputs,)))]

    def failed(self, instance: int, error: DandelionError) -> list[Instruction]:
        """The instance failed; so does the invocation."""
        if self.done:
            return []
        self.done = True
        return [Fail(error)]

    def resume(self) -> list[Instruction]:
        """Go on settling: nothing here ever takes that long."""
        return []

    def cancel(self, error: DandelionError) -> list[Instruction]:
        """End the invocation with an error."""
        return [] if self.done else [Cancel(0), *self.failed(0, error)]
