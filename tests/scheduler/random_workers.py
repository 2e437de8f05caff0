"""Workers of a device whose number changes at random: more often than by measured throughput."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from dandelion.controllers.climbing import Climber, Limits
from dandelion.controllers.throughput import Window
from dandelion.scheduler import Flow
from dandelion.scheduler.concurrency import FIRST_WORKERS, WorkerPool


@dataclass(slots=True)
class RandomClimber(Climber):
    """Chooses counts at random, and sometimes wants workers that are not started."""

    source: random.Random = field(default_factory=random.Random)

    def look(self, window: Window, limits: Limits, now_ns: int) -> bool:
        self.wanted = limits.later if self.source.random() < 0.3 else 0
        self.trial = self.source.choice([0, 0, self.source.randint(1, max(1, limits.now))])
        if self.source.random() < 0.3:
            self.count = self.source.randint(1, max(1, limits.now))
        return True


class RandomPool(WorkerPool):
    """Half of the calls that wait may use the reserve, if the policy has one."""

    def __init__(self, device: tuple[str, str], reserves: bool, source: random.Random) -> None:
        super().__init__(device, reserves)
        self.source = source
        self.reserved = 0
        self.climber = RandomClimber(FIRST_WORKERS, source=source)

    def is_light(self, flow: Flow, now_ns: int) -> bool:
        is_light = self.reserves and self.source.random() < 0.5
        self.reserved += is_light and self.free_reserve() is not None
        return is_light
