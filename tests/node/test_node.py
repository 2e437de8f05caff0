"""The embedded node: registering, invoking, failing, leaving; no HTTP, no sandbox."""

import asyncio
import gc
import math
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction
from pathlib import Path
from typing import cast

import numpy as np
import pytest

from dandelion.catalog import CompositionRecord
from dandelion.data import Item
from dandelion.documents import CodeDocument, FunctionDocument, RegistrationDocument
from dandelion.errors import (
    ApplicationFailed,
    BackendUnavailable,
    Cancelled,
    Conflict,
    DeadlineExceeded,
    EngineDied,
    Faulted,
    InternalError,
    InvalidComposition,
    InvalidFunction,
    InvalidInput,
    NoEngine,
    Overloaded,
    Raised,
    Unknown,
)
from dandelion.function import FunctionSpec
from dandelion.node import Node, Settings
from dandelion.node.invocation import Invocation
from dandelion.set_values import item_set
from dandelion.testing import Failures, echo, wait_until
from tests.node.served import GateDriver


def function(name: str, code_format: str = "null", main: str = "", **sets: str) -> FunctionDocument:
    return FunctionDocument(
        name,
        tuple(sets.get("inputs", "a").split()),
        tuple(sets.get("outputs", "b").split()),
        code=(CodeDocument(code_format, main),),
    )


DOCUMENT_OF_F = RegistrationDocument(functions=(function("F"),))
DOCUMENT = RegistrationDocument(
    functions=(function("F"), function("Gate", "gate"), function("Bug", "gate", "bug")),
    compositions=(
        """function F(a) => (b);
        function Gate(a) => (b);
        composition Both(x) => (y, z) { F(a = all x) => (y = b); F(a = each x) => (z = b); }
        composition Gates(x) => (y) { Gate(a = each x) => (m = b); F(a = all m) => (y = b); }""",
    ),
)


@pytest.fixture
def gate() -> GateDriver:
    return GateDriver()


@pytest.fixture
def node(gate: GateDriver) -> Iterator[Node]:
    settings = Settings(backends=("null",), arena_bytes=1 << 22, max_waiting=8)
    with Node(settings, [gate]) as node:
        node.register(DOCUMENT)
        assert node.wait_ready()
        yield node
        gate.gate.open(100)
    assert gate.seen.closed == ["gate:0"]


def test_results_come_by_name_and_as_numpy(node: Node) -> None:
    result = node.invoke("Both", x=[np.arange(3), np.arange(2)])
    assert [i.size_bytes for i in result.y] == [24, 16]
    assert result.z[1].numpy("int64").tolist() == [0, 1]
    assert list(result) == ["y", "z"]
    with pytest.raises(AttributeError, match="no set 'yy'"):
        _ = result.yy


def test_a_function_can_be_called_by_its_name(node: Node) -> None:
    assert node.invoke("F", a="text").b.text() == "text"
    assert node.invoke("F", a=None).b is None


def test_signatures_know_the_types_of_producers(node: Node) -> None:
    typed = FunctionDocument(
        "Typed", ("a: int64",), ("b: float32[2]",), code=(CodeDocument("null"),)
    )
    text = (
        "function Typed(a)=>(b); composition UsesTyped(x)=>(y, x) { Typed(a = all x) => (y = b); }"
    )
    outer = "composition Outer(x)=>(z) { UsesTyped(x = all x) => (z = y); }"
    node.register(RegistrationDocument(functions=(typed,), compositions=(text, outer)))
    signature = node.signature("UsesTyped")
    assert signature.inputs[0].dtype == "int64"
    assert [(s.name, s.dtype, s.shape) for s in signature.outputs] == [
        ("y", "float32", (2,)),
        ("x", "int64", None),
    ]
    assert node.signature("Outer").outputs[0].dtype == "float32"


def test_async_from_any_loop(node: Node) -> None:
    async def several() -> list[bytes]:
        results = await asyncio.gather(*(node.invoke_async("F", a=b"%d" % i) for i in range(50)))
        return [r.b.bytes() for r in results]

    assert asyncio.run(several()) == [b"%d" % i for i in range(50)]


def test_a_coroutine_on_the_loop_may_wait_until_engines_are_up() -> None:
    async def main() -> None:
        async with Node(Settings(backends=("process",), engines={"process": 1})) as node:
            assert node.wait_ready(30)
            assert not any(engine.state == "starting" for engine in node.engines())

    asyncio.run(main())


def test_the_node_runs_on_a_loop_that_it_is_given() -> None:
    async def main() -> bytes:
        async with Node(Settings(backends=("null",))) as node:
            node.register(RegistrationDocument(functions=(function("F"),)))
            data: bytes = (await node.invoke_async("F", a=b"here")).b.bytes()
            return data

    assert asyncio.run(main()) == b"here"


def test_a_submitted_deadline_may_be_any_number(gate: GateDriver, tmp_path: Path) -> None:
    """It is stored."""
    with Node(Settings(backends=("null",), catalog=f"sqlite:{tmp_path}"), [gate]) as node:
        node.register(DOCUMENT)
        handle = node.submit("F", deadline_s=cast(float, np.float32(30)), a=b"here")
        assert handle.result(timeout_s=30).b.bytes() == b"here"


def test_many_threads_at_once(node: Node) -> None:
    def call(i: int) -> bool:
        return bool(node.invoke("Both", x=[b"%d" % i] * 20).z[19].data == b"%d" % i)

    with ThreadPoolExecutor(6) as pool:
        assert all(pool.map(call, range(200)))


def test_wrong_calls_say_what_is_wrong(node: Node) -> None:
    with pytest.raises(InvalidInput, match="missing: x"):
        node.invoke("Both")
    with pytest.raises(InvalidInput, match="did you mean 'x'"):
        node.invoke("Both", x=b"", xx=b"")
    with pytest.raises(Unknown, match="did you mean 'Both'"):
        node.invoke("Botth", x=b"")
    with pytest.raises(Unknown, match="version 9; it has version"):
        node.invoke("Both", version=9, x=b"")
    with pytest.raises(Unknown, match="version 9; it has version"):
        node.remove(CompositionRecord, "Both", 9)
    with pytest.raises(InvalidInput, match="an item's name is an int, not a text"):
        node.invoke("F", a=Item(cast(str, 5), 0, b"x"))
    for deadline_s in (-1, 0, 1e9, 10**400, math.nan, np.float32(-1), "5", b"5", True, [1]):
        wrong = cast(float, deadline_s)
        with pytest.raises(InvalidInput, match=r"deadline_s: .* not a positive number of seconds"):
            node.invoke("Both", deadline_s=wrong, x=b"")
    for deadline_s in (30, np.float32(30), np.int64(30), Fraction(61, 2)):
        right = cast(float, deadline_s)
        assert node.invoke("Both", deadline_s=right, x=b"right").z.bytes() == b"right"
    assert node.invoke("F", a=b"still").b.bytes() == b"still"


def test_a_deadline_ends_running_and_waiting_instances(node: Node, gate: GateDriver) -> None:
    with pytest.raises(DeadlineExceeded):
        node.invoke("Gates", x=[b"1", b"2", b"3"], deadline_s=0.05)
    wait_until(lambda: len(gate.seen.cancelled) == 1)
    assert node.info().waiting == 0
    gate.gate.open(3)
    assert len(node.invoke("Gates", x=[b"1", b"2", b"3"]).y) == 3


def test_cancelling_the_caller_cancels_the_invocation(node: Node, gate: GateDriver) -> None:
    async def main() -> None:
        call = asyncio.ensure_future(node.invoke_async("Gates", x=[b"1", b"2"]))
        await asyncio.to_thread(gate.gate.entered)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call

    asyncio.run(main())
    wait_until(lambda: len(gate.seen.cancelled) == 1)
    wait_until(lambda: node.info().running == 0)


def test_more_than_the_limit_is_refused_and_nothing_is_lost(node: Node, gate: GateDriver) -> None:
    with ThreadPoolExecutor(8) as pool:
        calls = [pool.submit(node.invoke, "Gates", x=[b"x"]) for _ in range(8)]
        assert gate.gate.entered()
        while node.info().running < 8:
            pass
        with pytest.raises(Overloaded) as caught:
            node.invoke("F", a=b"")
        assert (caught.value.waiting, caught.value.limit) == (8, 8)
        gate.gate.open(8)
        assert [c.result().y.bytes() for c in calls] == [b"x"] * 8


def test_a_bug_in_an_engine_ends_one_call(node: Node, gate: GateDriver) -> None:
    gate.gate.open(2)
    with pytest.raises(InternalError, match="KeyError"):
        node.invoke("Bug", a=b"")
    assert node.invoke("Gate", a=b"next").b.bytes() == b"next"


def test_a_pure_call_is_run_again_once_if_its_engine_died(node: Node, gate: GateDriver) -> None:
    gate.gate.open(10)
    gate.behind = Failures(EngineDied("gate:0", "it was killed"), echo)
    assert node.invoke("Gate", a=b"again").b.bytes() == b"again"
    gate.behind = Failures(EngineDied("gate:0", "it was killed"), echo, count=2)
    with pytest.raises(Faulted) as caught:
        node.invoke("Gate", a=b"")
    assert isinstance(caught.value.__cause__, EngineDied)
    assert node.invoke("Gate", a=b"after").b.bytes() == b"after"


def test_failures_carry_application_and_cause(node: Node) -> None:
    failing = FunctionDocument(
        "Bad", ("a",), ("b",), code=(CodeDocument("null", options={"fail": "no luck"}),)
    )
    text = "function Bad(a)=>(b); composition UsesBad(x)=>(y) { Bad(a = keyed x) => (y = b); }"
    node.register(RegistrationDocument(functions=(failing,), compositions=(text,)))
    with pytest.raises(ApplicationFailed) as caught:
        node.invoke("UsesBad", x=b"")
    assert isinstance(caught.value.root, Raised)
    assert caught.value.status == 422
    assert "UsesBad.Bad (instance 0, key 0)" in str(caught.value)


def test_closing_ends_what_runs() -> None:
    gate = GateDriver()
    with ThreadPoolExecutor(1) as pool:
        with Node(Settings(backends=("null",)), [gate]) as node:
            node.register(DOCUMENT)
            call = pool.submit(node.invoke, "Gates", x=[b"1", b"2"])
            assert gate.gate.entered()
        with pytest.raises(Cancelled, match="shutting down"):
            call.result()
    with pytest.raises(Cancelled, match="not running"):
        node.invoke("F", a=b"")
    node.close()


def test_a_backend_that_does_not_work_says_why() -> None:
    broken = GateDriver()
    broken.script.start = Failures(BackendUnavailable("gate", "no hinges", "buy some"), id)
    with Node(Settings(backends=("null",)), [broken]) as node:
        node.register(DOCUMENT)
        with pytest.raises(ApplicationFailed) as caught:
            node.invoke("Gates", x=[b"1", b"2"])
        assert isinstance(caught.value.root, BackendUnavailable)
        assert "buy some" in str(caught.value)
        assert node.invoke("F", a=b"fine").b.bytes() == b"fine"
        assert "no hinges" in next(e.reason for e in node.engines() if e.backend == "gate")


def test_registration_is_all_or_nothing_and_idempotent(node: Node) -> None:
    before = node.records()
    again = node.register(DOCUMENT)
    assert {r.version for r in again} == {1}
    with pytest.raises(InvalidComposition):
        node.register(
            RegistrationDocument(
                functions=(function("New"),), compositions=("composition C(x)=>(y) {}",)
            )
        )
    assert node.records() == before


def test_versions_live_side_by_side(node: Node) -> None:
    second = RegistrationDocument(functions=(function("F", inputs="a", outputs="b", main="v2"),))
    (registered,) = node.register(second)
    assert registered.version == 2
    assert node.versions(FunctionSpec, "F") == [1, 2]
    assert node.invoke("F", version=1, a=b"old").b.bytes() == b"old"
    node.remove(FunctionSpec, "F", 2)
    assert node.signature("F").version == 1


def test_a_new_version_may_not_break_a_composition(node: Node) -> None:
    with pytest.raises(Conflict, match=r"Both|Gates"):
        node.register(RegistrationDocument(functions=(function("F", inputs="a more"),)))
    with pytest.raises(Conflict, match="uses it"):
        node.remove(FunctionSpec, "F")
    node.remove(CompositionRecord, "Both")
    with pytest.raises(Unknown):
        node.invoke("Both", x=b"")


def test_recursion_over_registrations_is_refused(node: Node) -> None:
    first = "composition Inner(x)=>(y) { F(a = all x) => (y = b); }"
    second = "composition Outer(x)=>(y) { Inner(x = all x) => (y = y); }"
    node.register(RegistrationDocument(compositions=(first, second)))
    loop = "composition Inner(x)=>(y) { Outer(x = all x) => (y = y); }"
    with pytest.raises(InvalidComposition, match="Inner -> Outer -> Inner"):
        node.register(RegistrationDocument(compositions=(loop,)))


def test_bad_declarations_are_all_reported(node: Node) -> None:
    bad = FunctionDocument(
        "3x", ("a", "a", "b: floot32", "c: int32[0]"), ("o",), static={"zz": {"i": "x"}}
    )
    with pytest.raises(InvalidFunction) as caught:
        node.register(RegistrationDocument(functions=(bad,)))
    codes = {p.code for p in caught.value.problems}
    expected = {"bad-name", "duplicate-set", "bad-dtype", "bad-shape", "unknown-set", "no-code"}
    assert codes == expected


def test_an_unknown_format_names_the_known_ones(node: Node) -> None:
    with pytest.raises(InvalidFunction, match="did you mean 'gate'"):
        node.register(RegistrationDocument(functions=(function("G", "gates"),)))


def test_a_format_without_an_engine_is_an_error_of_the_call() -> None:
    settings = Settings(backends=("null",), engines={"gate": 0})
    with Node(settings, [GateDriver()]) as node:
        node.register(DOCUMENT)
        with pytest.raises(NoEngine, match="this node runs null"):
            node.invoke("Gate", a=b"")


def test_contexts_go_back_when_results_are_dropped(node: Node) -> None:
    context = node.acquire(100_000)
    view = context.write(0, b"z" * 100_000)
    result = node.invoke("F", a=view)
    del context, view
    assert node.info().arena.contexts == 1
    array = result.b.numpy()
    del result
    assert node.info().arena.contexts == 1
    del array
    gc.collect()
    assert node.info().arena.contexts == 0
    assert node.info().arena.used_bytes == 0


def test_traces_and_metrics_tell_what_happened(node: Node) -> None:
    outcome = node.invoke_sets("Both", {"x": None})
    assert outcome.trace.outcome == "ok"
    outcome = node.invoke_sets("F", {"a": None})
    assert [(s.name, s.track) for s in outcome.trace.spans] == [("F", "null")]
    assert b'"traceEvents"' in (node.trace(outcome.id) or b"")
    assert node.trace("nonsense") is None
    assert b'dandelion_invocations_total{outcome="ok",tenant="default"} 2.0' in node.metrics()


def test_results_are_kept_by_content_for_functions_that_opt_in() -> None:
    null = (CodeDocument("null"),)
    cached = FunctionDocument("Cached", ("a",), ("b",), code=null, cache=True)
    fan = "function Cached(a)=>(b); composition Fan(x)=>(y) { Cached(a = each x) => (y = b); }"
    with Node(Settings(backends=("null",), cache_bytes=3 * 8192)) as node:
        node.register(RegistrationDocument(functions=(cached,), compositions=(fan,)))
        assert node.invoke("Cached", a=b"1").b.bytes() == b"1"
        assert node.invoke("Cached", a=b"1").b.bytes() == b"1"
        assert node.invoke("Cached", a={"other name": b"1"}).b[0].name == "other name"
        counts = node.info().cache
        assert (counts.hits, counts.misses) == (1, 2)
        assert len(node.invoke("Fan", x=[b"%d" % i for i in range(10)]).y) == 10
        counts = node.info().cache
        assert counts.evictions > 0
        assert counts.bytes <= 3 * 8192
        node.remove(CompositionRecord, "Fan")
        node.remove(FunctionSpec, "Cached")
        assert node.info().cache.bytes == 0


def test_what_begins_together_runs_at_the_end_of_the_call() -> None:
    ended: list[str] = []
    begun: list[Invocation] = []

    async def begin_three() -> None:
        async with Node(Settings(backends=("null",))) as node:
            await asyncio.to_thread(node.register, DOCUMENT_OF_F)
            inputs = {"a": item_set("a", b"x")}

            def begin() -> Invocation:
                return node.begin("F", inputs, ended=lambda one: ended.append(one.id))

            def begin_two() -> None:
                begun.extend((begin(), begin()))
                with pytest.raises(Unknown):
                    node.begin("G", inputs, ended=lambda one: ended.append(one.id))
                node.cancel(begun[1], Cancelled("it left"))
                assert not ended
                assert not begun[0].ended

            def begin_and_fail(error: Exception) -> None:
                begin()
                raise error

            node.gather(begin_two)
            first, gone = begun
            assert ended == [gone.id, first.id]
            assert first.error is None
            assert isinstance(gone.error, Cancelled)
            with pytest.raises(ZeroDivisionError):  # what began runs all the same
                node.gather(begin_and_fail, ZeroDivisionError())
            assert len(ended) == 3
            assert begin().id == ended[-1]

    asyncio.run(begin_three())


def test_functions_of_the_platform_are_not_removed() -> None:
    with Node(Settings(backends=("http",), arena_bytes=1 << 20)) as small:
        with pytest.raises(Conflict, match="a function of the platform"):
            small.remove(FunctionSpec, "HTTP")
        with pytest.raises(Unknown, match="no function 'HTPP'"):
            small.remove(FunctionSpec, "HTPP")
