"""An engine process that is lost: which of its calls had begun, and what is told of each."""

from __future__ import annotations

from collections.abc import Sequence

from dandelion.errors import DandelionError, EngineDied
from dandelion.executors.contract import Executor
from dandelion.executors.processes import described_end
from dandelion.executors.sent_calls import SentCall
from dandelion.executors.staging import Order


class LostProcess:
    """What a process had when it was lost. How it ended is known later, see `report`.

    Args:
        name: of its engine.
        out: the calls that it had, in order.
        planning: the calls that it was to plan, in order.
        begun: errors of calls that have one already, by id.
    """

    def __init__(
        self,
        name: str,
        out: tuple[SentCall, ...],
        planning: list[Order],
        begun: dict[int, DandelionError],
    ) -> None:
        self._name = name
        self._planning = planning
        self._begun = begun
        first = planning[0] if planning else None
        self._planned = None if first is None or _comes_later(first, out) else first.call
        if self._planned is not None and self._planned.members:
            begun.setdefault(self._planned.id, EngineDied(name, ""))
        if out and self._planned is None:
            begun.setdefault(out[0].call.id, EngineDied(name, ""))

    def report(self, executor: Executor, code: int | None, waiting: Sequence[Order]) -> None:
        """Raise the events of the loss; on the loop.

        Args:
            executor: of the engine.
            code: the exit code, if the process ended by itself.
            waiting: calls that were to be sent to be planned.
        """
        events, death = executor.events, described_end(code)
        for number, own in self._begun.items():
            if isinstance(own, EngineDied) and not own.message:
                self._begun[number] = EngineDied(self._name, death)
        events.lost(executor.engine, EngineDied(self._name, death), self._begun)
        for order in (*self._planning, *waiting):
            if order.call.members:
                continue  # the scheduler sent it
            died = EngineDied(self._name, death)
            events.failed(order.call, died, begun=order.call is self._planned)


def _comes_later(order: Order, out: Sequence[SentCall]) -> bool:
    """Tell whether the process runs a call before it plans this one."""
    return any(sent.call.id == order.behind for sent in out)
