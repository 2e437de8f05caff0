"""Making all steps of a plan ready to be launched on a device."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from .device import Device, Handle
from .open_arguments import Values
from .plan import Copy, Launch, LibraryCall, Step, Zero


def with_values(steps: Sequence[Step], values: Values) -> Sequence[Step]:
    """Put the values of a call in the place of open arguments.

    Args:
        steps: of a plan.
        values: by the indices of `Plan.open_arguments`.
    """
    return [_with_values(step, values) for step in steps] if values else steps


def _with_values(step: Step, values: Values) -> Step:
    if not isinstance(step, Launch) or not step.open_args:
        return step
    args = list(step.args)
    for position, index in step.open_args:
        args[position] = values[index]
    return replace(step, args=tuple(args))


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
