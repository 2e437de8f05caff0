"""Logs why records of asynchronous invocations cannot be stored.

While a disk is full, the records of all invocations are tried again several times a second. So each
kind of failure is logged when it begins, and then once a minute with the number of the others. The
log may be on the same disk.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass

QUIET_S = 60.0

log = logging.getLogger("dandelion.node")


@dataclass(slots=True)
class _Line:
    """The last line about one kind of failure.

    Attributes:
        written_s: when it was written.
        left_out: failures since.
    """

    written_s: float
    left_out: int = 0


class StoreProblems:
    """Logs failures to store, of each kind at most one in a minute. For the loop's thread.

    Args:
        clock: in seconds, monotonic.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lines: dict[type[Exception], _Line] = {}

    def add(self, id_: str, error: Exception) -> None:
        """Log why the record of an invocation was not stored, or count it."""
        now_s = self._clock()
        line = self._lines.get(type(error))
        if line is not None and now_s - line.written_s < QUIET_S:
            line.left_out += 1
            return
        self._lines[type(error)] = _Line(now_s)
        text = "invocation %s cannot be stored: %s"
        if line is not None and line.left_out:
            log.error(f"{text} (%d more failures since the last line)", id_, error, line.left_out)
        else:
            log.error(text, id_, error)
