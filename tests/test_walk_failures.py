"""The dispatcher's state machine with attempts and caught failures, driven by hand."""

import pytest

from dandelion.data import Item, ItemSet
from dandelion.dataflow.sharding import ROWS_LIMIT
from dandelion.dispatcher import (
    Cancel,
    Complete,
    Fail,
    Pause,
    Run,
    Walk,
)
from dandelion.dispatcher import walk as walk_file
from dandelion.errors import (
    ApplicationFailed,
    Cancelled,
    DandelionError,
    DeadlineExceeded,
    InternalError,
    NotRecorded,
    Overloaded,
    RequestFailed,
    TooMany,
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
    outputs_of,
    passed_on,
    plan,
    read,
    step,
)

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


PAIRS = "Join(a = anyKeyed s, b = anyKeyed t) => (u = c) by a cross b;"


def keyed(count: int) -> ItemSet:
    return ItemSet("s", tuple(Item(f"i{n}", n, b"x") for n in range(count)))


@pytest.mark.parametrize("before", ["", "F(a = each s) => (m = b);"])
def test_a_join_of_too_many_rows_to_partition_fails(before: str) -> None:
    text = f"composition C(s, t) => (u) {{ {before} {PAIRS} }}"
    found = drive(text, passed_on, keyed(513), keyed(512))
    assert isinstance(found, ApplicationFailed)
    assert (found.application, found.instance) == ("Join", 0)
    assert isinstance(found.root, TooMany)
    assert (found.root.count, found.root.limit) == (513 * 512, ROWS_LIMIT)
    (joined,) = outputs_of(drive(text, passed_on, keyed(100), keyed(100)))
    assert joined is not None
    assert len(joined) == 100 * 100


def test_a_join_of_too_many_rows_can_be_caught() -> None:
    text = f"""composition C(s, t) => (u, e, w) {{
        {PAIRS[:-1]} catch e;
        F(a = each s) => (w = b);
    }}"""
    joined, errors, others = outputs_of(drive(text, passed_on, keyed(513), keyed(512)))
    assert joined is None
    assert [(one.kind, one.instance, one.attempts) for one in read(errors)] == [("TooMany", 0, 1)]
    assert others is not None
    assert len(others) == 513


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
