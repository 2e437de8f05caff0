"""Which failed calls are run again, and which run as their parts."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dandelion.data import Item, ItemSet, SetSpec
from dandelion.dataflow.sharding import Partitioning
from dandelion.dispatcher import CompositionPlan, Walk
from dandelion.dispatcher.plan import direct_plan
from dandelion.driver import Capacity
from dandelion.errors import (
    BackendUnavailable,
    ContextFull,
    DandelionError,
    EngineDied,
    Faulted,
    Raised,
)
from dandelion.function import CodeObject, FunctionSpec
from dandelion.policies import policy_of
from dandelion.scheduler import EngineState, InvocationState, Scheduler, Tenant
from dandelion.scheduler.actions import End, Send, Start
from dandelion.scheduler.engine import EnginePhase
from dandelion.scheduler.retries import RESTART_S, UNAVAILABLE_RESTART_S

INPUTS = (ItemSet("x", (Item("a", 0, b"data"),)),)
DIED = EngineDied("0", "it died")
FULL = ContextFull("arena", 2, 1)
FAULT = Faulted("f", "a wild pointer")
RAISED = Raised("f", "no")


def plan_of(name: str, kind: str = "compute") -> CompositionPlan:
    sets = (SetSpec("x"),), (SetSpec("y"),)
    return direct_plan(FunctionSpec(name, *sets, code=(CodeObject("cpu"),), kind=kind))


def with_parts(plan: CompositionPlan) -> CompositionPlan:
    """Say that a call of the plan may also run as a call of ``part``."""
    (application,) = plan.applications
    divided = replace(application, parts=plan_of("part"), part_inputs=(0,))
    return replace(plan, applications=(divided,))


def run(plan: CompositionPlan, error: DandelionError, begun: bool, shared: bool = False) -> str:
    """Fail each call of an invocation, at most ten times; name the functions that were sent."""
    scheduler = Scheduler(policy_of("fair"), 1 << 30, lambda flow: (0, 0))
    engine = EngineState(0, frozenset({"cpu"}), places=1, shared_fault_domain=shared)
    scheduler.fleet.added(engine)
    scheduler.fleet.up(engine, "0", Capacity(), 0)
    walk = Walk(plan, Partitioning("auto", 1, 1))
    state = InvocationState("i", Tenant("t"), walk, INPUTS, 1 << 62, 1.0, 4)
    scheduler.submitted(state, 0)
    sent = []
    for now_ns in range(1, 11):
        for action in scheduler.take():
            if isinstance(action, End):
                return " ".join(sent)
            if isinstance(action, Send):
                sent.append(action.call.run.function.name)
        for call in list(engine.sent.values()):
            scheduler.calls.failed(call, replace(error), now_ns, begun)
    return " ".join([*sent, "..."])


@pytest.mark.parametrize(
    ("error", "begun", "sent"),
    [
        (RAISED, True, "f"),
        (FULL, False, "f"),
        (FULL, True, "f"),
        (FAULT, True, "f"),
        (DIED, True, "f f"),
    ],
)
def test_a_call_is_run_again_if_its_engine_may_be_the_cause(
    error: DandelionError, begun: bool, sent: str
) -> None:
    assert run(plan_of("f"), error, begun) == sent


@pytest.mark.parametrize("error", [RAISED, FULL, FAULT, DIED])
def test_io_is_never_run_again(error: DandelionError) -> None:
    assert run(plan_of("f", "io"), error, True, shared=True) == "f"


@pytest.mark.parametrize(
    ("error", "begun", "sent"),
    [
        (RAISED, True, "f part"),
        (FULL, False, "f part"),
        (FULL, True, "f part"),
        (DIED, True, "f part part"),
    ],
)
def test_a_call_with_parts_runs_as_these_after_its_first_failure(
    error: DandelionError, begun: bool, sent: str
) -> None:
    assert run(with_parts(plan_of("f")), error, begun) == sent


@pytest.mark.parametrize("plan", [plan_of("f"), with_parts(plan_of("f"))])
def test_a_call_that_had_not_begun_is_sent_again(plan: CompositionPlan) -> None:
    assert run(plan, DIED, begun=False) == " ".join(["f"] * 10 + ["..."])


def never_up() -> tuple[Scheduler, EngineState]:
    scheduler = Scheduler(policy_of("fair"), 1 << 30, lambda flow: (0, 0))
    engine = EngineState(0, frozenset({"cpu"}), places=1)
    scheduler.fleet.added(engine)
    assert [action for action in scheduler.take() if isinstance(action, Start)]
    return scheduler, engine


def test_an_engine_whose_process_ended_before_it_was_ever_up_is_started_again() -> None:
    scheduler, engine = never_up()
    now_ns = 0
    for number, pause_s in enumerate((*RESTART_S, UNAVAILABLE_RESTART_S, UNAVAILABLE_RESTART_S)):
        scheduler.fleet.failed(engine, DIED, now_ns)
        waits = EnginePhase.UNAVAILABLE if number else EnginePhase.STARTING
        assert engine.phase is waits, "calls wait for the first retry only"
        now_ns += int(pause_s * 1e9)
        assert scheduler.fleet.restarts.next_due_ns == now_ns
        scheduler.tick(now_ns)
        assert [action for action in scheduler.take() if isinstance(action, Start)]
    scheduler.fleet.up(engine, "0", Capacity(), now_ns)
    assert engine.phase is EnginePhase.READY
    assert not engine.failed_starts


@pytest.mark.parametrize("error", [BackendUnavailable("cpu", "no device"), FULL])
def test_an_engine_that_refused_to_start_is_not_started_again(error: DandelionError) -> None:
    scheduler, engine = never_up()
    scheduler.fleet.failed(engine, error, 0)
    assert engine.phase is EnginePhase.UNAVAILABLE
    assert scheduler.fleet.restarts.next_due_ns is None
