"""Calls that are stopped while they run."""

from __future__ import annotations

import time

from dandelion.driver import Call


class StoppedCall(Call, eq=False, gc=False):
    """A call whose result is not wanted any more after its engine has asked a number of times.

    Attributes:
        looks: how often the engine is still told that it is wanted.
        stopped_ns: when it was first told that it is not, on `time.monotonic_ns`.
    """

    looks: int = 0
    stopped_ns: int = 0

    def is_stopped(self) -> bool:
        self.looks -= 1
        if self.looks >= 0:
            return False
        self.stopped_ns = self.stopped_ns or time.monotonic_ns()
        return True

    @classmethod
    def like(cls, call: Call, looks: int) -> StoppedCall:
        """Make one of a call."""
        return cls(
            call.id,
            call.function,
            call.inputs,
            call.domain,
            call.deadline_ns,
            call.limit_s,
            keep_constants=call.keep_constants,
            looks=looks,
        )
