"""The dispatcher's state machine, driven by hand."""

import random
import tracemalloc
import weakref
from collections.abc import Callable

import msgspec
import pytest

from dandelion.data import Item, ItemSet, SetSpec
from dandelion.dataflow.graph import (
    Application,
    Binding,
    Composition,
    Feed,
    RepeatClause,
    Return,
    Sharding,
)
from dandelion.dataflow.language import parse
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
from dandelion.set_values import item_set

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
    """Carry out instructions in an order that `pick` chooses; return the result."""
    out = list(walk.start(inputs))
    while True:
        instruction = out.pop(pick(len(out)))
        if isinstance(instruction, Complete):
            assert not out
            assert walk.in_flight == 0
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
    frame = walk._in_flight[run.instance].frame
    walk.finished(run.instance, (item_set("b", b"next"),))
    assert frame.sets[0] is None


# --- loops ------------------------------------------------------------------------------------

STEP = spec("Step", "x y", "out open")
WHOLE = Application("Step", (Binding("x", "a"), Binding("y", "b", optional=True)), (
    Return("out", "out"), Return("open", "open")))  # fmt: skip


def looped(times: int, until: str | None = None, **feed: str) -> Composition:
    """Step, repeated over inputs a and b; outputs out and open."""
    feeds = tuple(Feed(parameter, output) for parameter, output in feed.items())
    application = msgspec.structs.replace(WHOLE, repeat=RepeatClause(times, until, feeds))
    return Composition("Loop", ("a", "b"), ("out", "open"), (application,))


def counting(stop: int, seen: list[tuple[str | None, ...]]) -> Callable[[Run], Outputs]:
    """A step that adds a letter to x, and is open until x has `stop` letters."""

    def answer(run: Run) -> Outputs:
        texts = tuple(None if s is None else s.text() for s in run.inputs)
        seen.append(texts)
        text = (texts[0] or "") + "."
        return (item_set("out", text), item_set("open", text) if len(text) < stop else None)

    return answer


def text_of(found: ItemSet | None) -> str | None:
    return None if found is None else found.text()


@pytest.mark.parametrize(
    ("times", "until", "stop", "iterations"),
    [
        (1, None, 0, 1),
        (5, None, 0, 5),
        (5, "open", 4, 3),
        (5, "open", 1, 1),
        (5, "open", 99, 5),
        (5, "open", 6, 5),
    ],
)
def test_a_loop_feeds_its_outputs_back(
    times: int, until: str | None, stop: int, iterations: int
) -> None:
    seen: list[tuple[str | None, ...]] = []
    walk = Walk(plan(looped(times, until, x="out"), STEP), POLICY)
    given: list[ItemSet | None] = [item_set("a", "a"), item_set("b", "b")]
    out, still_open = drive(walk, given, counting(stop, seen))
    assert seen == [("a" + "." * n, "b") for n in range(iterations)]
    assert text_of(out) == "a" + "." * iterations
    assert (still_open is None) == (iterations + 1 >= stop)


def test_a_loop_ends_skipped_when_a_required_set_is_fed_nothing() -> None:
    seen: list[tuple[str | None, ...]] = []
    walk = Walk(plan(looped(9, None, x="open"), STEP), POLICY)
    found = drive(walk, [item_set("a", "a"), None], counting(4, seen))
    assert [x for x, _ in seen] == ["a", "a.", "a.."]
    assert found == (None, None)


def test_a_loop_goes_on_when_an_optional_set_is_fed_nothing() -> None:
    seen: list[tuple[str | None, ...]] = []
    walk = Walk(plan(looped(4, None, x="out", y="open"), STEP), POLICY)
    out, _ = drive(walk, [item_set("a", "a"), item_set("b", "b")], counting(3, seen))
    assert seen == [("a", "b"), ("a.", "a."), ("a..", None), ("a...", None)]
    assert text_of(out) == "a...."


def test_a_loop_over_a_skipped_application_ends_at_once() -> None:
    walk = Walk(plan(looped(1_000_000, None, x="out"), STEP), POLICY, slice_=100)
    assert walk.start([None, item_set("b", "b")]) == [Complete((None, None))]


def test_iterations_are_sharded_anew_and_instances_counted_through() -> None:
    application = Application(
        "F", (Binding("a", "s", Sharding.EACH),), (Return("t", "b"),), None,
        RepeatClause(3, None, (Feed("a", "b"),)),
    )  # fmt: skip
    numbers = []

    def twice(run: Run) -> Outputs:
        numbers.append(run.number)
        text = run.inputs[0].text() if run.inputs[0] else ""
        return (item_set("b", [Item("n", k, (text + "lr"[k]).encode()) for k in (0, 1)]),)

    walk = Walk(plan(Composition("C", ("s",), ("t",), (application,)), F), POLICY, window=2)
    (found,) = drive(walk, [item_set("s", [b"x"])], twice)
    assert found is not None
    letters = [i.text() for i in found]
    assert letters == ["xlll", "xrll", "xlrl", "xrrl", "xllr", "xrlr", "xlrr", "xrrr"]
    assert numbers == list(range(1 + 2 + 4))


def test_a_loop_over_a_composition_enters_it_again_and_again() -> None:
    outer = Composition("O", ("s",), ("t",), (
        Application("Chain", (Binding("s0", "s"),), (Return("t", "s2"),), None,
                    RepeatClause(500, None, (Feed("s0", "s2"),))),))  # fmt: skip
    runs = []

    def answer(run: Run) -> Outputs:
        runs.append(run)
        assert run.inputs[0] is not None
        return (item_set("b", str(int(run.inputs[0].text()) + 1)),)

    walk = Walk(plan(outer, plan(chain(2), F)), POLICY)
    (found,) = drive(walk, [item_set("s", "0")], answer)
    assert text_of(found) == "1000"
    assert len(runs) == 1000


def test_loops_within_loops() -> None:
    text = """
    composition Add(x) => (y) { F(a = all x) => (y = b) repeat 3 feeding (a = b); }
    composition Outer(x) => (y) { Add(x = all x) => (y = y) repeat 4 feeding (x = y); }
    """
    add, outer = parse(text).compositions
    runs = []

    def answer(run: Run) -> Outputs:
        runs.append(run.number)
        return (item_set("b", b"." + run.inputs[0].bytes() if run.inputs[0] else b""),)

    (found,) = drive(Walk(plan(outer, plan(add, F)), POLICY), [item_set("x", b"x")], answer)
    assert text_of(found) == "." * 12 + "x"
    assert runs == [0, 1, 2] * 4


def test_a_loop_keeps_nothing_of_earlier_iterations() -> None:
    walk = Walk(plan(looped(10, None, x="out"), STEP), POLICY)
    given, kept = item_set("a", b"first"), item_set("b", b"always")
    _, run = start(walk, given, kept)
    frame = walk._in_flight[run.instance].frame
    assert frame.sets[0] is None  # the frame has dropped it, the first instance has it
    gone: list[weakref.ref[object]] = []
    for _ in range(9):
        data = Tracked(b"x" * 100)
        gone.append(weakref.ref(data))
        out = ItemSet("out", (Item("i", 0, memoryview(data)),))
        del data
        (instruction,) = walk.finished(run.instance, (out, None))
        del out
        assert isinstance(instruction, Run)
        run = instruction
        del instruction
        assert run.inputs[1] is kept
        assert [ref() is not None for ref in gone] == [False] * (len(gone) - 1) + [True]
    assert frame.sets[1] is kept


class Tracked(bytearray):
    """Bytes that can be watched."""


HELD = """
composition Two(x) => (y) { F(a = all x) => (m = b); F(a = all m) => (y = b); }
composition Inner(x) => (y, x) { F(a = each x) => (m = b); Pair(x = all x, y = all m) => (y = z); }
composition Many(x) => (z) {
    Inner(x = each x) => (p = y, q = x);
    F(a = all q) => (unused = b);
    Two(x = all p) => (s = y) repeat 3 feeding (x = y);
    F(a = each s) => (r = b) repeat 3 feeding (a = b);
    Pair(x = all r, y = keyed q) => (z = z);
}
"""


@pytest.mark.parametrize("seed", range(12))
def test_a_walk_knows_what_it_holds(seed: int) -> None:
    """It agrees with the interpreter on which data is alive, after every step."""
    two, inner, many = parse(HELD).compositions
    chosen = random.Random(seed)
    walk = Walk(plan(many, plan(two, F), plan(inner, F, PAIR), F, PAIR), POLICY, window=2)
    alive: list[weakref.ref[Tracked]] = []
    made = 0

    def tracked(name: str, count: int) -> ItemSet:
        nonlocal made
        items = []
        for _ in range(count):
            made += 1
            data = Tracked(b"x" * made)
            alive.append(weakref.ref(data))
            items.append(Item(str(made), made % 3, memoryview(data)))
        return ItemSet(name, tuple(items))

    out = list(walk.start([tracked("x", 5)]))
    while not walk.done:
        held_bytes, _ = walk.held()
        assert held_bytes == sum(len(data) for ref in alive if (data := ref()) is not None)
        instruction = out.pop(chosen.randrange(len(out)))
        assert isinstance(instruction, Run)
        instance, name = instruction.instance, instruction.function.output_names[0]
        del instruction
        out += walk.finished(instance, (tracked(name, chosen.randint(1, 4)),))
    assert walk.held() == (0, 0)


def test_a_failing_iteration_names_its_instance() -> None:
    walk = Walk(plan(looped(10, None, x="out"), STEP), POLICY)
    _, run = start(walk, item_set("a", b"a"), None)
    (second,) = walk.finished(run.instance, (item_set("out", b"b"), None))
    assert isinstance(second, Run)
    (fail,) = walk.failed(second.instance, Raised("Step", "no"))
    assert isinstance(fail, Fail)
    assert isinstance(fail.error, ApplicationFailed)
    assert fail.error.instance == 1
    assert walk.finished(second.instance, (None, None)) == []


def test_a_million_iterations_without_instances_neither_recurse_nor_block() -> None:
    text = """
    composition Same(a, b) => (a, b) {}
    composition Swap(x) => (y) { Same(a = all x) => (y = a) repeat 1000000 feeding (a = a); }
    """
    same, swap = parse(text).compositions
    given = item_set("x", b"x")
    walk = Walk(plan(swap, plan(same)), POLICY, slice_=1000)
    assert walk.start([given]) == []
    for _ in range(20):
        assert walk.has_more
        assert walk.resume() == []
    assert isinstance(walk.cancel(Cancelled("too long"))[-1], Fail)
    assert not walk.has_more
    assert walk.resume() == []
    fewer = parse(text.replace("1000000", "5000")).compositions[1]
    (done,) = Walk(plan(fewer, plan(same)), POLICY).start([given])
    assert isinstance(done, Complete)
    assert done.outputs[0] is not None
    assert done.outputs[0].bytes() == b"x"


def test_a_wide_application_takes_little_more_than_its_data() -> None:
    count, size_bytes = 3000, 1024
    application = apply("F", "b=t", a=(Sharding.EACH, "s"))
    walk = Walk(plan(Composition("C", ("s",), ("t",), (application,)), F), POLICY)
    tracemalloc.start()
    given = ItemSet("s", tuple(Item(str(i), i, bytes(size_bytes)) for i in range(count)))
    drive(walk, [given], lambda run: (ItemSet("b", (Item("b", 0, bytes(size_bytes)),)),))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2 * (2 * count * size_bytes)


@pytest.mark.parametrize("slice_", [1, 2, 7])
def test_slices_change_nothing(slice_: int) -> None:
    whole = Walk(plan(chain(50), F), POLICY)
    sliced = Walk(plan(chain(50), F), POLICY, slice_=slice_)
    given: list[ItemSet | None] = [item_set("s0", b"x")]
    out = list(sliced.start(given))
    while not sliced.done:
        while sliced.has_more:
            out += sliced.resume()
        run = out.pop()
        if isinstance(run, Run):
            out += sliced.finished(run.instance, passed_on(run))
    (done,) = out if out else [run]
    assert isinstance(done, Complete)
    assert done.outputs == drive(whole, given, passed_on)
