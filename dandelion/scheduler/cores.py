"""Cores that compute engines and I/O engines divide.

Compute engines run functions in sandboxes, a call at a time; I/O engines wait for other machines,
`IO_CALLS` calls for each core that they have. With a `CoreDivision` each backend takes at most as
many calls as the cores of its side allow: so many of its compute engines are active, and an I/O
engine has so many places. GPU engines and functions that run in the node are not divided. What runs
when cores are moved runs to its end. `CoreController` looks every `LOOK_NS` while calls wait.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable

from dandelion.controllers.cores import LOOKS, CoreController, CoreDivision, SideLoad
from dandelion.scheduler.engine import EnginePhase, EngineState
from dandelion.scheduler.placement import Engines

LOOK_NS = 30_000_000
IO_CALLS = 15
"""Calls of an I/O engine at once for each core; the original's number of permits."""


class CoreSide(enum.Enum):
    """What an engine uses cores for."""

    COMPUTE = "compute"
    IO = "io"


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
