"""The order of waiting calls: policies, each a small pure class.

A policy orders **flows** (the calls of one function of one tenant). Within a flow, calls are sent
in order of arrival. A policy computes a key of a flow's queue; the smallest key is next. Third
parties add one by an entry point of the group ``dandelion.policies``.

``fifo``
    By arrival of the call at the head.
``fair``
    Start-time fair queueing over engine time: each flow has a virtual time, its tag, which grows by
    the engine time of its calls divided by its weight; the flow with the smallest tag is next. A
    flow that was idle starts at the virtual time of the scheduler, so idle time is not credited. An
    engine stays with the flow whose code and constants it used last while that flow is at most
    `STICKY_NS` of virtual time ahead of the others. So over any interval in which two flows of the
    same weight always wait, their shares differ by at most `STICKY_NS` and a call an engine.

Source: start-time fair queueing, Goyal, Vin, Cheng (1996); MQFQ-Sticky, arXiv 2507.08954.
"""

from __future__ import annotations

import abc
import importlib.metadata
from typing import ClassVar

from dandelion.errors import InvalidInput, nearest
from dandelion.scheduler.records import CallQueue, CallState, EngineState, Flow

STICKY_NS = 20_000_000.0
FIRST_CALL_NS = 1_000_000.0
"""Assumed duration of a call before one of its flow has been measured."""


class Policy(abc.ABC):
    """The order of flows. Its state is in `Flow.tag`; it has no state of calls."""

    name: ClassVar[str]

    @abc.abstractmethod
    def key(self, queue: CallQueue) -> float:
        """Return the key of a queue that has calls."""

    def waits(self, flow: Flow) -> None:
        """A flow that had no call waiting has one now."""

    def sent(self, call: CallState) -> None:
        """A call was given to its engine; `expected_ns` may be set."""

    def ended(self, call: CallState, duration_ns: int) -> None:
        """A call has ended after this time on its engine."""

    def stays(self, queue: CallQueue, best_key: float) -> bool:
        """Tell whether an engine takes from the queue of its last flow, not from the best."""
        return False


class Fifo(Policy):
    """First in, first out."""

    name = "fifo"

    def key(self, queue: CallQueue) -> float:
        return queue.calls[0].id


class Fair(Policy):
    """Start-time fair queueing; see the module's text."""

    name = "fair"

    def __init__(self) -> None:
        self._virtual_ns = 0.0

    def key(self, queue: CallQueue) -> float:
        return queue.flow.tag

    def waits(self, flow: Flow) -> None:
        flow.tag = max(flow.tag, self._virtual_ns)

    def sent(self, call: CallState) -> None:
        flow = call.flow
        self._virtual_ns = max(self._virtual_ns, flow.tag)
        call.expected_ns = (flow.mean_ns or FIRST_CALL_NS) / flow.tenant.weight
        flow.tag += call.expected_ns

    def ended(self, call: CallState, duration_ns: int) -> None:
        call.flow.tag += duration_ns / call.flow.tenant.weight - call.expected_ns

    def stays(self, queue: CallQueue, best_key: float) -> bool:
        return queue.flow.tag <= best_key + STICKY_NS


GROUP = "dandelion.policies"
POLICIES: dict[str, type[Policy]] = {policy.name: policy for policy in (Fifo, Fair)}


def policy_of(name: str) -> Policy:
    """Make the policy of a name: one of ours, or of an entry point that names a class.

    Raises:
        InvalidInput: there is none; the nearest name is in the hint.
    """
    found = POLICIES.get(name)
    if found is None:
        points = {point.name: point for point in importlib.metadata.entry_points(group=GROUP)}
        if name in points:
            found = points[name].load()
    if found is None:
        known = [*POLICIES, *points]
        close = nearest(name, known)
        hint = f"did you mean '{close}'?" if close else f"use one of {', '.join(known)}"
        raise InvalidInput("policy", f"unknown policy '{name}'", hint)
    return found()


def engine_stays(policy: Policy, engine: EngineState, best: CallQueue) -> CallQueue:
    """Choose between the best queue and the one of the flow that an engine ran last."""
    last = engine.last
    if last is None or last is best.flow:
        return best
    for lane in engine.lanes:
        queue = lane.queues.get(last)
        if queue is not None and queue.calls and not queue.parked:
            return queue if policy.stays(queue, policy.key(best)) else best
    return best
