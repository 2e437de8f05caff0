"""The walk of one function that is applied once: called by its name, or all of a composition.

The same events, instructions and results as those of `Walk`, without a graph: such invocations are
the most frequent and the shortest.
"""

from __future__ import annotations

from collections.abc import Sequence

from dandelion.data import ItemSet
from dandelion.dataflow.sharding import merged
from dandelion.dispatcher.plan import CompositionPlan
from dandelion.dispatcher.walk import Cancel, Complete, Fail, Instruction, Run
from dandelion.errors import ApplicationFailed, DandelionError, InternalError
from dandelion.function import FunctionSpec


class DirectWalk:
    """One invocation.

    Args:
        plan: `CompositionPlan.taken` tells what becomes its outputs.
    """

    __slots__ = ("_taken", "done", "plan")
    unsettled = False

    def __init__(self, plan: CompositionPlan) -> None:
        assert plan.taken is not None, "there is more to be walked"
        self.plan = plan
        self.done = False
        self._taken = plan.taken

    def start(self, inputs: Sequence[ItemSet | None]) -> list[Instruction]:
        """Begin, with the input sets by position, without static ones."""
        application = self.plan.applications[0]
        function = application.target
        assert isinstance(function, FunctionSpec), "compositions are walked"
        sets = tuple([None if s is None else inputs[s] for s in application.sources])
        for at in application.required:
            if sets[at] is None:
                self.done = True
                return [Complete((None,) * len(self._taken))]
        return [Run(0, function, sets, application, 0)]

    def finished(self, instance: int, outputs: tuple[ItemSet | None, ...]) -> list[Instruction]:
        """The instance gave its outputs, by position."""
        if self.done:
            return []
        declared = len(self.plan.applications[0].produced)
        if len(outputs) != declared:
            raise InternalError(f"'{self.plan.name}' got {len(outputs)} sets, not {declared}")
        taken = [outputs[at] for at in self._taken]
        complete = Complete(merged(self.plan.output_names, (taken,)))
        self.done = True  # not before: whoever calls ends it if anything of that fails
        return [complete]

    def failed(self, instance: int, error: DandelionError) -> list[Instruction]:
        """The instance failed; so does the invocation."""
        if self.done:
            return []
        self.done = True
        if not self.plan.is_call:
            application = self.plan.applications[0].id
            error = ApplicationFailed(self.plan.name, application, 0, None).because(error)
        return [Fail(error)]

    def resume(self) -> list[Instruction]:
        """Go on settling: nothing here ever takes that long."""
        return []

    def cancel(self, error: DandelionError) -> list[Instruction]:
        """End the invocation with an error: a deadline, or a caller who left."""
        if self.done:
            return []
        self.done = True
        return [Cancel(0), Fail(error)]
