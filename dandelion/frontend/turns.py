"""How many requests begin while the event loop still reads its sockets.

libuv (used by uvloop) takes up to 1024 ready sockets at a time and goes on until fewer are ready,
48 times at most. If each request were answered as it is read, more than 1024 busy clients would
always be ready again: timers, new connections and everything else that waits for the next iteration
would wait for 49,000 requests. So only some begin at once, and the others in the next iteration.
Requests that one client sends together count one by one.
"""

from __future__ import annotations

import asyncio

AT_ONCE = 256
"""Requests that begin as they are read, in one iteration of the loop."""


class Turns:
    """Counts the requests that begin at once. Use it only on the event loop."""

    def __init__(self) -> None:
        self._left = AT_ONCE

    def begins_at_once(self, loop: asyncio.AbstractEventLoop) -> bool:
        """Count a request; return whether it begins at once.

        The count starts again in the iteration after the first that does not, so a loop with few
        clients needs no extra iterations.
        """
        self._left -= 1
        if not self._left:
            loop.call_soon(self._start_again)
        return self._left > 0

    def _start_again(self) -> None:
        self._left = AT_ONCE
