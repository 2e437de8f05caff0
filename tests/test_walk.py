"""The dispatcher's state machine, driven by hand."""

import random

import pytest

from dandelion.data import Item
from dandelion.dataflow.graph import (
    Application,
    Composition,
    Return,
    Sharding,
)
from dandelion.dispatcher import (
    Cancel,
    CompositionPlan,
    Fail,
    Run,
    Walk,
)
from dandelion.errors import ApplicationFailed, Cancelled, InternalError, Raised
from dandelion.function import FunctionSpec
from dandelion.set_values import item_set
from tests.driven_walks import (
    PAIR,
    POLICY,
    F,
    Outputs,
    apply,
    chain,
    drive,
    passed_on,
    plan,
    spec,
    start,
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


def test_the_window_bounds_instances_in_flight() -> None:
    fan = Composition("C", ("s",), ("t",), (apply("F", "b=t", a=(Sharding.EACH, "s")),))
    walk = Walk(plan(fan, F), POLICY, window=4)
    out = walk.start([item_set("s", [b"x"] * 100)])
    assert len(out) == walk.in_flight == 4
    run = out[0]
    assert isinstance(run, Run)
    assert len(walk.finished(run.instance, passed_on(run))) == 1
    assert walk.in_flight == 4


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


def origins(composition: Composition, *targets: FunctionSpec | CompositionPlan) -> list[object]:
    """Return the origins of the instances over items a2, b1, c2 in the order of being made."""
    walk = Walk(plan(composition, *targets), POLICY)
    items = [Item("a", 2), Item("b", 1), Item("c", 2)]
    found = []
    out = list(walk.start([item_set(name, items) for name in composition.inputs]))
    while isinstance(run := out.pop(0), Run):
        found.append(run.origin and (run.origin.name, run.origin.key))
        out += walk.finished(run.instance, passed_on(run))
    return found


@pytest.mark.parametrize(
    ("how", "expected"),
    [
        (Sharding.ALL, [None]),
        (Sharding.EACH, [("a", 2), ("b", 1), ("c", 2)]),
        (Sharding.KEYED, [(None, 1), (None, 2)]),
        (Sharding.ANY_EACH, [None] * 3),
        (Sharding.ANY_KEYED, [None] * 2),
    ],
)
def test_instances_know_what_they_are_made_for(how: Sharding, expected: list[object]) -> None:
    assert (
        origins(Composition("C", ("s",), ("t",), (apply("F", "b=t", a=(how, "s")),)), F) == expected
    )


def test_an_item_goes_before_a_key_and_the_nearer_before_the_farther() -> None:
    pair = apply("Pair", "z=t", x=(Sharding.KEYED, "s"), y=(Sharding.EACH, "r"))
    found = origins(Composition("C", ("s", "r"), ("t",), (pair,)), PAIR)
    assert found == [("a", 2), ("b", 1), ("c", 2)] * 2
    twice = (apply("F", "b=m", a=(Sharding.ALL, "s")), apply("F", "b=t", a=(Sharding.KEYED, "m")))
    inner = plan(Composition("I", ("s",), ("t",), twice), F)
    outer = Composition("O", ("s",), ("t",), (apply("I", "t=t", s=(Sharding.EACH, "s")),))
    named = [("a", 2), ("b", 1), ("c", 2)]
    keyed = [(None, key) for _, key in named]
    assert sorted(map(repr, origins(outer, inner, F))) == sorted(map(repr, [*named, *keyed]))
    whole = Composition("W", ("s",), ("t",), (apply("I", "t=t", s=(Sharding.ALL, "s")),))
    assert origins(whole, inner, F) == [None, (None, 1), (None, 2)]


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
    frame = walk._in_flight[run.instance].frame
    walk.finished(run.instance, (item_set("b", b"next"),))
    assert frame.sets[0] is None
