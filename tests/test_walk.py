"""The dispatcher's state machine, driven by hand."""

import random
from collections.abc import Callable

import pytest

from dandelion.data import Item, ItemSet, SetSpec, item_set
from dandelion.dataflow.graph import Application, Binding, Composition, Return, Sharding
from dandelion.dataflow.sharding import Partitioning
from dandelion.dispatcher import (
    Cancel,
    Complete,
    CompositionPlan,
    Fail,
    Instruction,
    Run,
    Walk,
    compile_composition,
)
from dandelion.errors import ApplicationFailed, Cancelled, InternalError, Raised
from dandelion.function import FunctionSpec

POLICY = Partitioning("auto", 1, 2)
Outputs = tuple[ItemSet | None, ...]


def spec(name: str, inputs: str, outputs: str) -> FunctionSpec:
    return FunctionSpec(
        name,
        tuple(SetSpec(s) for s in inputs.split()),
        tuple(SetSpec(s) for s in outputs.split()),
    )


F = spec("F", "a", "b")
PAIR = spec("Pair", "x y", "z")


def apply(
    function: str, returns: str, optional: tuple[str, ...] = (), **bindings: tuple[Sharding, str]
) -> Application:
    output, target = returns.split("=")
    return Application(
        function,
        tuple(Binding(p, s, how, p in optional) for p, (how, s) in bindings.items()),
        (Return(target, output),),
    )


def plan(composition: Composition, *targets: FunctionSpec | CompositionPlan) -> CompositionPlan:
    named = {t.name: t for t in targets}
    return compile_composition(composition, named.__getitem__)


def drive(
    walk: Walk,
    inputs: list[ItemSet | None],
    answer: Callable[[Run], Outputs],
    pick: Callable[[int], int] = lambda n: 0,
) -> Outputs:
    """Carry out instructions in an order that `pick` chooses; give the result."""
    out = list(walk.start(inputs))
    while True:
        instruction = out.pop(pick(len(out)))
        if isinstance(instruction, Complete):
            assert not out
            assert walk.out == 0
            return instruction.outputs
        assert isinstance(instruction, Run)
        out += walk.finished(instruction.instance, answer(instruction))


def passed_on(run: Run) -> Outputs:
    first = run.inputs[0]
    return tuple(
        None if first is None else ItemSet(o.name, first.items) for o in run.function.outputs
    )


def chain(length: int) -> Composition:
    return Composition(
        "Chain",
        ("s0",),
        (f"s{length}",),
        tuple(apply("F", f"b=s{i + 1}", a=(Sharding.ALL, f"s{i}")) for i in range(length)),
    )


def test_a_long_chain_neither_recurses_nor_loses() -> None:
    walk = Walk(plan(chain(3000), F), POLICY)
    (result,) = drive(walk, [item_set("s0", b"data")], passed_on)
    assert result is not None
    assert result.name == "s3000"
    assert result.bytes() == b"data"
    assert walk.done


@pytest.mark.parametrize("seed", range(20))
def test_the_result_does_not_depend_on_the_order_of_finishing(seed: int) -> None:
    diamond = Composition(
        "Diamond",
        ("s",),
        ("t",),
        (
            apply("Pair", "z=t", x=(Sharding.EACH, "l"), y=(Sharding.ALL, "r")),
            apply("F", "b=l", a=(Sharding.EACH, "s")),
            apply("F", "b=r", a=(Sharding.EACH, "s")),
        ),
    )
    walk = Walk(plan(diamond, F, PAIR), POLICY, window=3)
    source = random.Random(seed)
    given = item_set("s", [Item(str(i), i % 4, b"%d" % i) for i in range(10)])
    (result,) = drive(walk, [given], passed_on, lambda n: source.randrange(n))
    assert result is not None
    assert [i.name for i in result] == ["0", "4", "8", "1", "5", "9", "2", "6", "3", "7"]


def test_the_window_bounds_what_is_out() -> None:
    fan = Composition("C", ("s",), ("t",), (apply("F", "b=t", a=(Sharding.EACH, "s")),))
    walk = Walk(plan(fan, F), POLICY, window=4)
    out = walk.start([item_set("s", [b"x"] * 100)])
    assert len(out) == walk.out == 4
    run = out[0]
    assert isinstance(run, Run)
    assert len(walk.finished(run.instance, passed_on(run))) == 1
    assert walk.out == 4


def test_an_absent_required_set_skips_and_propagates() -> None:
    composition = Composition(
        "C",
        ("s", "t"),
        ("u", "v"),
        (
            apply("F", "b=m", a=(Sharding.EACH, "s")),
            apply("F", "b=u", a=(Sharding.ALL, "m")),
            apply("Pair", "z=v", ("x",), x=(Sharding.ALL, "m"), y=(Sharding.ALL, "t")),
        ),
    )
    runs: list[Run] = []

    def answer(run: Run) -> Outputs:
        runs.append(run)
        return (item_set("z", b"ran"),)

    u, v = drive(Walk(plan(composition, F, PAIR), POLICY), [None, item_set("t", b"t")], answer)
    assert u is None
    assert v is not None
    assert [r.function.name for r in runs] == ["Pair"]
    assert runs[0].inputs[0] is None


def test_an_application_without_inputs_runs_once() -> None:
    lone = spec("Lone", "", "o")
    composition = Composition("C", (), ("t",), (Application("Lone", (), (Return("t", "o"),)),))
    (result,) = drive(Walk(plan(composition, lone), POLICY), [], lambda _: (item_set("o", b"1"),))
    assert result is not None


def test_pass_through_and_an_empty_composition() -> None:
    given = item_set("s", b"x")
    (result,) = drive(Walk(plan(Composition("C", ("s",), ("s",))), POLICY), [given], passed_on)
    assert result == given


def test_nested_compositions_run_once_for_each_instance() -> None:
    inner = plan(chain(2), F)
    outer = Composition("O", ("s",), ("t",), (apply("Chain", "s2=t", s0=(Sharding.EACH, "s")),))
    (result,) = drive(
        Walk(plan(outer, inner), POLICY, window=2), [item_set("s", [b"a", b"b", b"c"])], passed_on
    )
    assert result is not None
    assert [i.data for i in result] == [b"a", b"b", b"c"]


def start(walk: Walk, *inputs: ItemSet | None) -> tuple[list[Instruction], Run]:
    out = walk.start(inputs)
    run = out[0]
    assert isinstance(run, Run)
    return out, run


def test_the_first_failure_cancels_the_rest_and_names_the_application() -> None:
    inner = plan(Composition("I", ("s",), ("t",), (apply("F", "b=t", a=(Sharding.KEYED, "s")),)), F)
    outer = Composition("O", ("s",), ("t",), (apply("I", "t=t", s=(Sharding.ALL, "s")),))
    walk = Walk(plan(outer, inner), POLICY)
    out, run = start(walk, item_set("s", [Item("x", 7), Item("y", 9)]))
    assert len(out) == 2
    *cancels, fail = walk.failed(run.instance, Raised("F", "ValueError: no"))
    assert cancels == [Cancel(out[1].instance)]  # type: ignore[union-attr]  # a Run, as out[0]
    assert isinstance(fail, Fail)
    error = fail.error
    assert isinstance(error, ApplicationFailed)
    assert (error.composition, error.application) == ("O", "I")
    inside = error.__cause__
    assert isinstance(inside, ApplicationFailed)
    assert (inside.application, inside.instance, inside.key) == ("F", 0, 7)
    assert isinstance(error.root, Raised)
    assert error.status == 422


def test_events_after_the_end_are_ignored() -> None:
    walk = Walk(plan(chain(1), F), POLICY)
    _, run = start(walk, item_set("s0", b"x"))
    assert isinstance(walk.cancel(Cancelled("gone"))[-1], Fail)
    assert walk.finished(run.instance, passed_on(run)) == []
    assert walk.failed(run.instance, InternalError("late")) == []
    assert walk.cancel(Cancelled("again")) == []


def test_sets_are_dropped_when_their_last_consumer_has_merged() -> None:
    walk = Walk(plan(chain(3), F), POLICY)
    given = item_set("s0", b"big")
    _, run = start(walk, given)
    frame = walk._out[run.instance].frame
    walk.finished(run.instance, (item_set("b", b"next"),))
    assert frame.sets[0] is None
