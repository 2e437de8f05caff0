"""Which calls are run again after their engine died: pure ones, and idempotent I/O."""

import pytest

from dandelion.errors import EngineDied, RequestInterrupted
from dandelion.function import FunctionSpec
from dandelion.scheduler import EngineState, Tenant
from dandelion.scheduler.records import Flow
from dandelion.scheduler.retries import may_run_again
from tests.scheduler.made_calls import call_of

DIED = EngineDied("e", "killed")
ENGINE = EngineState(0, frozenset({"cpu"}), ("cpu", "0"))


@pytest.mark.parametrize(
    ("kind", "idempotent", "again"),
    [("compute", False, True), ("io", False, False), ("io", True, True)],
)
def test_after_an_engine_died(kind: str, idempotent: bool, again: bool) -> None:
    spec = FunctionSpec("f", kind=kind, idempotent=idempotent)
    call = call_of(Flow(Tenant("t"), spec))
    assert may_run_again(call, ENGINE, DIED, begun=True) is again
    assert may_run_again(call, ENGINE, DIED, begun=False) is again
    call.attempt = 2
    assert not may_run_again(call, ENGINE, DIED, begun=True)


def test_a_failed_request_is_left_to_its_caller() -> None:
    spec = FunctionSpec("f", kind="io", idempotent=True)
    call = call_of(Flow(Tenant("t"), spec))
    error = RequestInterrupted("f", "item", "busy")
    assert not may_run_again(call, ENGINE, error, begun=True)
