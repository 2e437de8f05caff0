"""Which calls are run again after their engine died: pure ones, and idempotent I/O."""

from types import SimpleNamespace

import pytest

from dandelion.errors import EngineDied, RequestInterrupted
from dandelion.function import FunctionSpec
from dandelion.scheduler.retries import may_run_again

DIED = EngineDied("e", "killed")


@pytest.mark.parametrize(
    ("kind", "idempotent", "again"),
    [("compute", False, True), ("io", False, False), ("io", True, True)],
)
def test_after_an_engine_died(kind: str, idempotent: bool, again: bool) -> None:
    spec = FunctionSpec("f", kind=kind, idempotent=idempotent)
    run = SimpleNamespace(function=spec, application=SimpleNamespace(parts=None))
    call, engine = SimpleNamespace(run=run, attempt=1), SimpleNamespace(shared_fault_domain=False)
    assert may_run_again(call, engine, DIED, begun=True) is again  # type: ignore[arg-type]
    assert may_run_again(call, engine, DIED, begun=False) is again  # type: ignore[arg-type]
    call.attempt = 2
    assert not may_run_again(call, engine, DIED, begun=True)  # type: ignore[arg-type]


def test_a_failed_request_is_left_to_its_caller() -> None:
    spec = FunctionSpec("f", kind="io", idempotent=True)
    run = SimpleNamespace(function=spec, application=SimpleNamespace(parts=None))
    call, engine = SimpleNamespace(run=run, attempt=1), SimpleNamespace(shared_fault_domain=False)
    error = RequestInterrupted("f", "item", "busy")
    assert not may_run_again(call, engine, error, begun=True)  # type: ignore[arg-type]
