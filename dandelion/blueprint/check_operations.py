"""The static check of library operations: what does not depend on the inputs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from dandelion.blueprint.numbers import constant
from dandelion.blueprint.operation_calls import Impossible, contradictions, evaluated, misplaced
from dandelion.blueprint.operation_parts import Operation, sizes
from dandelion.blueprint.size_records import Size
from dandelion.errors import Problem


def operation_problems(
    where: str, action: Operation, buffers: Mapping[str, Size], sound: bool
) -> Iterator[Problem]:
    """Yield what is wrong with an operation.

    Args:
        where: its place in the blueprint.
        action: whose buffers are known.
        buffers: sizes of the buffers that are not inputs.
        sound: whether each size by itself is in range.
    """
    for field, message in contradictions(action):
        yield Problem("operation", message, f"{where}.{field}")
    if not sound or any(constant(size) is None for _, size, _, _ in sizes(action)):
        return  # the rest is checked when a call is planned

    def evaluate(field: str, size: Size, smallest: int, largest: int) -> int:
        value = constant(size)
        assert value is not None, f"{field} is constant"
        return value

    def size_of(name: str) -> int | None:
        return constant(buffers[name]) if name in buffers else None

    try:
        call = evaluated(action, evaluate)
    except Impossible as error:
        yield Problem("operation", str(error), f"{where}.{error.field}")
        return
    for field, message in misplaced(call, size_of):
        yield Problem("operation", message, f"{where}.{field}")
