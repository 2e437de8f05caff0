"""The contract of policies: which waiting call is next, and which engine takes it.

A policy orders **flows** (the calls of one function of one tenant) by a key, the smallest first.
Calls of one flow are in the order of their places, by default of arrival. A policy may also say how
well an engine suits a flow (`cost`). Each policy is one small pure class in
`dandelion.policies`; third parties add one by an entry point of the group
``dandelion.policies``.

Priorities are the same under all policies. Among the waiting calls of one tenant, those of higher
priority are sent first. They use the turns of the calls that they overtake: each queue has a list
of **slots**, the places of its calls. A policy orders slots and sees no priorities, so a tenant has
its turns when it would have them without priorities.
"""

from __future__ import annotations

import abc
import math
from typing import ClassVar

from mypy_extensions import mypyc_attr

from dandelion.scheduler.engine import EngineState
from dandelion.scheduler.records import CallQueue, CallState, Flow, Lane, Tenant

NEVER = math.inf
"""The cost where an engine must not take a flow's calls."""


@mypyc_attr(allow_interpreted_subclasses=True)
class Policy(abc.ABC):
    """The order of flows, and the choice of engines.

    Attributes:
        name: in the settings.
        by_engine: `cost` counts for every flow, so all that wait are compared for each call that
            is sent. Otherwise it counts only for the flow that the engine ran last.
        elastic: the number of active workers may vary; otherwise all are always active.
        reserves: a light call may overtake others on a worker of the reserve; see `concurrency`.
    """

    name: ClassVar[str]
    by_engine: ClassVar[bool] = False
    elastic: ClassVar[bool] = True
    reserves: ClassVar[bool] = False

    @abc.abstractmethod
    def key(self, queue: CallQueue) -> float:
        """Return the key of a queue that has calls. The first slot decides between equal ones."""

    def place(self, call: CallState) -> float:
        """Return the place of a call among those of its flow; it does not change while it waits."""
        return call.id

    def cost(self, engine: EngineState, flow: Flow, lane: Lane) -> float:
        """Return what is added to a flow's key when this engine takes its next call.

        Of several free engines, a call gets the one of the least cost.
        """
        return 0.0

    def lead(self, flow: Flow) -> float:
        """Return by how much the key of a flow may be smaller than that of one that goes first.

        That one needs no copy of constants to the engine's device, and this one does. With 0 the
        order does not depend on constants.
        """
        return 0.0

    def waits(self, flow: Flow, lane: Lane) -> None:
        """A flow that had no call waiting in this lane has one now."""

    def sent(self, call: CallState, engine: EngineState) -> None:
        """A call was given to an engine; `expected_ns` may be set."""

    def ended(self, call: CallState, engine: EngineState, duration_ns: int) -> None:
        """A call has ended after this time on its engine."""

    def used_elsewhere(self, flow: Flow, lane: Lane, used_ns: int) -> None:
        """The tenant of a flow that waits has used engines like those of the lane on other nodes.

        The keys of its queues may become larger only.
        """

    def forgotten(self, flow: Flow) -> None:
        """A flow's function is gone; calls of it may still run, and seldom wait again."""

    def tenant_changed(self, tenant: Tenant) -> None:
        """A tenant is new, or its weight changed."""
