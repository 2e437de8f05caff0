"""A walk that remembers what it holds until it changes; invariants ask for it after every event."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from dandelion.data import ItemSet
from dandelion.dispatcher import Walk
from dandelion.dispatcher.instructions import Instruction
from dandelion.errors import DandelionError


class RememberingWalk(Walk):
    """The real walk; between two changes it looks only once for what it holds."""

    _known: tuple[int, int] | None = None

    def held(self) -> tuple[int, int]:
        if self._known is None:
            self._known = super().held()
        return self._known

    def start(self, inputs: Sequence[ItemSet | None]) -> list[Instruction]:
        return self._changed(super().start, inputs)

    def finished(self, instance: int, outputs: tuple[ItemSet | None, ...]) -> list[Instruction]:
        return self._changed(super().finished, instance, outputs)

    def failed(self, instance: int, error: DandelionError) -> list[Instruction]:
        return self._changed(super().failed, instance, error)

    def again(self, instance: int) -> list[Instruction]:
        return self._changed(super().again, instance)

    def give_up(self, instance: int, error: DandelionError) -> list[Instruction]:
        return self._changed(super().give_up, instance, error)

    def put_back(self, instructions: list[Instruction]) -> None:
        self._changed(super().put_back, instructions)

    def resume(self) -> list[Instruction]:
        return self._changed(super().resume)

    def cancel(self, error: DandelionError) -> list[Instruction]:
        return self._changed(super().cancel, error)

    def _changed(self, change: Callable[..., Any], *arguments: object) -> Any:
        try:
            return change(*arguments)
        finally:
            self._known = None
