"""Calls on other nodes: three nodes in this process, over loopback."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from dandelion.data import Item, ItemSet
from dandelion.driver import Call, Engine, InstanceSets
from dandelion.errors import Raised
from dandelion.node import Node
from dandelion.testing import wait_until
from tests.cluster.clusters import alive, function, nodes, scripted, text_of

FAN = """
function work(x) => (y);
composition fan(x) => (y) { work(x = each x) => (y = y); }
composition chain(x) => (y) {
    work(x = each x) => (a = y);
    work(x = all a) => (y = y);
}
"""


class Workers:
    """Backends of three nodes, whose calls wait until `wanted` of them run at once."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.ran: dict[str, int] = {}

    def driver(self, node: str):  # type: ignore[no-untyped-def]
        def run(engine: Engine, call: Call) -> InstanceSets:
            with self.lock:
                self.ran[node] = self.ran.get(node, 0) + 1
            if call.inputs[0] is None:
                return (None,)
            items = tuple(Item(i.name, i.key, bytes(i.data).upper()) for i in call.inputs[0].items)
            if items[0].data == b"BAD":
                raise Raised(call.function.spec.name, "it is bad")
            threading.Event().wait(0.003)
            return (ItemSet("y", items),)

        return scripted(run)


@pytest.fixture(scope="module")
def workers() -> Workers:
    return Workers()


@pytest.fixture(scope="module")
def cluster(workers: Workers) -> Iterator[list[Node]]:
    with nodes([[workers.driver(name)] for name in "abc"]) as made:
        made[0].register(FAN, function("work"))
        for node in made:
            wait_until(lambda node=node: len(node.records()) == 3)
        yield made


def test_each_sees_the_others(cluster: list[Node]) -> None:
    for node in cluster:
        assert alive(node) == 2
        info = node.info().cluster
        assert info is not None
        assert info.majority
        assert sum(m.state == "self" for m in info.members) == 1


def test_instances_run_on_all_nodes(cluster: list[Node], workers: Workers) -> None:
    workers.ran.clear()
    items = [Item(f"i{n}", n, b"text %d" % n) for n in range(40)]
    found = cluster[1].invoke("fan", x=ItemSet("x", tuple(items)))["y"]
    assert found is not None
    got = {(i.name, i.key, bytes(i.data)) for i in found}
    assert got == {(i.name, i.key, bytes(i.data).upper()) for i in items}
    assert sum(workers.ran.values()) == 40
    assert set(workers.ran) == {"a", "b", "c"}
    info = cluster[1].info().cluster
    assert info is not None
    assert info.sent_calls >= 10


def test_any_node_answers(cluster: list[Node]) -> None:
    for node in cluster:
        assert text_of(node.invoke("chain", x=b"text")["y"]) == "TEXT"
