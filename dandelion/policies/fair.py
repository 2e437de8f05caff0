"""Start-time fair queueing over engine time.

In each lane, a flow has a tag, its virtual time. It grows by the engine time of the flow's calls on
the engines of the lane, divided by the weight of the tenant; the mean of the flow is charged when a
call is sent, and corrected at its end. The flow with the smallest tag is next. The clock of a lane
is the largest tag with which a call was sent. Lanes have clocks of their own, since tags of lanes
with different engines grow at different rates.

An engine stays with the flow whose code and constants it used last while that flow is at most
`STICKY_NS` of engine time ahead of the others. If the next flow has large constants that its device
lacks, a flow whose constants it has goes first, if it is at most so much and the time of the copy
ahead. So flows keep to engines while many wait. A flow that comes back from idle starts `STICKY_NS`
behind the clock, so it is next. Further idle time is not credited.

In a cluster, what a tenant uses on other nodes is added to the tags of its flows that wait here, in
equal parts, up to `LEAD_NS` ahead of the clock. So its share counts over all nodes where it
competes with others, and a tenant that had other nodes for itself is not kept from this one for
long.

Source: start-time fair queueing, Goyal, Vin, Cheng (1996); MQFQ-Sticky, arXiv 2507.08954.
"""

from __future__ import annotations

import math

from mypy_extensions import mypyc_attr

from dandelion.scheduler.engine import EngineState
from dandelion.scheduler.policy import Policy
from dandelion.scheduler.records import CallQueue, CallState, Flow, Lane

STICKY_NS = 5_000_000.0
LEAD_NS = 10_000_000_000.0
"""A tenant waits at most so much engine time longer for what it has used on other nodes."""
COPIED_BYTES_PER_NS = 10.0
"""The rate at which constants are copied to a device, roughly."""
FIRST_CALL_NS = 1_000_000.0
"""Assumed duration of a call before one of its flow has been measured."""
_KNOWN_LANES = 8


@mypyc_attr(allow_interpreted_subclasses=True)
class Fair(Policy):
    """Engine time is shared by weight; see the module's text."""

    name = "fair"
    reserves = True

    def key(self, queue: CallQueue) -> float:
        return queue.flow.tags[queue.lane]

    def cost(self, engine: EngineState, flow: Flow, lane: Lane) -> float:
        return -STICKY_NS / max(1.0, flow.tenant.weight) if engine.last is flow else 0.0

    def lead(self, flow: Flow) -> float:
        copied_ns = flow.constants_bytes / COPIED_BYTES_PER_NS
        return (STICKY_NS + copied_ns) / max(1.0, flow.tenant.weight)

    def waits(self, flow: Flow, lane: Lane) -> None:
        start = lane.clock - STICKY_NS
        if flow.tags.get(lane, -math.inf) < start:
            if len(flow.tags) >= _KNOWN_LANES:
                flow.tags = {one: tag for one, tag in flow.tags.items() if one in flow.queues}
            flow.tags[lane] = start

    def sent(self, call: CallState, engine: EngineState) -> None:
        flow = call.turn or call.flow
        tags = flow.tags
        start = tags[call.lane]
        call.expected_ns = (call.flow.mean_ns or FIRST_CALL_NS) / flow.tenant.weight
        for lane in engine.lanes:
            if start > lane.clock:
                lane.clock = start
            if lane in tags:
                tags[lane] += call.expected_ns

    def used_elsewhere(self, flow: Flow, lane: Lane, used_ns: int) -> None:
        weight = flow.tenant.weight
        tag = flow.tags[lane]
        limit = lane.clock + LEAD_NS / max(1.0, weight)
        flow.tags[lane] = max(tag, min(tag + used_ns / weight, limit))

    def ended(self, call: CallState, engine: EngineState, duration_ns: int) -> None:
        flow = call.turn or call.flow
        correction = duration_ns / flow.tenant.weight - call.expected_ns
        for lane in engine.lanes:
            if lane in flow.tags:
                flow.tags[lane] += correction
