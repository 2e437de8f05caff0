"""Calls of a function without a node."""

from __future__ import annotations

from dandelion.dataflow.sharding import Partitioning
from dandelion.dispatcher import Run, Walk
from dandelion.dispatcher.plan import direct_plan
from dandelion.scheduler import CallState, InvocationState
from dandelion.scheduler.records import Flow


def call_of(flow: Flow) -> CallState:
    """Return the first call of an invocation of the flow's function."""
    plan = direct_plan(flow.spec)
    walk = Walk(plan, Partitioning("auto", 1, 1))
    invocation = InvocationState("i", flow.tenant, walk, (), 1 << 62, 1.0)
    return CallState(1, invocation, Run(0, flow.spec, (), plan.applications[0], 0), flow)
