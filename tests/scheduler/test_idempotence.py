"""Which calls are run again after their engine died: pure ones, and idempotent I/O."""

import pytest

from dandelion.dataflow.sharding import Partitioning
from dandelion.dispatcher import Run, Walk
from dandelion.dispatcher.plan import direct_plan
from dandelion.errors import EngineDied, RequestInterrupted
from dandelion.function import FunctionSpec
from dandelion.scheduler import CallState, EngineState, InvocationState, Tenant
from dandelion.scheduler.records import Flow
from dandelion.scheduler.retries import may_run_again

DIED = EngineDied("e", "killed")
ENGINE = EngineState(0, frozenset({"cpu"}), ("cpu", "0"))


def call_of(spec: FunctionSpec) -> CallState:
    """Return the first call of a function."""
    plan = direct_plan(spec)
    tenant = Tenant("t")
    invocation = InvocationState("i", tenant, Walk(plan, Partitioning(1)), (), 1, 1.0)
    return CallState(1, invocation, Run(0, spec, (), plan.applications[0], 0), Flow(tenant, spec))


@pytest.mark.parametrize(
    ("kind", "idempotent", "again"),
    [("compute", False, True), ("io", False, False), ("io", True, True)],
)
def test_after_an_engine_died(kind: str, idempotent: bool, again: bool) -> None:
    spec = FunctionSpec("f", kind=kind, idempotent=idempotent)
    call = call_of(spec)
    assert may_run_again(call, ENGINE, DIED, begun=True) is again
    assert may_run_again(call, ENGINE, DIED, begun=False) is again
    call.attempt = 2
    assert not may_run_again(call, ENGINE, DIED, begun=True)


def test_a_failed_request_is_left_to_its_caller() -> None:
    spec = FunctionSpec("f", kind="io", idempotent=True)
    call = call_of(spec)
    error = RequestInterrupted("f", "item", "busy")
    assert not may_run_again(call, ENGINE, error, begun=True)
