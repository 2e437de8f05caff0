"""Which kept invocations have a place, so that they run, and which wait for one.

What begins its last attempt and was interrupted before is a *suspect*; suspects wait in a line of
their own, and one of them at a time has a place.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from dandelion.asynchronous.kept import Kept
from dandelion.asynchronous.waiting import WaitingLine

PAUSE_S = 0.25
"""After the store or the scheduler refused something, it is tried again after so long."""


@dataclass(frozen=True, slots=True)
class _Hold:
    """A tenant that had no room for an invocation.

    Attributes:
        until_s: nothing of it begins before.
        tried: one was begun since.
    """

    until_s: float
    tried: bool = False


def _is_within(now_s: float, until_s: float) -> bool:
    """Tell whether a pause lasts; one that seems too long is over, since the clock was set back."""
    return 0.0 < until_s - now_s < 2 * PAUSE_S


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
        self._held: dict[str, _Hold] = {}
        self.running = 0
        self.line = WaitingLine()
        self.suspects = WaitingLine()
        self.suspect: str | None = None

    def __len__(self) -> int:
        """How many wait."""
        return len(self.line) + len(self.suspects)

    def is_paused(self, now_s: float) -> bool:
        """Whether nothing is tried now."""
        return _is_within(now_s, self._paused_until_s)

    def pause(self, now_s: float) -> None:
        """Begin nothing for a while."""
        self._paused_until_s = now_s + PAUSE_S

    def may_begin(self, now_s: float) -> bool:
        """Whether there is a place."""
        return self.running < self._limit and not self.is_paused(now_s)

    def pause_tenant(self, tenant: str, now_s: float) -> None:
        """Begin nothing of a tenant for a while, and then one at a time until that succeeds."""
        self._held[tenant] = _Hold(now_s + PAUSE_S)

    def resume(self, tenant: str) -> None:
        """Try one of a tenant at once: it has room for one more."""
        if tenant in self._held:
            self._held[tenant] = _Hold(0.0)

    def _may_try(self, tenant: str, now_s: float) -> bool:
        hold = self._held.get(tenant)
        if hold is None:
            return True
        if _is_within(now_s, hold.until_s):
            return False
        if hold.tried:  # and was not refused since
            del self._held[tenant]
        else:
            self._held[tenant] = _Hold(now_s + PAUSE_S, tried=True)
        return True

    def next(self, now_s: float) -> str | None:
        """Take the next id out of the lines; None if none waits, or there is no place."""
        if not self.may_begin(now_s):
            return None
        may_try = partial(self._may_try, now_s=now_s)
        id_ = self.suspects.take(may_try) if self.suspect is None else None
        return self.line.take(may_try) if id_ is None else id_

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
