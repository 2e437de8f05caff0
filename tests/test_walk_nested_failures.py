"""Failures in nested compositions and loops."""

import gc
import random
import weakref
from collections.abc import Callable

import pytest

from dandelion.data import Item, ItemSet
from dandelion.dispatcher import (
    Cancel,
    Fail,
    Pause,
    Run,
    Walk,
)
from dandelion.errors import (
    ApplicationFailed,
    DandelionError,
    Exited,
    Raised,
    root_of,
)
from dandelion.set_values import item_set
from tests.failing_walks import (
    DIED,
    POLICY,
    RAISED,
    Answer,
    Outputs,
    drive,
    failing,
    items,
    number_of,
    outputs_of,
    passed_on,
    plan,
    read,
)

NESTED = """
composition Inner(x) => (y) { F(a = each x) => (m = b); G(a = all m) => (y = b); }
composition C(s, r) => (t, e) {
    Inner(x = keyed s) => (t = y) CLAUSES;
    F(a = all r) => (u = b);
}
"""


@pytest.mark.parametrize("seed", range(8))
def test_a_nested_composition_fails_as_a_whole_and_alone(seed: int) -> None:
    text = NESTED.replace("CLAUSES", "catch e")
    found = drive(text, failing("i4"), items(9), items(1, "r"), seed=seed)
    results, errors = outputs_of(found)
    assert results is not None
    assert [i.name for i in results] == ["i0", "i3", "i6", "i2", "i5", "i8"]
    (error,) = read(errors)
    assert (error.kind, error.application, error.instance) == ("Raised", "Inner", 1)
    assert error.message.startswith("Inner.F (instance 1, key 1): function 'F' raised")
    assert errors is not None
    assert (errors[0].name, errors[0].key) == ("Inner.1", 1)


def test_only_instances_inside_of_the_failed_one_are_cancelled() -> None:
    walk = Walk(plan(NESTED.replace("CLAUSES", "catch e")), POLICY)
    out = walk.start([items(9), items(1, "r")])
    runs = [run for run in out if isinstance(run, Run)]
    inside = [run for run in runs if run.inputs[0] and run.inputs[0][0].name in ("i1", "i4", "i7")]
    assert len(inside) == 3
    cancels = walk.failed(inside[1].instance, RAISED)
    assert cancels == [Cancel(inside[0].instance), Cancel(inside[2].instance)]
    assert walk.has_dropped
    assert [run for run in runs if not walk.expects(run.instance)] == inside
    assert walk.in_flight == len(runs) - 3


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("clause", ["attempts 2 catch e", "attempts 2 backoff 1 catch e"])
def test_a_nested_composition_is_run_again_as_a_whole(seed: int, clause: str) -> None:
    ran: list[str] = []

    def answer(run: Run) -> Outputs | DandelionError:
        first = run.inputs[0]
        assert first is not None
        ran.append(f"{run.function.name} {first[0].name}")
        return DIED if ran.count("F i4") == 1 and ran[-1] == "F i4" else passed_on(run)

    text = NESTED.replace("CLAUSES", clause)
    results, errors = outputs_of(drive(text, answer, items(9), items(1, "r"), seed=seed))
    assert results is not None
    assert len(results) == 9
    assert errors is None
    assert ran.count("F i4") == 2
    assert ran.count("F i3") == 1
    assert ran.count("G i1") == 1


def test_the_nearest_application_that_handles_a_failure_does() -> None:
    text = """
    composition Inner(x) => (y, f) { F(a = each x) => (y = b) catch f on (Raised); }
    composition C(s) => (t, f, e) { Inner(x = all s) => (t = y, f = f) catch e; }
    """
    results, inner, outer = outputs_of(drive(text, failing("i1"), items(3)))
    assert results is not None
    assert (len(read(inner)), outer) == (1, None)
    exited = Exited("F", 3)
    results, inner, outer = outputs_of(drive(text, failing("i1", error=exited), items(3)))
    assert (results, inner) == (None, None)
    assert [e.kind for e in read(outer)] == ["Exited"]


def test_compositions_with_io_are_run_again_only_if_it_is_said() -> None:
    text = """
    composition Inner(x) => (y) { Net(a = all x) => (m = b); F(a = all m) => (y = b); }
    composition C(s) => (t) { Inner(x = all s) => (t = y) CLAUSE; }
    """
    for clause, runs in (("attempts 3", 1), ("attempts 3 on (EngineDied)", 3)):
        ran = []

        def answer(run: Run, ran: list[str] = ran) -> Outputs | DandelionError:
            ran.append(run.function.name)
            return DIED if run.function.name == "F" else passed_on(run)

        found = drive(text.replace("CLAUSE", clause), answer, items(1))
        assert isinstance(found, ApplicationFailed)
        assert root_of(found) is DIED
        assert ran == ["Net", "F"] * runs


def test_an_outer_composition_is_run_again_if_an_instance_inside_of_it_cannot_pause() -> None:
    text = """
    composition Inner(x) => (y) { F(a = all x) => (y = b) attempts 3 backoff 1; }
    composition C(s) => (t) { Inner(x = all s) => (t = y) attempts 2; }
    """
    walk = Walk(plan(text), POLICY)
    (run,) = walk.start([items(1)])
    for _ in range(2):
        assert isinstance(run, Run)
        assert run.attempt == 1
        (pause,) = walk.failed(run.instance, DIED)
        assert isinstance(pause, Pause)
        (run,) = walk.give_up(pause.instance, pause.error)
    assert isinstance(run, Fail)
    assert root_of(run.error) is DIED


def looped(clauses: str, optional: str = "") -> str:
    return f"""composition C(a, b) => (out, e) {{
        Step(x = {optional} all a, y = optional all b) => (out = out) {clauses} catch e;
    }}"""


def letters(fails: Callable[[str], bool]) -> Answer:
    """Add a dot to x; fail for some texts."""

    def answer(run: Run) -> Outputs | DandelionError:
        text = run.inputs[0].text() if run.inputs[0] else ""
        if fails(text):
            return RAISED
        return (item_set("out", text + "."), item_set("open", text))

    return answer


def test_a_failed_iteration_gives_nothing_which_ends_a_loop() -> None:
    for clauses in ("repeat 9 feeding (x = out)", "repeat 9 until out feeding (x = out)"):
        out, errors = outputs_of(
            drive(looped(clauses), letters(lambda t: t == "a.."), item_set("a", "a"), None)
        )
        assert out is None
        (error,) = read(errors)
        assert error.instance == 2


def test_errors_of_all_iterations_are_collected() -> None:
    text = looped("repeat 4 feeding (x = out)", "optional")
    out, errors = outputs_of(
        drive(text, letters(lambda t: t in ("a.", "")), item_set("a", "a"), None)
    )
    assert out is None
    assert [e.instance for e in read(errors)] == [1, 2, 3]
    each = """composition C(s) => (t, e) {
        F(a = each s) => (t = b) repeat 3 feeding (a = b) catch e;
    }"""

    def answer(run: Run) -> Outputs | DandelionError:
        name = run.inputs[0][0].name if run.inputs[0] else ""
        fails = name == "i1" or (name == "i3" and run.number >= 5)
        return RAISED if fails else passed_on(run)

    results, errors = outputs_of(drive(each, answer, items(5)))
    assert results is not None
    assert [i.name for i in results] == ["i0", "i4", "i2"]
    assert errors is not None
    assert [(i.name, e.instance) for i, e in zip(errors, read(errors), strict=True)] == [
        ("i3", 6),
        ("i1", 1),
    ]


def test_attempts_are_made_within_an_iteration() -> None:
    seen: list[tuple[int, int]] = []

    def answer(run: Run) -> Outputs | DandelionError:
        seen.append((run.number, run.attempt))
        if run.attempt == 1:
            return DIED
        return (item_set("out", "x"), item_set("open", "x"))

    out, errors = outputs_of(
        drive(looped("repeat 2 feeding (x = out) attempts 2"), answer, item_set("a", "a"), None)
    )
    assert out is not None
    assert errors is None
    assert seen == [(0, 1), (0, 2), (1, 1), (1, 2)]


class Tracked(bytearray):
    """Bytes that can be watched."""


HELD = """
composition Inner(x) => (y) { F(a = each x) => (m = b); G(a = all m) => (y = b); }
composition C(s) => (z, f) {
    F(a = each s) => (m = b) repeat 2 feeding (a = b) attempts 2 on (Raised) backoff 1 catch e;
    Inner(x = each m) => (t = y) attempts 2 on (Raised) backoff 1 catch f;
    Join(a = all t, b = optional all e) => (z = c);
}
"""


@pytest.mark.parametrize("seed", range(12))
def test_a_walk_knows_what_it_holds_while_instances_fail(seed: int) -> None:
    """It agrees with the interpreter on which data is alive, after every step."""
    source = random.Random(seed)
    walk = Walk(plan(HELD), POLICY, window=2)
    alive: list[weakref.ref[Tracked]] = []

    def tracked(name: str, count: int) -> ItemSet:
        found = []
        for _ in range(count):
            data = Tracked(b"x" * (len(alive) + 1))
            alive.append(weakref.ref(data))
            found.append(Item(str(len(alive)), len(alive) % 3, memoryview(data)))
        return ItemSet(name, tuple(found))

    gc.collect()
    out = walk.start([tracked("s", 4)])
    while not walk.done:
        held_bytes, _ = walk.held()
        errors = sum(
            item.size_bytes
            for one in walk._held_sets()
            if one is not None and one.name == "errors"
            for item in {id(i): i for i in one}.values()
        )
        kept = sum(len(data) for ref in alive if (data := ref()) is not None)
        assert kept <= held_bytes <= kept + errors
        instruction = out.pop(source.randrange(len(out)))
        fails = source.random() < 0.3
        if isinstance(instruction, Pause):
            out += walk.again(instruction.instance)
        elif isinstance(instruction, Run):
            instance, name = instruction.instance, instruction.function.output_names[0]
            del instruction
            if fails and name != "c":
                out += walk.failed(instance, Raised("F", "no"))
            else:
                out += walk.finished(instance, (tracked(name, source.randint(1, 3)),))
        cancelled = [one.instance for one in out if isinstance(one, Cancel)]
        out = [o for o in out if not isinstance(o, Cancel) and number_of(o) not in cancelled]
        instruction = None  # type: ignore[assignment]
    assert walk.held() == (0, 0)
