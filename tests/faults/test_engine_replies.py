"""Engine processes that talk nonsense, read nothing or say nothing: one call pays, none hangs.

The program of the process is replaced by one that greets as it should, and then does as told.
"""

import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from dandelion.node.remote import RemoteEngine, Sent

from dandelion.data import Item, ItemSet, SetSpec
from dandelion.documents import CodeDocument, FunctionDocument
from dandelion.driver import Call, Demand, Hosting
from dandelion.errors import DandelionError, EngineDied, InternalError, TimedOut
from dandelion.function import CodeObject, Function, FunctionSpec, Limits
from dandelion.memory import SharedDomain, Transfers
from dandelion.node import Node, Settings, processes
from dandelion.testing import Script, ScriptedDriver

PROGRAM = """#!{python}
import os, socket, struct, sys, time
sys.path.insert(0, {root!r})
from dandelion.engine_process.messages import *
peer = socket.socket(fileno=int(sys.argv[3]))
node = request_channel(peer)

def greet(spare=False):
    node.send(Ready("told", "told:0", ("0",), "as told", standby=spare))

def frame(body):
    peer.sendall(struct.pack("<I", len(body)) + body)

def run():
    try:
        while not isinstance(request := node.receive(), Run):
            pass
    except Ended:
        sys.exit(0)
    return request

def answer(call):
    node.send(Done(call, (None,), {{}}))

{told}
"""
SILENT = "greet(); time.sleep(60)"


def told_driver() -> ScriptedDriver:
    """A backend whose engine process is replaced."""
    script = Script(demand=lambda function, inputs: Demand(output_bytes=1))
    return ScriptedDriver("told", script, Hosting.PROCESS)


Tell = Callable[[str], None]


@pytest.fixture
def tell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Tell:
    """Give a function that says what engine processes do from now on."""
    program = tmp_path / "python"
    monkeypatch.setattr(processes, "sys", SimpleNamespace(executable=str(program)))
    root = str(Path(__file__).parents[2])

    def tell(told: str) -> None:
        program.write_text(PROGRAM.format(python=sys.executable, root=root, told=told))
        program.chmod(0o700)

    return tell


@pytest.fixture
def engine() -> Iterator[RemoteEngine]:
    arena = SharedDomain(1 << 20)
    engine = RemoteEngine(("told",), "", {}, {}, (told_driver(),), arena, Transfers())
    yield engine
    engine.abandon()
    engine.close()
    arena.close()


def call(engine: RemoteEngine, number: int = 1, left_s: float = 20, code: bytes = b"") -> Call:
    spec = FunctionSpec("F", (SetSpec("a"),), (SetSpec("b"),), limits=Limits(wall_s=left_s))
    function = Function(spec, CodeObject("told"), code)
    deadline_ns = time.monotonic_ns() + int(left_s * 1e9)
    inputs = (ItemSet("a", (Item("a", 0, b"1"),)),)
    return Call(number, function, inputs, engine._arena, deadline_ns, left_s)


@pytest.mark.parametrize(
    "told",
    [
        "frame(b'rubbish')",
        "frame(b'\\x81\\xa4type\\xa4what')",
        "peer.sendall(struct.pack('<I', 2**32 - 1))",
        "peer.sendall(b'\\x64\\0\\0\\0half of it'); peer.shutdown(socket.SHUT_WR)",
        "sys.exit(3)",
        "greet()",
    ],
)
@pytest.mark.parametrize("when", ["greeting", "answer"])
def test_nonsense_is_the_death_of_the_engine(
    told: str, when: str, tell: Tell, engine: RemoteEngine
) -> None:
    if when == "greeting":
        tell(told if told != "greet()" else "answer(1)")
        with pytest.raises(EngineDied):
            engine.start()
        return
    tell(f"greet(); run(); {told}; time.sleep(60)")
    engine.start()
    with pytest.raises(EngineDied):
        engine.run(call(engine))
    assert engine.lost
    tell("greet(); answer(run().call); run()")
    engine.recover()
    assert engine.run(call(engine, 2)) == (None,)


def test_an_answer_to_another_call_is_not_taken(tell: Tell, engine: RemoteEngine) -> None:
    tell("greet(); answer(run().call + 1); run()")
    engine.start()
    with pytest.raises(InternalError, match="answered call 2"):
        engine.run(call(engine))
    assert engine.lost


@pytest.mark.parametrize(
    "told", [SILENT, "greet(); peer.sendall(b'\\x64\\0\\0\\0half'); time.sleep(60)"]
)
def test_a_process_that_stays_silent_costs_the_time_of_its_call(
    told: str, tell: Tell, engine: RemoteEngine
) -> None:
    tell(told)
    engine.start()
    with pytest.raises(TimedOut):
        engine.run(call(engine, left_s=0.1))
    assert engine.lost


def test_a_process_that_reads_nothing_cannot_hold_up_a_large_function(
    tell: Tell, engine: RemoteEngine
) -> None:
    tell(SILENT)
    engine.start()
    with pytest.raises(TimedOut):
        engine.run(call(engine, left_s=0.1, code=bytes(16 << 20)))


def test_a_function_may_be_loaded_for_as_long_as_its_own_call_lasts(
    tell: Tell, engine: RemoteEngine
) -> None:
    tell("greet(); answer(run().call); time.sleep(0.6); answer(run().call); run()")
    engine.start()
    assert engine.run(call(engine, 1, left_s=0.2)) == (None,)
    assert engine.run(call(engine, 2, left_s=20, code=bytes(16 << 20))) == (None,)


@pytest.mark.parametrize("spare_lives", [True, False])
def test_a_spare_takes_the_place_of_a_process_that_died(
    spare_lives: bool, tell: Tell, engine: RemoteEngine
) -> None:
    tell("greet(spare=True)\nwhile (call := run().call) != 1: answer(call)")
    engine.start()
    spare = engine._processes.spare
    assert spare is not None
    with pytest.raises(EngineDied):
        engine.run(call(engine, 1))
    if not spare_lives:
        spare.child.kill()
    engine.recover()
    assert (engine._processes.current is spare) == spare_lives
    assert engine.run(call(engine, 2)) == (None,)
    assert engine._processes.spare is not None
    assert engine._processes.spare is not spare


@pytest.mark.parametrize(
    "told", ["time.sleep(60)", SILENT, SILENT.replace("()", "(spare=True)", 1)]
)
def test_a_node_closes_while_a_process_starts_or_works(told: str, tell: Tell) -> None:
    tell(told)
    node = Node(Settings(backends=(), arena_bytes=1 << 20), [told_driver()])
    node.start()
    begin = time.monotonic()
    if "greet" in told:
        assert node.wait_ready()
    node.close()
    assert time.monotonic() - begin < 10


def test_a_node_closes_while_a_call_is_out(tell: Tell) -> None:
    tell(SILENT)
    errors: list[DandelionError] = []
    with Node(Settings(backends=(), arena_bytes=1 << 20), [told_driver()]) as node:
        code = (CodeDocument("told"),)
        node.register(FunctionDocument("F", ("a",), ("b",), code=code))

        def invoke() -> None:
            try:
                node.invoke("F", a=b"1")
            except DandelionError as error:
                errors.append(error)

        caller = threading.Thread(target=invoke)
        caller.start()
        while not any(e.busy for e in node.engines()):
            os.sched_yield()
        begin = time.monotonic()
    caller.join()
    assert time.monotonic() - begin < 5
    assert [type(e).__name__ for e in errors] == ["Cancelled"]


# --- two calls out ------------------------------------------------------------------------------

WARM = "for _ in range(12): answer(run().call)"


def two_calls(node: Node) -> list[str]:
    """Invoke twice at once, after calls that showed to be short; give what came of them."""
    code = (CodeDocument("told"),)
    node.register(FunctionDocument("F", ("a",), ("b",), code=code))
    for _ in range(12):
        node.invoke("F", a=b"1")
    came: list[str] = []

    def invoke() -> None:
        try:
            node.invoke("F", a=b"1")
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
def test_a_short_call_is_sent_while_another_runs(spin_us: int, tell: Tell) -> None:
    tell(f"greet()\n{WARM}\na = run(); b = run(); answer(a.call); answer(b.call); run()")
    settings = Settings(backends=(), arena_bytes=1 << 20, spin_us=spin_us)
    with Node(settings, [told_driver()]) as node:
        assert two_calls(node) == ["answer", "answer"]


def test_long_calls_wait_where_any_engine_may_take_them(tell: Tell) -> None:
    tell(
        "greet()\nwhile True:\n    a = run(); time.sleep(0.02)\n"
        "    import select; assert not select.select([peer], [], [], 0)[0]\n    answer(a.call)"
    )
    with Node(Settings(backends=(), arena_bytes=1 << 20), [told_driver()]) as node:
        assert two_calls(node) == ["answer", "answer"]


@pytest.mark.parametrize(("deaths", "expected"), [(1, ["answer"] * 2), (2, ["Faulted", "answer"])])
def test_a_call_pays_for_no_death_before_it_began(
    deaths: int, expected: list[str], tell: Tell, tmp_path: Path
) -> None:
    """Two calls are out when their process dies; only the first of them can be to blame."""
    count = tmp_path / "count"
    count.mkdir()
    tell(
        f"starts = len(os.listdir({str(count)!r})) + 1\n"
        f"open(os.path.join({str(count)!r}, str(starts)), 'x')\n"
        f"greet()\n"
        f"if starts == 1:\n    {WARM}\n    a = run(); b = run(); sys.exit(3)\n"
        f"if starts <= {deaths}: run(); sys.exit(3)\n"
        "while True: answer(run().call)"
    )
    with Node(Settings(backends=(), arena_bytes=1 << 20), [told_driver()]) as node:
        assert sorted(two_calls(node)) == sorted(expected)


def test_the_limit_of_a_call_counts_from_when_it_begins(tell: Tell, engine: RemoteEngine) -> None:
    tell(
        "greet(); a = run(); b = run()\nfor one in (a, b): time.sleep(0.4); answer(one.call)\nrun()"
    )
    engine.start()
    first, second = call(engine, 1, left_s=0.5), call(engine, 2, left_s=0.5)
    second.latest_ns = time.monotonic_ns() + 20 * 10**9
    engine._load(first)
    assert engine.begin(first, quickly=False) is Sent.ALL
    assert engine.begin(second, quickly=False) is Sent.ALL
    assert engine.finish(first) == (None,)
    assert engine.finish(second) == (None,)
