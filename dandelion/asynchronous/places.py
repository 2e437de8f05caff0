"""Which kept invocations have a place, so that they run, and which wait for one.

What begins its last attempt and was interrupted before is a *suspect*; suspects wait in a line of
their own, and one of them at a time has a place.
"""

from __future__ import annotations

from dandelion.asynchronous.kept import Kept
from dandelion.asynchronous.waiting import WaitingLine

PAUSE_S = 0.25
"""After the store or the scheduler refused something, it is tried again after so long."""


class Places:
    """The places of a node. For one thread at a time.

    Args:
        limit: how many there are.

    Attributes:
        running: how many are taken.
        line, suspects: what waits.
        suspect: id of the suspect that has a place.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._paused_until_s = 0.0
        self.running = 0
        self.line = WaitingLine()
        self.suspects = WaitingLine()
        self.suspect: str | None = None

    def __len__(self) -> int:
        """How many wait."""
        return len(self.line) + len(self.suspects)

    def is_paused(self, now_s: float) -> bool:
        """Whether nothing is tried now."""
        return now_s < self._paused_until_s

    def pause(self, now_s: float) -> None:
        """Begin nothing for a while."""
        self._paused_until_s = now_s + PAUSE_S

    def may_begin(self, now_s: float) -> bool:
        """Whether there is a place."""
        return self.running < self._limit and not self.is_paused(now_s)

    def next(self, now_s: float) -> str | None:
        """Take the next id out of the lines; None if none waits, or there is no place."""
        if not self.may_begin(now_s):
            return None
        id_ = self.suspects.take() if self.suspect is None else None
        return self.line.take() if id_ is None else id_

    def wait(self, kept: Kept, *, first: bool = False) -> None:
        """Let an invocation wait; with `first`, before all others of its tenant and priority."""
        line = self.suspects if kept.is_suspect else self.line
        record = kept.record
        line.add(record.tenant, record.id, record.request.priority, first=first)

    def take(self, kept: Kept) -> None:
        """Give an invocation a place."""
        kept.has_place = True
        self.running += 1
        if kept.is_suspect:
            self.suspect = kept.record.id

    def leave(self, kept: Kept) -> None:
        """Let an invocation neither wait nor have a place."""
        self.line.remove(kept.record.id)
        self.suspects.remove(kept.record.id)
        if kept.has_place:
            kept.has_place = False
            self.running -= 1
            if self.suspect == kept.record.id:
                self.suspect = None
