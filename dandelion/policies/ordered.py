"""Policies that order calls by one property of each: `fifo`, `lifo`, `deadline`, `balance`."""

from __future__ import annotations

from mypy_extensions import mypyc_attr

from dandelion.scheduler.engine import EngineState
from dandelion.scheduler.policy import Policy
from dandelion.scheduler.records import CallQueue, CallState, Flow, Lane

_CALL_NS = 1e18


@mypyc_attr(allow_interpreted_subclasses=True)
class Fifo(Policy):
    """First in, first out. A tenant gets engine time in proportion to its calls."""

    name = "fifo"

    def key(self, queue: CallQueue) -> float:
        return queue.slots[0]


@mypyc_attr(allow_interpreted_subclasses=True)
class Lifo(Fifo):
    """Last in, first out. An old call waits while newer ones arrive, or until its deadline."""

    name = "lifo"

    def place(self, call: CallState) -> float:
        return -call.id


@mypyc_attr(allow_interpreted_subclasses=True)
class Deadline(Fifo):
    """The call whose invocation has to end first is next."""

    name = "deadline"

    def place(self, call: CallState) -> float:
        return call.invocation.deadline_ns


@mypyc_attr(allow_interpreted_subclasses=True)
class Balance(Fifo):
    """First in, first out, on the engine with the fewest calls, then the least busy one so far.

    Source: the policy `balance` of KaaS, whose workers are equal and have no locality.
    """

    name = "balance"
    by_engine = True

    def cost(self, engine: EngineState, flow: Flow, lane: Lane) -> float:
        return len(engine.sent) + engine.busy_ns / _CALL_NS
