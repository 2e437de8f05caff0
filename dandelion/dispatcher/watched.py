"""A walk that is watched: which applications of the invoked composition have ended.

Only asynchronous invocations pay for it. Applications of nested compositions count with the
application that contains them, and parts of joined functions with theirs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from dandelion.data import ItemSet
from dandelion.dataflow.sharding import Partitioning
from dandelion.dispatcher.frames import Frame, Running
from dandelion.dispatcher.instructions import Instruction
from dandelion.dispatcher.plan import CompositionPlan
from dandelion.dispatcher.walk import Walk
from dandelion.errors import DandelionError


@dataclass(frozen=True, slots=True)
class ApplicationEnd:
    """An application has ended.

    Attributes:
        application: its id.
        outputs: output sets of the invocation that are known since then: items and bytes.
    """

    application: str
    outputs: Mapping[str, tuple[int, int]] = field(default_factory=dict)


class WatchedWalk(Walk):
    """A walk that reports the ends of applications.

    Args:
        plan, policy, slice_: as of `Walk`.
        on_application: called within a step of the walk; must not raise, nor step the walk.
    """

    def __init__(
        self,
        plan: CompositionPlan,
        policy: Partitioning,
        slice_: int,
        on_application: Callable[[ApplicationEnd], None],
    ) -> None:
        super().__init__(plan, policy, slice_=slice_)
        self._on_application = on_application
        self._top: Frame | None = None
        self._ended = 0

    @property
    def applications_ended(self) -> int:
        """How many applications of the composition have ended."""
        top = self._top
        return 0 if top is None else len(self.plan.applications) - top.left

    @property
    def instances_ended(self) -> int:
        """How many runs of instances of functions have ended, failed attempts included."""
        return self._ended

    def finished(self, instance: int, outputs: tuple[ItemSet | None, ...]) -> list[Instruction]:
        """Record an instance's outputs, as `Walk.finished`."""
        self._ended += self.expects(instance)
        return super().finished(instance, outputs)

    def failed(self, instance: int, error: DandelionError) -> list[Instruction]:
        """Record an instance's failure, as `Walk.failed`."""
        self._ended += self.expects(instance)
        return super().failed(instance, error)

    def _merge(self, frame: Frame, running: Running) -> None:
        if frame.parent is None:
            self._top = frame
        left, plan = frame.left, running.plan
        super()._merge(frame, running)
        if frame.parent is not None or frame.left == left:
            return  # nested, or a loop that goes on
        produced = {*plan.produced, None if plan.failures is None else plan.failures.errors}
        known = {}
        for set_id, name in zip(self.plan.outputs, self.plan.output_names, strict=True):
            item_set = frame.sets[set_id] if set_id in produced else None
            if item_set is not None:
                known[name] = len(item_set.items), item_set.size_bytes
        self._on_application(ApplicationEnd(plan.id, known))
