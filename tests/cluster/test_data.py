"""Large sets between nodes: pulled in pieces, without copies that are not needed, and dropped."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import Iterator

import pytest

from dandelion.cluster import Cluster
from dandelion.data import Item, ItemSet
from dandelion.driver import Call, Engine, InstanceSets
from dandelion.errors import ContextFull, DandelionError
from dandelion.node import Node
from dandelion.testing import wait_until
from tests.cluster.clusters import function, nodes, scripted, text_of

MIB = 1 << 20
TEXT = """
function make(x) => (y);
function head(x) => (y);
composition pass(x) => (y) { make(x = all x) => (a = y); head(x = all a) => (y = y); }
composition each_head(x) => (y) { head(x = each x) => (y = y); }
"""


def run(engine: Engine, call: Call) -> InstanceSets:
    """``make`` gives so many MiB as the input says; ``head`` their sum and length; else echo."""
    given = call.inputs[0]
    assert given is not None
    name = call.function.spec.name
    if name == "make":
        size = int(bytes(given.items[0].data)) * MIB
        context = call.domain.acquire(size)
        context.view[:] = bytes([7]) * size
        return (ItemSet("y", (Item("big", 0, context.read(0, size)),)),)
    if name == "head":
        threading.Event().wait(0.002)
        items = [
            Item(i.name, i.key, f"{sum(bytes(i.data[:100]))} {i.size_bytes}".encode())
            for i in given
        ]
        return (ItemSet("y", tuple(items)),)
    return (ItemSet("y", given.items),)


@pytest.fixture(scope="module")
def two() -> Iterator[list[Node]]:
    """A node without engines, and one with two."""
    with nodes([[], [scripted(run, 2)]]) as made:
        made[1].register(TEXT, function("make"), function("head"), function("echo"))
        wait_until(lambda: len(made[0].records()) == 5)
        yield made


def cluster_of(node: Node) -> Cluster:
    assert isinstance(node._parts.cluster, Cluster)
    return node._parts.cluster


def received(node: Node) -> int:
    info = node.cluster()
    assert info is not None
    return info.received_bytes


def sent(node: Node) -> int:
    info = node.cluster()
    assert info is not None
    return info.sent_bytes


@pytest.mark.parametrize("size", [0, 1, 65_536, 65_537, 300_000, 3 * MIB + 11])
def test_sets_of_all_sizes_come_back_as_they_were(two: list[Node], size: int) -> None:
    data = bytes(range(256)) * (size // 256) + bytes(size % 256)
    found = two[0].invoke("echo", x=ItemSet("x", (Item("a", 3, data), Item("b", 4, b"small"))))
    assert found["y"] is not None
    assert [(i.name, i.key, bytes(i.data)) for i in found["y"]] == [
        ("a", 3, data),
        ("b", 4, b"small"),
    ]


def test_many_items_of_middle_size(two: list[Node]) -> None:
    items = tuple(Item(str(n), n, bytes([n % 251]) * 3000) for n in range(400))
    found = two[0].invoke("echo", x=ItemSet("x", items))["y"]
    assert found is not None
    assert [(i.name, i.key, bytes(i.data)) for i in found] == [
        (i.name, i.key, bytes(i.data)) for i in items
    ]


def test_an_input_of_several_calls_is_sent_once(two: list[Node]) -> None:
    data = memoryview(bytes(4 * MIB))
    items = tuple(Item(str(n), n, data) for n in range(6))
    before = sent(two[0])
    found = two[0].invoke("each_head", x=ItemSet("x", items))["y"]
    assert found is not None
    assert {i.text() for i in found} == {f"0 {4 * MIB}"}
    moved = sent(two[0]) - before
    assert 4 * MIB <= moved < 18 * MIB  # two engines: those under way together share it


def test_what_a_node_made_is_not_sent_back_to_it(two: list[Node]) -> None:
    sent_before, received_before = sent(two[0]), received(two[0])
    assert text_of(two[0].invoke("pass", x=b"8")["y"]) == f"700 {8 * MIB}"
    assert received(two[0]) - received_before >= 8 * MIB  # the owner has a copy of every set
    assert sent(two[0]) - sent_before < MIB


def test_what_was_held_for_another_node_is_dropped(two: list[Node]) -> None:
    found = two[0].invoke("make", x=b"4")
    link = cluster_of(two[1])._in_links[cluster_of(two[0]).name]
    assert len(link.exchange.regions) >= 1  # while the copy is in use
    del found
    gc.collect()
    wait_until(lambda: len(link.exchange.regions) == 0, 2)
    for node in two:
        wait_until(lambda node=node: node.info().arena.used_bytes == 0)  # type: ignore[misc]


def test_an_original_that_was_dropped_is_sent_again(two: list[Node]) -> None:
    found = two[0].invoke("make", x=b"4")["y"]
    link = cluster_of(two[1])._in_links[cluster_of(two[0]).name]
    done = threading.Event()

    def drop() -> None:
        link.exchange.regions.clear()
        done.set()

    two[1]._runtime.post(drop)
    assert done.wait(20)
    assert text_of(two[0].invoke("head", x=found)["y"]) == f"700 {4 * MIB}"


def test_a_result_without_room_is_a_typed_error_and_leaves_nothing(two: list[Node]) -> None:
    with pytest.raises(DandelionError) as caught:
        two[0].invoke("make", x=b"100")  # the arena has 64 MiB
    assert isinstance(caught.value, ContextFull)
    assert text_of(two[0].invoke("pass", x=b"1")["y"]) == f"700 {MIB}"
    wait_until(lambda: all(node.info().arena.used_bytes == 0 for node in two))


def test_a_cancelled_call_ends_on_the_other_node() -> None:
    gate = threading.Event()
    began = threading.Event()

    def wait(engine: Engine, call: Call) -> InstanceSets:
        began.set()
        gate.wait(20)
        return (call.inputs[0],)

    async def leave(node: Node) -> None:
        call = asyncio.ensure_future(node.invoke_async("slow", x=b"x"))
        assert await asyncio.to_thread(began.wait, 20)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call

    with nodes([[], [scripted(wait)]]) as made:
        made[1].register(function("slow"))
        wait_until(lambda: len(made[0].records()) == 1)
        asyncio.run(leave(made[0]))
        gate.set()
        wait_until(lambda: made[1].info().running == 0)
        assert text_of(made[0].invoke("slow", x=b"y")["y"]) == "y"
