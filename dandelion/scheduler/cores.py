"""Cores that compute engines and I/O engines divide, and a controller that moves them by load.

Compute engines run functions in sandboxes, a call at a time; I/O engines wait for other machines,
`IO_CALLS` calls for each core that they have. With a `CoreDivision` each backend takes at most as
many calls as the cores of its side allow: so many of its compute engines are active, and an I/O
engine has so many places. GPU engines and functions that run in the node are not divided. What runs
when cores are moved runs to its end.

`CoreController` is a controller with a proportional and an integral part (PI), like that of the
Dandelion paper. The error is the difference of the calls that wait, in rounds: waiting calls over
the calls that the side takes at once. It looks every `LOOK_NS` while calls wait; the integral part
is the sum of the last `LOOKS` errors. If the signal is above 1, one core moves, and none does in
the `PAUSE_LOOKS` after it. A side keeps one core.

Two things differ from the paper's. There the error is the growth of the queues, so a queue that is
long and stays as it is moves nothing; callers that wait for results make such queues. And a core
moves only if its new side still has at least as much to do for each core as its old one. Otherwise
it would move back under the same load.

Source: PI controller of the Dandelion paper; its gains are for growth in calls, ours for rounds.
"""

from __future__ import annotations

import enum
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from dandelion.errors import InvalidInput
from dandelion.scheduler.engine import EnginePhase, EngineState
from dandelion.scheduler.placement import Engines

LOOK_NS = 30_000_000
LOOKS = 10
PAUSE_LOOKS = 3
IO_CALLS = 15
"""Calls of an I/O engine at once for each core; the original's number of permits."""
_PROPORTIONAL, _INTEGRAL = 0.5, 0.1
_MOST_CORES = 1024
_MOST_ROUNDS = 10.0  # a larger error counts as this, so that it is forgotten soon


class CoreSide(enum.Enum):
    """What an engine uses cores for."""

    COMPUTE = "compute"
    IO = "io"


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
    """Decides when a core moves. Has no clock: one look is `LOOK_NS` after the other.

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


class CoreShares:
    """Applies a division to the engines of a node.

    Args:
        division: at first.
        engines: of the node.
        feed: sends waiting calls to an engine.

    Attributes:
        controller: has the division of now.
    """

    def __init__(
        self,
        division: CoreDivision,
        engines: Engines,
        feed: Callable[[EngineState, int], None],
    ) -> None:
        self.controller = CoreController(division.compute, division.io)
        self._controlled = division.controlled
        self._engines = engines
        self._feed = feed
        self._looked_ns = -LOOK_NS

    def next_look_ns(self, waiting: int) -> int | None:
        """Tell when to call `tick` next; None if cores are not moved, or no call waits.

        Args:
            waiting: calls in queues.
        """
        if not self._controlled:
            return None
        if not waiting and not any(map(_ahead, self._divided())):
            return None
        return self._looked_ns + LOOK_NS

    def choose(self) -> None:
        """Choose the engines that take calls; those that are ready go first."""
        by_backend: dict[str, list[EngineState]] = {}
        for engine in self._divided():
            if engine.side is CoreSide.IO:
                engine.places = self.controller.io * IO_CALLS
            else:
                by_backend.setdefault(engine.device[0], []).append(engine)
        for engines in by_backend.values():
            engines.sort(key=_first_active)
            for number, engine in enumerate(engines):
                engine.active = number < self.controller.compute

    def tick(self, now_ns: int) -> None:
        """Look at the load, if it is time."""
        if not self._controlled or now_ns < self._looked_ns + LOOK_NS:
            return
        if now_ns - self._looked_ns > LOOKS * LOOK_NS:
            self.controller.forget()
        self._looked_ns = now_ns
        divided = list(self._divided())
        loads = (self._load(divided, side) for side in CoreSide)
        if not self.controller.look(*loads):
            return
        self.choose()
        for engine in divided:
            self._feed(engine, now_ns)

    def _divided(self) -> Iterable[EngineState]:
        return (engine for engine in self._engines.all.values() if engine.side is not None)

    def _load(self, engines: Iterable[EngineState], side: CoreSide) -> SideLoad:
        """Add up the calls of all backends of a side."""
        mine = [engine for engine in engines if engine.side is side]
        lanes = {lane: None for engine in mine for lane in engine.lanes}
        waiting = sum(
            len(queue.calls) for lane in lanes for queue in lane.queues.values() if not queue.parked
        )
        ahead = sum(map(_ahead, mine))
        running = sum(len(engine.sent) for engine in mine) - ahead
        return SideLoad(waiting + ahead, running, IO_CALLS if side is CoreSide.IO else 1)


def _first_active(engine: EngineState) -> tuple[bool, bool, int]:
    """Order engines: those that can take calls first, then those that are started already."""
    phase = engine.phase
    return phase is not EnginePhase.READY, phase is EnginePhase.DORMANT, engine.id


def _ahead(engine: EngineState) -> int:
    """Count the calls of a compute engine that wait behind the one that runs."""
    return max(0, len(engine.sent) - 1) if engine.side is CoreSide.COMPUTE else 0


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
