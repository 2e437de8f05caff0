"""Calls that are joined: their inputs, their outputs, and how a process runs them."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dandelion.data import Item, ItemSet, Origin, SetSpec
from dandelion.dispatcher import Run
from dandelion.dispatcher.plan import direct_plan
from dandelion.driver import Demand, InstanceSets
from dandelion.engine_process.messages import Plan
from dandelion.engine_process.messages import Run as RunRequest
from dandelion.errors import BadOutput, Cancelled, ContextFull, EngineDied, Raised
from dandelion.executors.batches import divided, joined, joined_bytes
from dandelion.executors.staging import INLINE_COPY_BYTES
from dandelion.function import Batching, FunctionSpec
from dandelion.memory import HeapDomain, SharedDomain, TransferCounts, Transfers
from dandelion.scheduler import CallState, Flow
from dandelion.scheduler.batches import Batches
from tests.executors.harness import Bench, call_of, flow_of

SPEC = FunctionSpec(
    "f",
    (SetSpec("a"), SetSpec("size"), SetSpec("w")),
    (SetSpec("b"), SetSpec("c")),
    batching=Batching(("a", "w")),
)


def run_of(*values: object, name: str = "x", key: int = 0, origin: Origin | None = None) -> Run:
    """Make an instance of `SPEC`; each value is an array, bytes, or None for no set."""
    sets: list[ItemSet | None] = []
    for declared, value in zip(SPEC.inputs, values, strict=True):
        if value is None:
            sets.append(None)
            continue
        item = Item(name, key, value) if isinstance(value, bytes) else Item.of(name, value, key)
        sets.append(ItemSet(declared.name, (item,)))
    [application] = direct_plan(SPEC).applications
    return Run(0, SPEC, tuple(sets), application, 0, origin)


def array_of(item_set: ItemSet | None) -> np.ndarray:
    assert item_set is not None
    return item_set.numpy()


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(st.integers(1, 5), min_size=1, max_size=6), st.integers(1, 3))
def test_what_is_joined_and_divided_is_what_it_was(rows: list[int], columns: int) -> None:
    runs = []
    for number, count in enumerate(rows):
        a = np.full((count, columns), number, np.float32)
        runs.append(run_of(a, b"n", np.arange(count) + number, name=str(number), key=number))
    transfers = Transfers()
    whole = joined(runs, HeapDomain(1 << 20), transfers)
    assert joined_bytes(runs) == transfers.counts().copied_bytes
    assert array_of(whole[0]).shape == (sum(rows), columns)
    assert whole[1] is runs[0].inputs[1]
    assert array_of(whole[2]).tolist() == [
        n + i for n, count in enumerate(rows) for i in range(count)
    ]
    parts = divided(runs, (whole[0], whole[2]))
    for run, part in zip(runs, parts, strict=True):
        for given_set, own in zip((run.inputs[0], run.inputs[2]), part, strict=True):
            assert given_set is not None
            assert own is not None
            assert own.only() == given_set.only()  # bytes, shape, name and key
    assert transfers.counts().copies == 2 * len(rows)  # dividing copies nothing


def test_joining_needs_room() -> None:
    runs = [run_of(np.zeros(100), b"", np.zeros(100)) for _ in range(3)]
    transfers = Transfers()
    with pytest.raises(ContextFull):
        joined(runs, HeapDomain(2000), transfers)
    assert transfers.counts() == TransferCounts()


def test_outputs_may_have_other_rows_but_as_many() -> None:
    runs = [run_of(np.zeros((n, 2)), b"", np.zeros(n)) for n in (1, 3)]
    outputs = (
        ItemSet("b", (Item.of("x", np.arange(8.0).reshape(4, 2)),)),
        ItemSet("c", (Item("other", 7, b"abcdefgh"),)),
    )
    first, second = divided(runs, outputs)
    assert array_of(first[0]).tolist() == [[0, 1]]
    assert array_of(second[0]).shape == (3, 2)
    assert first[1] is not None
    assert (first[1].bytes(), first[1].only().name, first[1].only().key) == (b"ab", "other", 7)
    assert divided(runs, (None, None)) == [(None, None)] * 2


@pytest.mark.parametrize(
    "items",
    [
        (Item.of("x", np.arange(3.0)),),
        (Item.of("x", np.zeros((2, 6), np.uint8)),),
        (Item("x", 0, b"1234"), Item("y", 0, b"1234")),
        (Item("x", 0, b"123"),),
        (Item.of("x", np.float32(3)),),
        (Item("x", 0, np.zeros(3, np.float32).tobytes(), "float32"),),
    ],
)
def test_outputs_that_cannot_be_divided_are_refused(items: tuple[Item, ...]) -> None:
    runs = [run_of(np.zeros((n, 2)), b"", np.zeros(n)) for n in (1, 3)]
    with pytest.raises(BadOutput):
        divided(runs, (ItemSet("b", items), None))


def test_outputs_named_after_an_origin_get_the_name_of_their_own() -> None:
    runs = [
        run_of(b"1234", b"", b"12", name=f"in{n}", origin=Origin(f"of{n}", n)) for n in range(2)
    ]
    outputs = (
        ItemSet("b", (Item("of0", 0, b"12"),)),
        ItemSet("c", (Item("of0", 9, b"12"),)),
    )
    second = divided(runs, outputs)[1]
    assert second[0] is not None
    assert second[1] is not None
    assert (second[0].only().name, second[0].only().key) == ("of1", 1)
    assert (second[1].only().name, second[1].only().key) == ("of1", 9)


def test_outputs_named_after_any_joined_input_get_the_name_of_their_own() -> None:
    runs = []
    for number in range(2):
        a, w = (ItemSet(n, (Item(f"{n}{number}", number, b"1234"),)) for n in "aw")
        runs.append(msgspec.structs.replace(run_of(None, b"", None), inputs=(a, None, w)))
    outputs = (ItemSet("b", (Item("w0", 0, b"12"),)), ItemSet("c", (Item("a0", 0, b"12"),)))
    names = [[given.only().name for given in part if given] for part in divided(runs, outputs)]
    assert names == [["w0", "a0"], ["w1", "a1"]]


# --- in a process -------------------------------------------------------------------------------


@pytest.fixture
def bench() -> Iterator[Bench]:
    bench = Bench()
    engine = bench.executor.engine
    engine.planner = engine.joins = True
    yield bench
    bench.close()


def batching_flow() -> Flow:
    flow = flow_of()
    flow.spec = msgspec.structs.replace(flow.spec, batching=Batching(("a",)))
    flow.functions["x"].spec = flow.spec
    return flow


def batch_of(flow: Flow, *data: bytes) -> CallState:
    members = tuple(call_of(flow, one) for one in data)
    return Batches.batch(members, members[-1].id + 1000)


def placed(request: Plan | RunRequest, arena: SharedDomain) -> bytes:
    [item_set] = request.inputs
    assert item_set is not None
    [item] = item_set.items
    return bytes(arena.map.view[item.offset : item.offset + item.size])


def outputs_of(bench: Bench, batch: CallState) -> list[InstanceSets]:
    bench.loop.until(lambda: batch.id in bench.loop.outputs)
    return divided([call.run for call in batch.members], bench.loop.outputs[batch.id])


def test_a_batch_is_planned_once_for_each_size(bench: Bench) -> None:
    peer = bench.start()
    flow = batching_flow()
    batch = batch_of(flow, b"ab", b"cd")
    bench.executor.send(batch)
    bench.executor.flush()
    [_, plan] = peer.requests()
    assert isinstance(plan, Plan)
    assert placed(plan, bench.arena) == b"abcd"
    peer.planned(plan.call, Demand(4, 10, 1, 256))
    [run] = bench.loop.until(peer.requests)
    assert isinstance(run, RunRequest)
    assert placed(run, bench.arena) == b"abcd"
    assert run.result_bytes == 4
    peer.done(run, b"ABCD")
    parts = outputs_of(bench, batch)
    assert [part[0].bytes() for part in parts if part[0]] == [b"AB", b"CD"]
    again = batch_of(flow, b"12", b"34")
    bench.executor.send(again)
    bench.executor.flush()
    [run] = peer.requests()
    assert isinstance(run, RunRequest)
    peer.done(run, b"....")
    assert len(outputs_of(bench, again)) == 2


def test_a_large_batch_is_joined_by_a_thread(bench: Bench) -> None:
    peer = bench.start()
    half = bytes(INLINE_COPY_BYTES)
    batch = batch_of(batching_flow(), half, half)
    bench.executor.send(batch)
    bench.executor.flush()
    assert peer.requests() == []
    bench.pool.run()
    [_, plan] = bench.loop.until(peer.requests)
    assert isinstance(plan, Plan)
    assert len(placed(plan, bench.arena)) == 2 * len(half)
    peer.fail(plan.call, Raised("f", "no", ""))
    bench.loop.until(lambda: bench.loop.failures)
    assert isinstance(bench.loop.failures[batch.id][0], Raised)


def test_a_batch_that_is_cancelled_while_it_is_planned_is_not_run(bench: Bench) -> None:
    peer = bench.start()
    batch = batch_of(batching_flow(), b"ab", b"cd")
    bench.executor.send(batch)
    bench.executor.flush()
    [_, plan] = peer.requests()
    batch.cancelled = True
    bench.executor.stop(batch)
    assert isinstance(plan, Plan)
    peer.planned(plan.call, Demand(4, 10, 1, 256))
    bench.loop.until(lambda: bench.loop.failures)
    assert isinstance(bench.loop.failures[batch.id][0], Cancelled)
    assert peer.requests() == []


def test_a_process_that_dies_of_planning_a_batch_had_begun_it(bench: Bench) -> None:
    peer = bench.start()
    batch = batch_of(batching_flow(), b"ab", b"cd")
    bench.executor.send(batch)
    bench.executor.flush()
    assert len(peer.requests()) == 2
    peer.die()
    bench.lose()
    [(_, begun)] = bench.loop.losses
    assert isinstance(begun[batch.id], EngineDied)
    assert not bench.loop.failures  # the scheduler takes it back, as all that it has sent
