"""Cores that two sides divide, compute and I/O, and a controller that moves them by load.

`CoreController` is a controller with a proportional and an integral part (PI), like that of the
Dandelion paper. The error is the difference of the calls that wait, in rounds: waiting calls over
the calls that the side takes at once. The integral part is the sum of the last `LOOKS` errors. If
the signal is above 1, one core moves, and none does in the `PAUSE_LOOKS` after it. A side keeps one
core.

Two things differ from the paper's. There the error is the growth of the queues, so a queue that is
long and stays as it is moves nothing; callers that wait for results make such queues. And a core
moves only if its new side still has at least as much to do for each core as its old one. Otherwise
it would move back under the same load.

Source: PI controller of the Dandelion paper; its gains are for growth in calls, ours for rounds.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from dandelion.errors import InvalidInput

LOOKS = 10
PAUSE_LOOKS = 3
_PROPORTIONAL, _INTEGRAL = 0.5, 0.1
_MOST_CORES = 1024
_MOST_ROUNDS = 10.0  # a larger error counts as this, so that it is forgotten soon


@dataclass(frozen=True, slots=True)
class CoreDivision:
    """How cores are divided.

    Attributes:
        compute, io: cores of each side, at first; at least one.
        controlled: they are moved by load.
    """

    compute: int
    io: int
    controlled: bool = False

    @property
    def most_compute(self) -> int:
        """The largest number of cores that compute engines can have."""
        return self.compute + self.io - 1 if self.controlled else self.compute


@dataclass(frozen=True, slots=True)
class SideLoad:
    """The load of one side.

    Attributes:
        waiting: calls in queues.
        running: calls on engines.
        calls: how many it takes at once for each core.
    """

    waiting: int
    running: int
    calls: int


class CoreController:
    """Decides when a core moves. Has no clock: the times between looks are equal.

    Args:
        compute, io: cores of each side; at least one.

    Attributes:
        compute, io: the same, now.
        moves: how many cores were moved.
    """

    def __init__(self, compute: int, io: int) -> None:
        self.compute = compute
        self.io = io
        self.moves = 0
        self._errors: deque[float] = deque(maxlen=LOOKS)
        self._pause = 0

    def look(self, compute: SideLoad, io: SideLoad) -> bool:
        """Take the load of both sides; True if a core was moved."""
        rounds = _rounds(io, self.io) - _rounds(compute, self.compute)
        error = max(-_MOST_ROUNDS, min(_MOST_ROUNDS, rounds))
        self._errors.append(error)
        if self._pause:
            self._pause -= 1
            return False
        signal = _PROPORTIONAL * error + _INTEGRAL * sum(self._errors)
        if signal > 1 and self.compute > 1 and _gains(io, self.io, compute, self.compute):
            self._move(1)
            return True
        if signal < -1 and self.io > 1 and _gains(compute, self.compute, io, self.io):
            self._move(-1)
            return True
        return False

    def _move(self, to_io: int) -> None:
        self.io += to_io
        self.compute -= to_io
        self.moves += 1
        self._errors.clear()
        self._pause = PAUSE_LOOKS

    def forget(self) -> None:
        """Forget what was seen: nothing waited for a while."""
        self._errors.clear()
        self._pause = 0


def _rounds(load: SideLoad, cores: int) -> float:
    return load.waiting / (cores * load.calls)


def _gains(gaining: SideLoad, gains: int, losing: SideLoad, loses: int) -> bool:
    """Tell whether the gaining side has at least as much to do for each core, after the move."""
    if not gaining.waiting:
        return False
    more = (gaining.waiting + gaining.running) / ((gains + 1) * gaining.calls)
    less = (losing.waiting + losing.running) / ((loses - 1) * losing.calls)
    return more >= less


def core_division(text: str, cores: int) -> CoreDivision | None:
    """Read the setting ``cores``.

    Args:
        text: ``shared``, ``COMPUTE:IO``, ``controlled`` or ``controlled:NUMBER``.
        cores: of the machine.

    Returns:
        The division; None if cores are not divided.

    Raises:
        InvalidInput: it is none of these.
    """
    if text == "shared":
        return None
    first, separator, second = text.partition(":")
    if first == "controlled" and (not separator or _is_number(second)):
        total = max(2, int(second) if separator else cores)
        return CoreDivision(total - 1, 1, controlled=True)
    if _is_number(first) and _is_number(second):
        return CoreDivision(int(first), int(second))
    known = "use 'shared', COMPUTE:IO such as '3:1', 'controlled', or 'controlled:4'"
    raise InvalidInput("cores", f"'{text}' is not a division of cores", known)


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdecimal() and 1 <= int(text) <= _MOST_CORES
