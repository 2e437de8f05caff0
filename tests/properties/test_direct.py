"""One function that is applied once: `DirectWalk` and `Walk` do the same, step by step.

A seed names a composition, so a failure can be repeated.
"""

import random
from collections.abc import Sequence

import pytest

from dandelion.data import ItemSet
from dandelion.dataflow.graph import Application, Binding, Composition, Return, Sharding
from dandelion.dataflow.sharding import Partitioning
from dandelion.dispatcher import (
    Cancel,
    Complete,
    CompositionPlan,
    DirectWalk,
    Fail,
    Instruction,
    Run,
    Walk,
    compile_composition,
)
from dandelion.errors import ApplicationFailed, Cancelled, Faulted, InternalError
from tests.properties.test_against_reference import (
    FUNCTIONS,
    SPECS,
    composition,
    compute,
    item_set,
    items,
    triples,
)

EXAMPLES = 400
POLICY = Partitioning("auto", 1, 2)


def single(source: random.Random) -> Composition:
    """Apply one function once, most often to whole sets, and return some of what it gives."""
    name = source.choice(sorted(FUNCTIONS))
    parameters, outputs = FUNCTIONS[name]
    inputs = tuple(f"i{n}" for n in range(source.randint(1, 3)))
    whole = source.random() < 0.8
    bindings = tuple(
        Binding(
            parameter,
            source.choice(inputs),
            Sharding.ALL if whole else source.choice(list(Sharding)),
            source.random() < 0.5,
        )
        for parameter in parameters
        if source.random() < 0.9
    )
    returned = source.sample(outputs, source.randint(1, len(outputs)))
    returns = tuple(Return(f"m_{output}", output) for output in returned)
    targets = [f"m_{output}" for output in source.sample(returned, len(returned))]
    if source.random() < 0.1:
        targets.append(inputs[0])
    return Composition("C", inputs, tuple(targets), (Application(name, bindings, returns),))


def plans() -> list[tuple[int, CompositionPlan]]:
    """Give plans that both can walk, with their seeds."""
    found = []
    for seed in range(EXAMPLES):
        source = random.Random(seed)
        one = single(source) if seed % 4 else composition(source, "C", FUNCTIONS)
        plan = compile_composition(one, SPECS.__getitem__)
        if plan.taken is not None:
            found.append((seed, plan))
    return found


PLANS = plans()


def seen(instructions: Sequence[Instruction]) -> list[object]:
    """Say what instructions ask for, so that it can be compared."""
    said: list[object] = []
    for one in instructions:
        if isinstance(one, Run):
            sets = [(None if s is None else s.name, triples(s)) for s in one.inputs]
            said.append(("run", one.instance, one.function, sets, one.application, one.number))
        elif isinstance(one, Complete):
            said.append(
                ("complete", [(None if s is None else (s.name, triples(s))) for s in one.outputs])
            )
        elif isinstance(one, Fail):
            said.append(("fail", type(one.error), str(one.error), repr(one.error.__cause__)))
        else:
            assert isinstance(one, Cancel)
            said.append(("cancel", one.instance))
    return said


def both(
    plan: CompositionPlan, inputs: list[ItemSet | None]
) -> tuple[Walk, DirectWalk, list[Instruction]]:
    """Begin both; they must ask for the same."""
    walk, direct = Walk(plan, POLICY), DirectWalk(plan)
    begun = walk.start(inputs)
    assert seen(direct.start(inputs)) == seen(begun)
    assert direct.done == walk.done
    return walk, direct, begun


def inputs_of(seed: int, plan: CompositionPlan) -> list[ItemSet | None]:
    source = random.Random(-seed)
    return [item_set(s.name, items(source)) for s in plan.inputs]


def test_there_are_plans_of_all_kinds() -> None:
    assert len(PLANS) > EXAMPLES / 3
    assert any(len(plan.outputs) > 1 for _, plan in PLANS)
    assert any(plan.taken != (0,) for _, plan in PLANS)
    ended = [both(plan, inputs_of(seed, plan))[1].done for seed, plan in PLANS]
    assert 0 < sum(ended) < len(ended), "some are skipped for a set that is absent, some are not"


@pytest.mark.parametrize("part", range(4))
def test_results_are_the_same(part: int) -> None:
    for seed, plan in PLANS[part::4]:
        walk, direct, begun = both(plan, inputs_of(seed, plan))
        for run in begun:
            if not isinstance(run, Run):
                continue
            results = compute(run.function.name, [triples(s) for s in run.inputs])
            names = run.function.output_names
            sets = tuple(item_set(f"own_{n}", r) for n, r in zip(names, results, strict=True))
            assert seen(direct.finished(run.instance, sets)) == seen(
                walk.finished(run.instance, sets)
            ), seed
            assert direct.done, seed
            assert direct.finished(run.instance, sets) == walk.finished(run.instance, sets) == []


def test_failures_are_the_same() -> None:
    for seed, plan in PLANS:
        walk, direct, begun = both(plan, inputs_of(seed, plan))
        error = Faulted("F", "it broke")
        found = direct.failed(0, error)
        assert seen(found) == seen(walk.failed(0, error)), seed
        if isinstance(begun[0], Run):
            (fail,) = found
            assert isinstance(fail, Fail)
            assert isinstance(fail.error, ApplicationFailed)
            assert fail.error.__cause__ is error
        assert direct.failed(0, error) == walk.failed(0, error) == []


def test_outputs_that_no_engine_may_give_end_it_all_the_same() -> None:
    for _, plan in PLANS:
        walk = DirectWalk(plan)
        (run,) = walk.start([item_set("s", [("i", 0, b"x")])] * len(plan.inputs))
        assert isinstance(run, Run)
        for wrong in ((), (None,) * (len(run.function.outputs) + 1)):
            with pytest.raises(InternalError):
                walk.finished(run.instance, wrong)
        assert isinstance(walk.cancel(Cancelled("a bug"))[-1], Fail)


def test_the_end_before_its_time_is_the_same() -> None:
    for seed, plan in PLANS:
        walk, direct, _ = both(plan, inputs_of(seed, plan))
        error = Cancelled("its caller left")
        assert seen(direct.cancel(error)) == seen(walk.cancel(error)), seed
        assert direct.finished(0, ()) == walk.finished(0, ()) == []
        assert direct.cancel(error) == walk.cancel(error) == []
