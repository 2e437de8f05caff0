"""Fair queueing in which each flow has an engine of its own.

A flow's home is the engine of its lane with the fewest flows when it first waits there; it gets
another one if that is no longer active. Other engines take its calls as if it were `AWAY_CALLS` of
its calls ahead. So flows stay where their constants are while the load is even, and no engine is
idle while a call waits.

Source: the policy `affinity` of KaaS, which charges ten times the weight of a request for a device
without affinity. There run times and homes are declared; here they are measured and chosen.
"""

from __future__ import annotations

from mypy_extensions import mypyc_attr

from dandelion.policies.fair import FIRST_CALL_NS, Fair
from dandelion.scheduler.engine import EngineState
from dandelion.scheduler.records import Flow, Lane

AWAY_CALLS = 10


@mypyc_attr(allow_interpreted_subclasses=True)
class Affinity(Fair):
    """Engine time is shared by weight, and flows keep to their engines."""

    name = "affinity"
    by_engine = True

    def __init__(self) -> None:
        self._homes: dict[Flow, EngineState] = {}

    def lead(self, flow: Flow) -> float:
        return 0.0  # its costs keep flows at their engines

    def waits(self, flow: Flow, lane: Lane) -> None:
        super().waits(flow, lane)
        active = [engine for engine in lane.engines if engine.active]
        if active and self._homes.get(flow) not in active:
            taken = list(self._homes.values())
            self._homes[flow] = min(active, key=taken.count)

    def forgotten(self, flow: Flow) -> None:
        self._homes.pop(flow, None)

    def cost(self, engine: EngineState, flow: Flow, lane: Lane) -> float:
        if self._homes.get(flow) is engine:
            return 0.0
        return AWAY_CALLS * (flow.mean_ns or FIRST_CALL_NS) / flow.tenant.weight
