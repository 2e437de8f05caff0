"""When sandboxes that were used are replaced: in a pause, as long as calls do not wait for it.

A birth and a death take each about a millisecond of a core, in which a call that has its sandbox
already may have to wait for that core. So both are put off until nobody has asked for anything for
a moment; a used sandbox waits for its end, instead of leaving by itself. When a call finds none
that waits, or as many were used as are kept ahead, that cannot be put off any more: then each is
replaced as soon as that is asked for, and sandboxes leave by themselves, until calls pause.
"""

from __future__ import annotations

from collections import deque

QUIET_MS = 1
"""For how long nobody must have asked for anything before a birth may take a core."""
PAUSE_MS = 4
"""After how long without a request the next ones are taken for a short burst again."""


class Turnover:
    """What is to be replaced, and when. Pure bookkeeping, no clock.

    Args:
        ahead: how many sandboxes wait where no call comes.

    Attributes:
        hurries: calls wait for sandboxes.
    """

    def __init__(self, ahead: int) -> None:
        self.hurries = False
        self._ahead = ahead
        self._used: deque[int] = deque()

    def ask(self, pid: int) -> None:
        """Have a sandbox replaced; 0 stands for one that is gone already."""
        self._used.append(pid)
        self.hurries = self.hurries or len(self._used) >= self._ahead

    def hurry(self) -> None:
        """A call waits for a sandbox."""
        self.hurries = True

    def wait_ms(self) -> int | None:
        """Tell how long to wait for further requests before `due`; None if nothing is to be done.

        In milliseconds.
        """
        if self.hurries:
            return 0 if self._used else PAUSE_MS
        return QUIET_MS if self._used else None

    def due(self) -> int | None:
        """Give what to replace now that no request came in the meantime, or None."""
        if self._used:
            return self._used.popleft()
        self.hurries = False
        return None
