"""A call whose engine may have died of it goes behind all that waited then, under any policy."""

from __future__ import annotations

import pytest

from dandelion.data import Item, ItemSet, SetSpec
from dandelion.dataflow.sharding import Partitioning
from dandelion.dispatcher import Walk
from dandelion.dispatcher.plan import direct_plan
from dandelion.driver import Capacity
from dandelion.errors import EngineDied
from dandelion.function import CodeObject, FunctionSpec
from dandelion.policies import policy_of
from dandelion.scheduler import EngineState, InvocationState, Scheduler, Tenant
from dandelion.scheduler.actions import Send

INPUTS = (ItemSet("x", (Item("a", 0, b"data"),)),)


@pytest.mark.parametrize("policy", ["fair", "fifo", "balance", "affinity"])
def test_calls_that_did_no_harm_go_before_a_suspect(policy: str) -> None:
    scheduler = Scheduler(policy_of(policy), 1 << 30, lambda flow: (0, 0))
    engine = EngineState(0, frozenset({"cpu"}), places=1)
    tenant = Tenant("t")
    order: list[str] = []

    def submit(name: str) -> None:
        sets = (SetSpec("x"),), (SetSpec("y"),)
        plan = direct_plan(FunctionSpec(name, *sets, code=(CodeObject("cpu"),)))
        walk = Walk(plan, Partitioning("auto", 1, 1))
        number = f"{name}{len(scheduler.invocations)}"
        scheduler.submitted(InvocationState(number, tenant, walk, INPUTS, 1 << 62, 1.0, 4), 0)

    def take() -> None:
        order.extend(
            action.call.run.function.name for action in scheduler.take() if isinstance(action, Send)
        )

    scheduler.fleet.added(engine)
    scheduler.fleet.up(engine, "0", Capacity(), 0)
    submit("bad")
    for _ in range(3):
        submit("good")
    take()
    died = EngineDied("0", "it died")
    scheduler.fleet.lost(engine, died, dict.fromkeys(engine.sent, died), 1)
    submit("late")
    scheduler.fleet.up(engine, "0", Capacity(), 2)
    for now_ns in range(3, 8):
        take()
        for call in list(engine.sent.values()):
            scheduler.calls.done(call, INPUTS, now_ns)
    assert order[:4] == ["bad", "good", "good", "good"]
    assert sorted(order[4:]) == ["bad", "late"]
