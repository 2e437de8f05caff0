"""Calls on other nodes: three nodes in this process, over loopback."""

from __future__ import annotations

import dataclasses
import json
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from dandelion.call_logs import PrintedLine
from dandelion.cli.main import main
from dandelion.cluster import Cluster
from dandelion.data import Item, ItemSet
from dandelion.driver import Call, Driver, Engine, InstanceSets
from dandelion.errors import ApplicationFailed, Raised, TooLarge, root_of
from dandelion.frontend.server import BackgroundServer
from dandelion.function import Limits
from dandelion.node import Node
from dandelion.settings import TenantSettings
from dandelion.testing import wait_until
from tests.cluster.clusters import alive, function, nodes, scripted, settings, text_of
from tests.loopback import own_host

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

    def driver(self, node: str) -> Driver:
        def run(engine: Engine, call: Call) -> InstanceSets:
            with self.lock:
                self.ran[node] = self.ran.get(node, 0) + 1
            if call.inputs[0] is None:
                return (None,)
            items = tuple(Item(i.name, i.key, bytes(i.data).upper()) for i in call.inputs[0].items)
            call.printed = (PrintedLine("stdout", f"on {node}"),)
            if call.function.spec.name == "many":
                names = [f"item with a long name {n}" for n in range(int(items[0].data))]
                return (ItemSet("y", tuple(Item(name, 0, b"a") for name in names)),)
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


@pytest.fixture(scope="module")
def remote() -> Iterator[list[Node]]:
    """A node without engines for its functions, and another one."""
    with nodes([[], [Workers().driver("b")]]) as made:
        made[1].register(FAN, function("work"), function("plain", code="work"))
        made[1].register(function("many"))
        made[1].register(function("work"), tenant="t")
        wait_until(lambda: len(made[0].records("t")) == 1)
        yield made


def test_errors_come_back_as_they_were(remote: list[Node]) -> None:
    with pytest.raises(Raised) as caught:
        remote[0].invoke("plain", x=b"bad")
    assert caught.value.function == "plain"
    assert caught.value.invocation
    with pytest.raises(ApplicationFailed) as failed:
        remote[0].invoke("fan", x=[b"good", b"bad"])
    assert isinstance(root_of(failed.value), Raised)


def test_the_owner_has_trace_lines_and_counts(remote: list[Node]) -> None:
    before = remote[1].info().invocations
    result = remote[0].invoke_sets("plain", {"x": ItemSet("x", (Item("a", 0, b"a"),))})
    stages = [name for call in result.trace.calls for name in call.stages]
    assert any(f"@{own_host()}:" in name for name in stages)
    lines = remote[0].logs(invocation=result.id).lines
    assert [line.text for line in lines] == ["on b"]
    assert remote[1].logs().lines == ()
    assert remote[1].info().invocations == before
    assert remote[1].cluster().served_calls > 0  # type: ignore[union-attr]


def test_tenants_have_their_own_functions_and_quotas_there_too(remote: list[Node]) -> None:
    assert text_of(remote[0].invoke("work", x=b"own", tenant="t")["y"]) == "OWN"
    remote[1].set_tenant("t", TenantSettings(queue_length=1, calls=1))
    with ThreadPoolExecutor(8) as pool:
        found = [pool.submit(remote[0].invoke, "work", x=b"own", tenant="t") for _ in range(8)]
        assert [text_of(one.result()["y"]) for one in found] == ["OWN"] * 8


def test_empty_sets_and_names(remote: list[Node]) -> None:
    assert remote[0].invoke("plain", x=None)["y"] is None
    item = Item("n\u00e4me", 2**32 - 1, b"a")
    found = remote[0].invoke("plain", x=ItemSet("x", (item,)))["y"]
    assert found is not None
    assert (found[0].name, found[0].key) == (item.name, item.key)


def test_calls_with_too_many_items_are_refused_and_the_next_ones_work(
    remote: list[Node], monkeypatch: pytest.MonkeyPatch
) -> None:
    items = tuple(Item(f"item with a long name {n}", n, b"a") for n in range(500))
    with monkeypatch.context() as patch:
        patch.setattr("dandelion.cluster.frames.CONTROL_LIMIT_BYTES", 5000)
        with pytest.raises(TooLarge):
            remote[0].invoke("plain", x=ItemSet("x", items))
        with pytest.raises(TooLarge):  # as outputs
            remote[0].invoke("many", x=b"500")
        with pytest.raises(TooLarge):  # of which a region would be held
            remote[0].invoke("many", x=b"70000")
        (link,) = remote[1]._parts.cluster._in_links.values()  # type: ignore[union-attr]
        assert not len(link.exchange.regions)
        assert text_of(remote[0].invoke("plain", x=b"a")["y"]) == "A"
    assert len(remote[0].invoke("plain", x=ItemSet("x", items))["y"] or ()) == 500
    wait_until(lambda: all(m.sent == m.served == 0 for m in remote[0].cluster().members))  # type: ignore[union-attr]


def test_limits_of_the_node_that_runs_a_call_hold() -> None:
    seen: list[float] = []

    def run(engine: Engine, call: Call) -> InstanceSets:
        seen.append(call.limit_s)
        return (call.inputs[0],)

    with nodes([[], [scripted(run)]]) as made:
        made[1].register(function("work"))
        wait_until(lambda: len(made[0].records()) == 1)
        side = made[1]._parts.cluster
        assert isinstance(side, Cluster)
        side.parts = dataclasses.replace(side.parts, caps=Limits(wall_s=7.0))
        assert text_of(made[0].invoke("work", x=b"a")["y"]) == "a"
    assert seen == [7.0]


def test_status_on_the_command_line(remote: list[Node], capsys: pytest.CaptureFixture[str]) -> None:
    with BackgroundServer(remote[0]) as server:
        assert main(["cluster", "status", "--url", server.url]) == 0
        shown = capsys.readouterr().out
        assert "alive" in shown
        assert main(["cluster", "status", "--json", "--url", server.url]) == 0
        assert json.loads(capsys.readouterr().out)["majority"] is True
    with Node(settings()) as alone, BackgroundServer(alone) as server:
        assert main(["cluster", "status", "--url", server.url]) == 0
        assert "no cluster" in capsys.readouterr().out
