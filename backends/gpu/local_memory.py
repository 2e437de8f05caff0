"""Dynamic local memory that the code of a module asks for, in place of the launch's number."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from .plan import Launch, Step


def with_local_memory(steps: Sequence[Step], needed: Mapping[str, int | None]) -> list[Step]:
    """Set the dynamic local memory of launches whose code states how much it needs.

    Args:
        steps: of a plan, which is the same on every device.
        needed: by kernel: what the file that was chosen for this device asks for, in bytes
            (`dandelion.blueprint.Code.shared_mem_bytes`); None keeps the launch's number.
    """

    def adapted(step: Step) -> Step:
        if not isinstance(step, Launch) or (found := needed.get(step.kernel)) is None:
            return step
        return replace(step, shared_bytes=found)

    return [adapted(step) for step in steps]
