"""The walk of one instance of a function, for calls of other nodes."""

from __future__ import annotations

from collections.abc import Sequence

from dandelion.data import ItemSet, Origin
from dandelion.dataflow.sharding import Partitioning
from dandelion.dispatcher import Cancel, Complete, CompositionPlan, Fail, Instruction, Run, Walk
from dandelion.driver import InstanceSets
from dandelion.errors import DandelionError
from dandelion.function import FunctionSpec

_POLICY = Partitioning("fixed", 1, 1)


class InstanceWalk(Walk):
    """The walk of one instance, whose sets and origin are known."""

    def __init__(self, plan: CompositionPlan, origin: Origin | None, attempt: int) -> None:
        super().__init__(plan, _POLICY)
        self._origin_item = origin
        self._attempt = attempt
        self._inputs: InstanceSets = ()

    @property
    def in_flight(self) -> int:
        return int(not self.done)

    def expects(self, instance: int) -> bool:
        return not self.done

    def start(self, inputs: Sequence[ItemSet | None]) -> list[Instruction]:
        application = self.plan.applications[0]
        spec = application.target
        assert isinstance(spec, FunctionSpec), "it is the plan of a function"
        self._inputs = tuple(inputs)
        origin, attempt = self._origin_item, self._attempt
        return [Run(0, spec, self._inputs, application, 0, origin, attempt)]

    def finished(self, instance: int, outputs: InstanceSets) -> list[Instruction]:
        if self.done:
            return []
        self.done = True
        return [Complete(outputs)]

    def failed(self, instance: int, error: DandelionError) -> list[Instruction]:
        return [] if self.done else self._end(error)

    def cancel(self, error: DandelionError) -> list[Instruction]:
        return [] if self.done else [Cancel(0), *self._end(error)]

    def _end(self, error: DandelionError) -> list[Instruction]:
        self.done = True
        return [Fail(error)]

    def held(self) -> tuple[int, int]:
        sets = [one for one in self._inputs if one is not None]
        return sum([one.size_bytes for one in sets]), sum(map(len, sets))
