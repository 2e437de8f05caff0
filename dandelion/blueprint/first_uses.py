"""How a blueprint uses a buffer first: whether it matters what lay there before."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import Enum

from dandelion.blueprint.numbers import constant
from dandelion.blueprint.operation_calls import Impossible, covers, evaluated
from dandelion.blueprint.operation_parts import operands
from dandelion.blueprint.records import (
    Access,
    Action,
    Candidates,
    Choose,
    Conv2d,
    CopyBuffer,
    ExecKernel,
    Gemm,
    GpuConfig,
    Ptr,
    Repeat,
    RepeatWhile,
    Size,
    ZeroBuffer,
)


class _Use(Enum):
    """How some actions use a buffer first.

    `PARTLY`: some of the ways that a call can take write it first, the others do not use it.
    """

    NONE = "none"
    WRITTEN = "written"
    PARTLY = "partly"
    READ = "read"


def is_written_first(buffer: str, config: GpuConfig) -> bool:
    """Tell whether a blueprint writes a buffer before it reads it, whatever its inputs are.

    An output is read at the end. A buffer that is not used at all is not read either.
    """
    body = config.blueprint
    looks = _Looks(buffer, config)
    found = looks.at(body.control_flow)
    if found in (_Use.WRITTEN, _Use.READ):
        return found is _Use.WRITTEN
    return buffer not in (*body.outputs, *body.present_if.values())


class _Looks:
    """Looks for the first use of one buffer."""

    def __init__(self, buffer: str, config: GpuConfig) -> None:
        self._buffer = buffer
        self._access: Mapping[str, tuple[Access, ...]] = {k.name: k.access for k in config.kernels}
        size = config.blueprint.buffers.get(buffer)
        self._size_bytes = None if size is None else constant(size)

    def at(self, actions: tuple[Action, ...]) -> _Use:
        """Say how actions in order use it."""
        before = _Use.NONE
        for action in actions:
            found = self._use(action)
            if found in (_Use.WRITTEN, _Use.READ):
                return found
            if found is _Use.PARTLY:
                before = found
        return before

    def _use(self, action: Action) -> _Use:
        buffer = self._buffer
        match action:
            case Repeat(times, inner):
                found = self.at(inner)
                if found is _Use.WRITTEN and not constant(times):
                    return _Use.PARTLY  # perhaps it does not run
                return found
            case RepeatWhile(_, word, inner):  # it runs at least once
                found = self.at(inner)
                is_read = word == buffer and found is not _Use.WRITTEN
                return _Use.READ if is_read else found
            case Candidates(alternatives):
                return _one_of(map(self.at, alternatives))
            case Choose(_, cases):
                return _one_of(self.at(case.actions) for case in cases)
            case CopyBuffer(target, source):
                if buffer == source:
                    return _Use.READ
                return _Use.WRITTEN if buffer == target else _Use.NONE
            case ZeroBuffer(name):
                return _Use.WRITTEN if buffer == name else _Use.NONE
            case Gemm() | Conv2d():
                return self._use_of_operation(action)
        return self._use_of_launch(action)

    def _use_of_operation(self, action: Gemm | Conv2d) -> _Use:
        used = [name for name, operand in operands(action) if operand.buffer == self._buffer]
        if not used:
            return _Use.NONE
        return _Use.WRITTEN if used == ["out"] and self._is_filled(action) else _Use.READ

    def _is_filled(self, action: Gemm | Conv2d) -> bool:
        """Tell whether the result is known to fill the buffer, else a part stays as it was."""
        if self._size_bytes is None:
            return False

        def evaluate(field: str, size: Size, smallest: int, largest: int) -> int:
            value = constant(size)
            if value is None:
                raise Impossible(field, "it is not constant")
            return value

        try:
            return covers(evaluated(action, evaluate), self._size_bytes)
        except Impossible:
            return False

    def _use_of_launch(self, action: ExecKernel) -> _Use:
        ways = self._access[action.kernel]
        found = [
            index < len(ways) and ways[index] is Access.WRITE and argument == Ptr(self._buffer)
            for index, argument in enumerate(action.args)
            if isinstance(argument, Ptr) and argument.buffer == self._buffer
        ]
        if not found:
            return _Use.NONE
        return _Use.WRITTEN if all(found) else _Use.READ


def _one_of(uses: Iterable[_Use]) -> _Use:
    """Say how it is used if one of several lists of actions runs."""
    found = set(uses)
    if _Use.READ in found:
        return _Use.READ
    return found.pop() if len(found) == 1 else _Use.PARTLY
