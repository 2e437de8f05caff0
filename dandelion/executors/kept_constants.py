"""Which flows' constants an engine process keeps on its device, as the scheduler decided.

A process knows functions by their identity, and flows of several tenants may have the same one. So
it is told to drop the constants of a function when none of these flows keeps them any more.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from dandelion.engine_process.messages import Evict
from dandelion.function import Function
from dandelion.scheduler import Flow


@dataclass(slots=True, eq=False)
class KeptConstants:
    """The constants that one engine process keeps."""

    _holders: dict[str, set[Flow]] = field(default_factory=dict)

    def kept(self, flow: Flow, function: Function) -> None:
        """The process is told to keep the constants of a function, for a flow."""
        self._holders.setdefault(function.identity, set()).add(flow)

    def dropped(self, flow: Flow, function: Function) -> bool:
        """A flow keeps them no more. True if it was the last one of the function."""
        holders = self._holders.get(function.identity)
        if holders is None:
            return False
        holders.discard(flow)
        if not holders:
            del self._holders[function.identity]
        return not holders

    def evictions(self, flows: Iterable[Flow]) -> list[Evict]:
        """Return the orders to drop the constants of flows."""
        return [
            Evict(function.identity)
            for flow in flows
            for function in flow.functions.values()
            if self.dropped(flow, function)
        ]

    def clear(self) -> None:
        """The process is lost, with everything."""
        self._holders.clear()
