"""What a call of a GPU function will need, from its plan."""

from __future__ import annotations

from collections.abc import Mapping

from dandelion.data import Item
from dandelion.driver import Demand, InstanceSets, Planner
from dandelion.function import Function

from .constants import LEAST_BYTES, WeightsLimit, constant_slots
from .layout import Slot
from .lowering import AssumedLibrary, Lowering
from .options import GpuOptions
from .plan_cache import PlanCache
from .program import Program, ProgramCache, Signature, plan_call

_DEMANDS = 1024


class GpuPlanner(Planner):
    """Plans calls as the engine will, and keeps the demands that were computed last.

    Args:
        options: of the backend.
        workspace_bytes: most that an operation of the device's library needs; 0 if it has none.
    """

    def __init__(self, options: GpuOptions, workspace_bytes: int = 0) -> None:
        self._options = options
        self._programs = ProgramCache()
        library = AssumedLibrary(workspace_bytes) if workspace_bytes else None
        self._plans = PlanCache(lowering=Lowering(library, on_processor=library is None))
        self._demands: dict[tuple[str, Signature], Demand] = {}

    def reads(self, function: Function) -> tuple[tuple[int, int], ...]:
        program = self._programs.get(function)
        return tuple(read for read in program.reads if read[0] in program.varying)

    def demand(self, function: Function, inputs: InstanceSets) -> Demand:
        program = self._programs.get(function)
        key = (program.identity, program.signature(inputs))
        found = self._demands.get(key)
        if found is None:
            items = program.items(inputs)
            plan = plan_call(self._plans, program, items, self._resident(program, items))
            found = Demand(
                program.output_bytes(plan), plan.used_bytes, plan.blocks, plan.block_threads
            )
            if len(self._demands) >= _DEMANDS:
                self._demands.clear()
            self._demands[key] = found
        return found

    def _resident(self, program: Program, items: Mapping[str, Item]) -> Mapping[str, Slot] | None:
        """Lay out constants that the device may keep; None if there are none."""
        if self._options.weights() == WeightsLimit() or not program.constants:
            return None
        slots, size = constant_slots(program, items)
        return slots if size >= LEAST_BYTES else None
