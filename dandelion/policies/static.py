"""Each tenant has engines of its own, in proportion to its weight, also while they are idle.

The engines of a lane are divided among the tenants in the order of their names; the borders are
rounded to whole engines. A tenant whose part is rounded to none shares the engine in the middle of
its part. The tenants of one engine are served in turns, call by call.

Source: the policy `static` of KaaS, with a fixed number of workers for each client.
"""

from __future__ import annotations

from mypy_extensions import mypyc_attr

from dandelion.scheduler.engine import EngineState
from dandelion.scheduler.policy import NEVER, Policy
from dandelion.scheduler.records import CallQueue, CallState, Flow, Lane, Tenant


@mypyc_attr(allow_interpreted_subclasses=True)
class Static(Policy):
    """Tenants have fixed engines."""

    name = "static"
    by_engine = True
    elastic = False

    def __init__(self) -> None:
        self._tenants: dict[str, Tenant] = {}
        self._parts: dict[Tenant, tuple[float, float]] = {}
        self._turn = 0

    def tenant_changed(self, tenant: Tenant) -> None:
        self._tenants[tenant.name] = tenant
        tenants = [self._tenants[name] for name in sorted(self._tenants)]
        total = sum(one.weight for one in tenants)
        at = 0.0
        for one in tenants:
            self._parts[one] = (at / total, (at + one.weight) / total)
            at += one.weight

    def key(self, queue: CallQueue) -> float:
        return queue.lane.turns.get(queue.flow.tenant, 0)

    def cost(self, engine: EngineState, flow: Flow, lane: Lane) -> float:
        engines = lane.engines
        begin, end = (part * len(engines) for part in self._parts[flow.tenant])
        first, after = int(begin + 0.5), int(end + 0.5)
        if first >= after:
            first = min(int((begin + end) / 2), len(engines) - 1)
            after = first + 1
        return 0.0 if engine in engines[first:after] else NEVER

    def sent(self, call: CallState, engine: EngineState) -> None:
        self._turn += 1
        for lane in engine.lanes:
            lane.turns[call.flow.tenant] = self._turn
