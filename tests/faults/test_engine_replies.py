"""Engine processes that talk nonsense, read nothing or say nothing: one call pays, none hangs.

The processes are played: they greet as they should, and then do as told.
"""

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import pytest

from dandelion.data import Item, ItemSet
from dandelion.errors import DandelionError, EngineDied, InternalError, TimedOut
from dandelion.executors import processes
from dandelion.node import Node, Settings
from dandelion.testing import FakeEngineProcess, wait_until
from tests.played_nodes import (
    DEADLINE_S,
    children,
    outcome,
    played_driver,
    played_node,
    register,
    standby,
    wait_ready,
)

UP = "process.opened(); process.ready()\n"
SERVE = "for call in process.calls(): process.answer(call)\n"
SILENT = UP + "import time; time.sleep(60)"
NONSENSE = [
    "process.frame(b'rubbish')",
    r"process.frame(b'\x81\xa4type\xa4what')",
    r"process.send(b'\xff\xff\xff\xff')",
    r"process.send(b'\x64\0\0\0half of it'); process.peer.shutdown(1)",
    "raise SystemExit(3)",
]


@pytest.fixture
def fake(tmp_path: Path) -> FakeEngineProcess:
    return FakeEngineProcess(tmp_path)


@pytest.fixture
def node(fake: FakeEngineProcess, request: pytest.FixtureRequest) -> Iterator[Node]:
    fake.script(request.param)
    settings = Settings(backends=(), arena_bytes=64 << 20, spin_us=0)
    with played_node(fake, settings) as node:
        yield node


def plays(*scripts: str) -> pytest.MarkDecorator:
    """Have the node's engine processes do this; for each text the test runs once."""
    return pytest.mark.parametrize("node", scripts, indirect=True)


@plays(*[f"process.opened(); {nonsense}; process.call()" for nonsense in NONSENSE])
def test_nonsense_for_a_greeting_is_the_death_of_the_engine(node: Node) -> None:
    with pytest.raises(EngineDied):
        node.invoke("F", a=b"1")


def test_an_answer_for_a_greeting_is_the_death_of_the_engine(fake: FakeEngineProcess) -> None:
    fake.script("""
        from dandelion.engine_process.messages import Done

        process.opened()
        process.node.send(Done(1, (None,), {}))
        process.call()
        """)
    with played_node(fake) as node, pytest.raises(EngineDied):
        node.invoke("F", a=b"1")


@pytest.mark.parametrize("nonsense", NONSENSE)
def test_nonsense_for_an_answer_is_the_death_of_the_process(
    nonsense: str, fake: FakeEngineProcess
) -> None:
    fake.script(f"""
        process.opened()
        process.ready()
        for call in process.calls():
            process.note("calls", call.function)
            if call.function == "Bad" or process.first("nonsense"):
                {nonsense}
                process.call()
            process.answer(call)
        """)
    with played_node(fake, names=("Good", "Bad")) as node:
        assert outcome(node, "Good") == "answered"  # when it was run again
        assert fake.notes("calls") == ["Good"] * 2
        assert outcome(node, "Bad") == "Faulted"
        assert outcome(node, "Good") == "answered"
        assert fake.notes("calls") == ["Good"] * 2 + ["Bad"] * 2 + ["Good"]


@pytest.mark.parametrize("wrong", ["process.answer(call, number=77)", "process.ready()"])
def test_an_answer_to_another_call_is_not_taken(wrong: str, fake: FakeEngineProcess) -> None:
    fake.script(f"""
        process.opened()
        process.ready()
        for call in process.calls():
            if process.first("wrong"):
                {wrong}
                process.call()
            process.answer(call)
        """)
    with played_node(fake) as node:
        with pytest.raises(InternalError, match="not call"):
            node.invoke("F", a=b"1")
        assert outcome(node) == "answered"


@plays(SILENT, UP + r"process.send(b'\x64\0\0\0half'); import time; time.sleep(60)")
def test_a_process_that_stays_silent_costs_the_time_of_its_call(
    node: Node, fake: FakeEngineProcess
) -> None:
    wait_ready(node)
    fake.script(UP + SERVE)
    register(node, "Short", wall_s=0.1)
    with pytest.raises(TimedOut):
        node.invoke("Short", a=b"1")
    assert outcome(node) == "answered"


def many_items() -> ItemSet:
    """A set whose description is larger than what a socket takes."""
    return ItemSet("a", tuple(Item(f"item number {i}", 0, b"x") for i in range(30_000)))


@plays(SILENT)
def test_a_process_that_reads_nothing_cannot_hold_up_a_large_call(
    node: Node, fake: FakeEngineProcess
) -> None:
    wait_ready(node)
    fake.script(UP + SERVE)
    register(node, "Short", wall_s=0.1)
    with pytest.raises(TimedOut):
        node.invoke_sets("Short", {"a": many_items()})
    assert outcome(node) == "answered"
    assert node.invoke_sets("F", {"a": many_items()}).sets.b is None


@plays(f"{UP}process.answer(process.call())\nimport time; time.sleep(1.2)\n{SERVE}")
def test_a_call_may_be_sent_for_as_long_as_it_may_last(node: Node) -> None:
    register(node, "Short", wall_s=1.0)
    assert outcome(node, "Short") == "answered"
    assert node.invoke_sets("F", {"a": many_items()}).sets.b is None


@pytest.mark.parametrize("lives", [True, False])
def test_a_standby_takes_the_place_of_a_process_that_died(
    lives: bool, fake: FakeEngineProcess
) -> None:
    fake.script("""
        process.opened()
        process.ready(standby=True)
        for call in process.calls():
            if process.first("died"):
                break
            process.answer(call)
        """)
    with played_node(fake) as node:
        waiting = wait_until(lambda: standby(node))
        if not lives:
            [executor] = node._runtime.executors.values()
            executor._processes.standby.child.kill()  # type: ignore[attr-defined]
        assert outcome(node) == "answered"
        assert (children(node) == [waiting]) == lives
        assert wait_until(lambda: standby(node)) != waiting


@pytest.mark.parametrize(
    "script",
    ["import time; time.sleep(60)", SILENT, SILENT.replace("ready()", "ready(standby=True)")],
)
def test_a_node_closes_while_a_process_starts_or_works(
    script: str, fake: FakeEngineProcess
) -> None:
    fake.script(script)
    with fake.replaces(processes):
        node = Node(Settings(backends=(), arena_bytes=1 << 20), [played_driver()])
        node.start()
        begin = time.monotonic()
        if "ready" in script:
            assert node.wait_ready()
        node.close()
        assert time.monotonic() - begin < 30


def test_a_node_closes_while_a_call_is_out(fake: FakeEngineProcess) -> None:
    fake.script(SILENT)
    with ThreadPoolExecutor(1) as pool:
        with played_node(fake, leaves_nothing=False) as node:
            call = pool.submit(outcome, node)
            wait_until(lambda: any(engine.busy for engine in node.engines()))
            begin = time.monotonic()
        assert time.monotonic() - begin < 30
        assert call.result(DEADLINE_S) == "Cancelled"


# --- two calls out ------------------------------------------------------------------------------


def warm(fake: FakeEngineProcess) -> str:
    """Write a line of a script: answer calls until `two_calls` has made enough; take its two."""
    is_enough = f"__import__('os').path.exists({str(fake.folder / 'enough')!r})"
    taken = f"next(c for c in iter(process.call, 0) if {is_enough} or process.answer(c))"
    return f"a = {taken}; b = process.call()"


ROOM = Settings(backends=(), arena_bytes=16 << 20, spin_us=0)
"""Memory for two calls, even if no result of the earlier ones has been freed yet."""


def two_calls(
    node: Node, fake: FakeEngineProcess, name: str = "F", *, short: bool = True
) -> list[str]:
    """Invoke twice at once, after others; return their results.

    Args:
        node, fake, name: what is invoked.
        short: so many others are made that the engine takes short calls while another runs; on a
            busy machine, calls may seem to be long at first.
    """
    engines = node._parts.runtime.scheduler.calls.engines.all
    for _ in range(50):
        for _ in range(12):
            node.invoke(name, a=b"1")
        if not short or any(engine.free > 1 for engine in engines.values()):
            break
    fake.sign("enough")
    came: list[str] = []

    def invoke() -> None:
        try:
            node.invoke(name, a=b"1")
            came.append("answer")
        except DandelionError as error:
            came.append(type(error).__name__)

    callers = [threading.Thread(target=invoke) for _ in range(2)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    return came


@pytest.mark.parametrize("spin_us", [0, 200])
def test_a_short_call_is_sent_while_another_runs(spin_us: int, fake: FakeEngineProcess) -> None:
    fake.script(f"{UP}{warm(fake)}\nprocess.answer(a); process.answer(b); process.call()")
    with played_node(fake, msgspec.structs.replace(ROOM, spin_us=spin_us)) as node:
        assert two_calls(node, fake) == ["answer", "answer"]


def test_long_calls_wait_where_any_engine_may_take_them(fake: FakeEngineProcess) -> None:
    fake.script("""
        import select, time

        process.opened()
        process.ready()
        for call in process.calls():
            time.sleep(0.02)
            if select.select([process.peer], [], [], 0)[0]:
                process.note("early", "a call")
            process.answer(call)
        """)
    with played_node(fake, ROOM) as node:
        assert two_calls(node, fake, short=False) == ["answer", "answer"]
    assert fake.notes("early") == []


@pytest.mark.parametrize(
    ("deaths", "expected"),
    [(1, ["answer"] * 2), (2, ["answer"] * 2), (3, ["Faulted", "answer"])],
)
def test_a_call_pays_for_no_death_before_it_began(
    deaths: int, expected: list[str], fake: FakeEngineProcess
) -> None:
    """Two calls are out when their process dies; only the first of them can be to blame.

    The second goes before it then. When that process dies, too, each has seen one death.
    """
    fake.script(f"""
        process.opened()
        process.ready()
        starts = 1
        while not process.first(f"start {{starts}}"):
            starts += 1
        if starts == 1:
            {warm(fake)}
            raise SystemExit(3)
        if starts <= {deaths}:
            process.call()
            raise SystemExit(3)
        {SERVE}
        """)
    with played_node(fake, ROOM) as node:
        assert sorted(two_calls(node, fake)) == sorted(expected)


def test_the_limit_of_a_call_counts_from_when_it_begins(fake: FakeEngineProcess) -> None:
    fake.script(
        f"{UP}{warm(fake)}\nimport time\n"
        "for one in (a, b): time.sleep(2.5); process.answer(one)\nprocess.call()"
    )
    with played_node(fake, ROOM) as node:
        register(node, "G", wall_s=4.5)
        assert two_calls(node, fake, "G") == ["answer", "answer"]
