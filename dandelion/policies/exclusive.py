"""An engine has calls of one tenant at a time.

A tenant owns an engine from its first call there. It keeps it while calls of it wait, for `TERM_NS`
of engine time; then the engine runs empty and goes to the waiting tenant that got an engine least
recently. All may take an idle engine. Engines for many calls at once (`null`, I/O) have no owners.

Source: the policy `exclusive` of KaaS, where a client owns a device. There a change of the owner is
a new process, and nothing limits how long a client waits.
"""

from __future__ import annotations

from mypy_extensions import mypyc_attr

from dandelion.scheduler.engine import EngineState
from dandelion.scheduler.policy import NEVER, Policy
from dandelion.scheduler.records import CallQueue, CallState, Flow, Lane

TERM_NS = 100_000_000
_LAST = 1e15  # more than any key


@mypyc_attr(allow_interpreted_subclasses=True)
class Exclusive(Policy):
    """Tenants own engines in turns."""

    name = "exclusive"
    by_engine = True

    def __init__(self) -> None:
        self._turn = 0

    def key(self, queue: CallQueue) -> float:
        return queue.lane.turns.get(queue.flow.tenant, 0)

    def cost(self, engine: EngineState, flow: Flow, lane: Lane) -> float:
        if engine.owner is None:
            return 0.0
        owns = engine.owner is flow.tenant
        over = engine.held_ns >= TERM_NS
        if engine.sent and (over or not owns):
            return NEVER
        return _LAST if over is owns else 0.0

    def sent(self, call: CallState, engine: EngineState) -> None:
        tenant = call.flow.tenant
        if engine.owner is tenant and engine.held_ns < TERM_NS:
            return
        if engine.places < 2:  # 0 is one or two
            engine.owner = tenant
            engine.held_ns = 0
        self._turn += 1
        for lane in engine.lanes:
            lane.turns[tenant] = self._turn

    def ended(self, call: CallState, engine: EngineState, duration_ns: int) -> None:
        engine.held_ns += duration_ns
