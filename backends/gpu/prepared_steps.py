"""Making all steps of a plan ready to be launched on a device."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from .device import Device, Handle
from .plan import Copy, LibraryCall, Step, Zero


def prepare_steps(
    device: Device,
    steps: Sequence[Step],
    modules: Mapping[str, tuple[Handle, str]],
    constants: Handle | None = None,
) -> list[Handle]:
    """Prepare all steps of a plan.

    Args:
        device: where.
        steps: of the plan.
        modules: the loaded module and the symbol of each kernel, by its name in the blueprint.
        constants: memory with the function's constants, if there is any.

    Raises:
        DandelionError: a step cannot be prepared; those before it are discarded.
    """
    prepared: list[Handle] = []
    try:
        prepared.extend(_prepared(device, step, modules, constants) for step in steps)
    except BaseException:
        device.discard(prepared, None)
        raise
    return prepared


def _prepared(
    device: Device,
    step: Step,
    modules: Mapping[str, tuple[Handle, str]],
    constants: Handle | None,
) -> Handle:
    if isinstance(step, Zero):
        return device.prepare_zero(step)
    if isinstance(step, Copy):
        return device.prepare_copy(step, constants)
    if isinstance(step, LibraryCall):
        return device.prepare_library(step, constants)
    module, symbol = modules[step.kernel]
    return device.prepare(module, symbol, step, constants)
