"""Loops of compositions, and what a walk holds."""

import random
import tracemalloc
import weakref
from collections.abc import Callable
from typing import Any

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
from dandelion.dispatcher import (
    Complete,
    Fail,
    Run,
    Walk,
    compile_composition,
)
from dandelion.errors import ApplicationFailed, Cancelled, Raised
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


def test_deep_nesting_without_inputs_needs_no_stack() -> None:
    """Native code has no limit of recursion: the process would end."""
    depth = 20_000
    text = "function f() => (y); composition c0() => (z) { f() => (z = y); }"
    for number in range(1, depth):
        text += f"composition c{number}() => (z) {{ c{number - 1}() => (z = z); }}"
    targets: dict[str, Any] = {"f": FunctionSpec("f", (), (SetSpec("y"),))}
    for composition in parse(text, "deep").compositions:
        targets[composition.name] = compile_composition(composition, targets.__getitem__)
    walk = Walk(targets[f"c{depth - 1}"], POLICY)
    (run,) = walk.start([])
    assert isinstance(run, Run)
    (end,) = walk.finished(run.instance, (item_set("y", b"1"),))
    assert isinstance(end, Complete)
