"""The dispatcher's state machine with attempts and caught failures, driven by hand."""

import gc
import random
import weakref
from collections.abc import Callable

import msgspec
import pytest

from dandelion.data import Item, ItemSet, SetSpec
from dandelion.dataflow.language import parse
from dandelion.dataflow.sharding import Partitioning
from dandelion.dispatcher import (
    Cancel,
    Complete,
    CompositionPlan,
    Fail,
    Instruction,
    Pause,
    Run,
    Walk,
    compile_composition,
)
from dandelion.dispatcher import walk as walk_file
from dandelion.errors import (
    ApplicationFailed,
    Cancelled,
    DandelionError,
    DeadlineExceeded,
    EngineDied,
    Exited,
    InternalError,
    NotRecorded,
    Overloaded,
    Raised,
    RequestFailed,
    root_of,
)
from dandelion.failures import CaughtFailure
from dandelion.function import FunctionSpec
from dandelion.set_values import item_set

POLICY = Partitioning("auto", 1, 2)
RAISED = Raised("F", "ValueError: no")
DIED = EngineDied("e", "gone")
Outputs = tuple[ItemSet | None, ...]
Answer = Callable[[Run], Outputs | DandelionError]


def spec(name: str, inputs: str, outputs: str, kind: str = "compute") -> FunctionSpec:
    sets = [tuple(SetSpec(s) for s in names.split()) for names in (inputs, outputs)]
    return FunctionSpec(name, *sets, kind=kind)


FUNCTIONS = {
    "F": spec("F", "a", "b"),
    "G": spec("G", "a", "b"),
    "Step": spec("Step", "x y", "out open"),
    "Net": spec("Net", "a", "b", "io"),
    "Join": spec("Join", "a b", "c"),
}


def plan(text: str) -> CompositionPlan:
    """Compile the last composition of a text."""
    targets: dict[str, FunctionSpec | CompositionPlan] = dict(FUNCTIONS)
    for composition in parse(text).compositions:
        targets[composition.name] = made = compile_composition(composition, targets.__getitem__)
    return made


def passed_on(run: Run) -> Outputs:
    first = run.inputs[0]
    return tuple(
        None if first is None else ItemSet(o.name, first.items) for o in run.function.outputs
    )


def failing(*names: str, error: DandelionError = RAISED) -> Answer:
    """Fail for items of these names."""

    def answer(run: Run) -> Outputs | DandelionError:
        items = [i.name for s in run.inputs if s is not None for i in s]
        return error if set(items) & set(names) else passed_on(run)

    return answer


def drive(
    text: str, answer: Answer, *inputs: ItemSet | None, seed: int = 0, window: int = 64
) -> Outputs | DandelionError:
    """Carry out the instructions of a composition in a random order."""
    walk, source = Walk(plan(text), POLICY, window), random.Random(seed)
    out: list[Instruction] = walk.start(inputs)
    while True:
        instruction = out.pop(source.randrange(len(out)))
        if isinstance(instruction, Complete | Fail):
            assert not [one for one in out if not isinstance(one, Cancel)]
            assert walk.held() == (0, 0)
            done = isinstance(instruction, Complete)
            return instruction.outputs if done else instruction.error
        out += step(walk, instruction, answer)
        cancelled = [one.instance for one in out if isinstance(one, Cancel)]
        out = [o for o in out if not isinstance(o, Cancel) and number_of(o) not in cancelled]


def step(walk: Walk, instruction: Instruction, answer: Answer) -> list[Instruction]:
    if isinstance(instruction, Pause):
        return walk.again(instruction.instance)
    assert isinstance(instruction, Run)
    found = answer(instruction)
    if isinstance(found, DandelionError):
        return walk.failed(instruction.instance, found)
    return walk.finished(instruction.instance, found)


def number_of(instruction: Instruction) -> int | None:
    return instruction.instance if isinstance(instruction, Run | Pause) else None


def items(count: int, name: str = "s") -> ItemSet:
    return ItemSet(name, tuple(Item(f"i{n}", n % 3, b"%d" % n) for n in range(count)))


def outputs_of(found: Outputs | DandelionError) -> Outputs:
    assert isinstance(found, tuple), found
    return found


def read(found: ItemSet | None) -> list[CaughtFailure]:
    return [] if found is None else [msgspec.json.decode(i.data, type=CaughtFailure) for i in found]


EACH = "composition C(s) => (t, e) { F(a = each s) => (t = b) catch e; }"


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("window", [1, 2, 64])
def test_failed_instances_become_errors_and_the_others_go_on(seed: int, window: int) -> None:
    found = drive(EACH, failing("i3", "i4", "i8"), items(10), seed=seed, window=window)
    results, errors = outputs_of(found)
    assert results is not None
    assert [i.name for i in results] == ["i0", "i6", "i9", "i1", "i7", "i2", "i5"]
    assert errors is not None
    assert [(i.name, i.key) for i in errors] == [("i3", 0), ("i4", 1), ("i8", 2)]
    assert [(e.kind, e.application, e.instance, e.attempts) for e in read(errors)] == [
        ("Raised", "F", n, 1) for n in (3, 4, 8)
    ]


def test_without_failures_the_errors_set_is_absent() -> None:
    results, errors = outputs_of(drive(EACH, passed_on, items(4)))
    assert results is not None
    assert errors is None
    assert outputs_of(drive(EACH, passed_on, None)) == (None, None)


def test_without_results_the_set_is_absent_and_what_needs_it_is_skipped() -> None:
    text = """composition C(s) => (t, u) {
        F(a = each s) => (m = b) catch e;
        G(a = all m) => (t = b);
        Join(a = optional all m, b = all e) => (u = c);
    }"""
    ran = []

    def answer(run: Run) -> Outputs | DandelionError:
        ran.append(run.function.name)
        if run.function.name == "F":
            return RAISED
        assert run.inputs[0] is None
        assert run.inputs[1] is not None
        return (item_set("c", str(len(run.inputs[1]))),)

    skipped, joined = outputs_of(drive(text, answer, items(3)))
    assert skipped is None
    assert joined is not None
    assert joined.text() == "3"
    assert ran == ["F"] * 3 + ["Join"]


@pytest.mark.parametrize(
    "error",
    [
        Cancelled("gone"),
        DeadlineExceeded(1.0),
        InternalError("bug"),
        NotRecorded("F", "i"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_errors_of_more_than_an_instance_end_the_invocation(error: DandelionError) -> None:
    text = "composition C(s) => (t, e) { F(a = each s) => (t = b) attempts 3 catch e; }"
    found = drive(text, failing("i1", error=error), items(3))
    assert isinstance(found, ApplicationFailed)
    assert found.root is error


def test_only_named_kinds_are_caught() -> None:
    text = EACH.replace("catch e", "catch e on (TimedOut, EngineDied)")
    assert isinstance(drive(text, failing("i1"), items(3)), ApplicationFailed)
    _, errors = outputs_of(drive(text, failing("i1", error=DIED), items(3)))
    assert [e.kind for e in read(errors)] == ["EngineDied"]


def test_after_so_many_failures_the_next_one_ends_the_invocation(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(walk_file, "CAUGHT_LIMIT", 3)
    _, errors = outputs_of(drive(EACH, failing("i0", "i1", "i2"), items(4)))
    assert len(read(errors)) == 3
    assert isinstance(drive(EACH, failing("i0", "i1", "i2", "i3"), items(4)), ApplicationFailed)


def test_messages_take_a_bounded_amount_of_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(walk_file, "MESSAGES_LIMIT", 200)
    _, errors = outputs_of(drive(EACH, failing("i0", "i1", "i2", "i3"), items(4)))
    messages = [e.message for e in read(errors)]
    assert any(messages)
    assert "" in messages


# --- attempts ---------------------------------------------------------------------------------


def counting(good: int, error: DandelionError, seen: list[int]) -> Answer:
    """Fail until attempt `good`."""

    def answer(run: Run) -> Outputs | DandelionError:
        seen.append(run.attempt)
        return passed_on(run) if run.attempt >= good else error

    return answer


def attempts(clause: str, function: str = "F") -> str:
    return f"composition C(s) => (t) {{ {function}(a = all s) => (t = b) {clause}; }}"


@pytest.mark.parametrize(
    ("clause", "function", "error", "runs"),
    [
        ("attempts 3", "F", DIED, 3),
        ("attempts 1", "F", DIED, 1),
        ("attempts 3", "F", RAISED, 1),
        ("attempts 3 on (Raised)", "F", RAISED, 3),
        ("attempts 3 on (FunctionError)", "F", RAISED, 3),
        ("attempts 3 on (Raised)", "F", DIED, 1),
        ("attempts 3", "Net", RequestFailed("Net", "i", "lost"), 1),
        ("attempts 3", "Net", RequestFailed("Net", "i", "lost", may_repeat=True), 3),
        ("attempts 3 on (RequestFailed)", "Net", RequestFailed("Net", "i", "lost"), 3),
        ("attempts 3", "Net", Overloaded(1, 1), 3),
        ("attempts 3", "Net", DIED, 1),
        ("attempts 100 backoff 0.5", "F", DIED, 100),
    ],
)
def test_an_instance_is_run_so_often(
    clause: str, function: str, error: DandelionError, runs: int
) -> None:
    seen: list[int] = []
    found = drive(attempts(clause, function), counting(1000, error, seen), items(1))
    assert isinstance(found, ApplicationFailed)
    assert found.root is error
    assert seen == list(range(1, runs + 1))


def test_a_later_attempt_succeeds_with_the_same_inputs() -> None:
    seen: list[int] = []
    text = attempts("attempts 4 backoff 0.25")
    walk = Walk(plan(text), POLICY)
    given = items(2)
    (run,) = walk.start([given])
    pauses = []
    answer = counting(3, DIED, seen)
    while isinstance(run, Run | Pause):
        if isinstance(run, Pause):
            pauses.append(run.pause_s)
            assert walk.held()[0] == given.size_bytes
            assert walk.in_flight == 1
        else:
            assert run.inputs[0] is given
        (run,) = step(walk, run, answer)
    assert isinstance(run, Complete)
    assert (seen, pauses) == ([1, 2, 3], [0.25, 0.5])
    assert (walk.retried, walk.caught) == (2, 0)


def test_the_last_attempt_is_caught() -> None:
    text = "composition C(s) => (t, e) { F(a = each s) => (t = b) attempts 3 catch e; }"
    results, errors = outputs_of(drive(text, failing("i1", error=DIED), items(3)))
    assert results is not None
    assert [i.name for i in results] == ["i0", "i2"]
    (error,) = read(errors)
    assert (error.kind, error.instance, error.attempts) == ("EngineDied", 1, 3)


def test_an_instance_that_cannot_pause_has_failed_with_its_own_error() -> None:
    text = "composition C(s) => (t, e) { F(a = all s) => (t = b) attempts 9 backoff 1 catch e; }"
    walk = Walk(plan(text), POLICY)
    (run,) = walk.start([items(1)])
    assert isinstance(run, Run)
    (pause,) = walk.failed(run.instance, DIED)
    assert isinstance(pause, Pause)
    (complete,) = walk.give_up(pause.instance, pause.error)
    assert isinstance(complete, Complete)
    (error,) = read(complete.outputs[1])
    assert (error.kind, error.attempts) == ("EngineDied", 1)
    assert (walk.retried, walk.caught) == (0, 1)


def test_events_of_an_earlier_attempt_are_ignored() -> None:
    walk = Walk(plan(attempts("attempts 3 backoff 1")), POLICY)
    (run,) = walk.start([items(1)])
    assert isinstance(run, Run)
    (pause,) = walk.failed(run.instance, DIED)
    assert isinstance(pause, Pause)
    assert walk.finished(run.instance, passed_on(run)) == []
    assert walk.failed(run.instance, DIED) == []
    (second,) = walk.again(pause.instance)
    assert isinstance(second, Run)
    assert walk.again(pause.instance) == []
    assert isinstance(walk.finished(second.instance, passed_on(second))[0], Complete)


def test_cancelling_ends_a_pause() -> None:
    walk = Walk(plan(attempts("attempts 3 backoff 1")), POLICY)
    (run,) = walk.start([items(1)])
    assert isinstance(run, Run)
    (pause,) = walk.failed(run.instance, DIED)
    assert isinstance(pause, Pause)
    cancel, fail = walk.cancel(Cancelled("gone"))
    assert cancel == Cancel(pause.instance)
    assert isinstance(fail, Fail)
    assert walk.again(pause.instance) == walk.give_up(pause.instance, DIED) == []
    assert walk.held() == (0, 0)


# --- nested compositions ------------------------------------------------------------------------

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


# --- loops --------------------------------------------------------------------------------------


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


# --- memory -------------------------------------------------------------------------------------


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
