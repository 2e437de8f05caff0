"""Calls as an engine process runs them. A record of msgspec, so it is interpreted in any case."""

from __future__ import annotations

from typing import Protocol

from dandelion.driver import Call, SharedConstants


class CallOwner(Protocol):
    """What a call asks of the process that serves it."""

    def begun(self, call: int) -> None:
        """Tell the node that the time of a call counts from now."""

    def is_stopped(self, call: int) -> bool:
        """Tell whether the node does not want the result of a call any more; never waits."""

    def share(self, call: int, constants: SharedConstants) -> None:
        """Send the node a descriptor of constants that a call has copied to the device."""


class ServedCall(Call, eq=False, gc=False):
    """A call that its node can stop; the node gets a message when its time starts."""

    owner: CallOwner | None = None

    def start_deadline(self, now_ns: int) -> None:
        Call.start_deadline(self, now_ns)
        if self.owner is not None:
            self.owner.begun(self.id)

    def is_stopped(self) -> bool:
        return self.owner is not None and self.owner.is_stopped(self.id)

    def share_constants(self, constants: SharedConstants) -> None:
        if self.owner is not None:
            self.owner.share(self.id, constants)
