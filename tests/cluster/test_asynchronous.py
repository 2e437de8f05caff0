"""Asynchronous invocations in a cluster: any node answers, and nodes go on for lost ones."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from dandelion.asynchronous.failures import KeyReused
from dandelion.asynchronous.records import KeptState
from dandelion.cluster import Cluster, ClusterSettings
from dandelion.data import ItemSet
from dandelion.driver import Call, Engine, InstanceSets
from dandelion.errors import Cancelled, CatalogUnavailable, Unknown
from dandelion.node import Node
from dandelion.testing import wait_until
from tests.cluster.clusters import SECRET, alive, function, nodes, scripted, settings, text_of
from tests.cluster.test_partition import Cable


class Gate:
    """Calls of `run` wait until it is opened."""

    def __init__(self, limit_s: float = 20) -> None:
        self.limit_s = limit_s
        self.opened = threading.Event()
        self.seen: list[bytes] = []

    def run(self, engine: Engine, call: Call) -> InstanceSets:
        given = call.inputs[0]
        assert given is not None
        self.seen.append(bytes(given.items[0].data))
        self.opened.wait(self.limit_s)
        return (ItemSet("y", given.items),)


def list_all(node: Node) -> list[str]:
    page = node.kept.blocking(node.kept.list(tenant="default"))
    return [view.id for view in page.invocations]


def test_any_node_answers_for_all() -> None:
    gate = Gate()
    with nodes([[scripted(gate.run, 4)] for _ in range(3)]) as made:
        a, b, c = made
        a.register(function("work"))
        for node in made:
            wait_until(lambda node=node: len(node.records()) == 1)  # type: ignore[misc]
        large = bytes(range(256)) * 8192 * 5  # in two parts between nodes
        first = a.submit("work", x=large, key="one")
        second = a.submit("work", x=b"second")
        assert b.submitted(first.id).state() in (KeptState.WAITING, KeptState.RUNNING)
        assert b.submit("work", x=large, key="one").id == first.id
        with pytest.raises(KeyReused):
            c.submit("work", x=b"other", key="one")
        assert list_all(a) == list_all(b) == list_all(c) == [second.id, first.id]
        c.submitted(second.id).cancel()
        with pytest.raises(Cancelled):
            b.submitted(second.id).result(20)
        with ThreadPoolExecutor(1) as pool:
            waits = pool.submit(b.submitted(first.id).result, 20)
            gate.opened.set()
            found = waits.result(20)["y"]
        assert found is not None
        assert bytes(found.items[0].data) == large
        view = c.submitted(first.id).view()
        assert view == a.submitted(first.id).view()
        b.submitted(first.id).cancel()
        for node in made:
            with pytest.raises(Unknown):
                node.submitted(first.id).view()
            assert list_all(node) == [second.id]


def test_pages_are_whole_after_a_node_is_lost() -> None:
    gate = Gate()
    gate.opened.set()
    with nodes([[scripted(gate.run, 8)] for _ in range(3)]) as made:
        a, b, c = made
        a.register(function("work"))
        for node in made:
            wait_until(lambda node=node: len(node.records()) == 1)  # type: ignore[misc]
        submitted = [made[n % 3].submit("work", x=b"%d" % n).id for n in range(12)]
        c.close()
        wait_until(lambda: len(list_all(a)) == len(submitted))
        for node in (a, b):
            pages, after = [], ""
            while True:
                page = node.kept.blocking(node.kept.list(tenant="default", after=after, limit=5))
                pages += [view.id for view in page.invocations]
                if page.after is None:
                    break
                after = page.after
            assert pages == submitted[::-1]


def test_invocations_of_a_node_that_is_cut_off_end_once(monkeypatch: pytest.MonkeyPatch) -> None:
    gates = [Gate() for _ in range(3)]
    with nodes([[scripted(gate.run, 8)] for gate in gates]) as made:
        a, b, c = made
        a.register(function("work"))
        for node in made:
            wait_until(lambda node=node: len(node.records()) == 1)  # type: ignore[misc]
        handles = [c.submit("work", x=b"%d" % number) for number in range(20)]
        wait_until(lambda: bool(gates[2].seen))
        cable = Cable(c, monkeypatch)
        cable.cut()
        wait_until(lambda: alive(c) == 0)
        with pytest.raises(CatalogUnavailable, match="minority"):
            c.submit("work", x=b"new")
        gates[2].opened.set()  # what it runs ends there, and nobody may know
        for gate in gates[:2]:
            gate.opened.set()
        texts = [text_of(a.submitted(h.id).result(20)["y"]) for h in handles]
        assert texts == [str(number) for number in range(20)]
        assert not any(h.state().has_ended for h in handles)
        cable.repair()
        wait_until(lambda: alive(a) == alive(b) == alive(c) == 2)
        for handle in handles:
            there = a.submitted(handle.id).view()
            wait_until(lambda h=handle, v=there: h.view() == v)  # type: ignore[misc]
            assert there.state is KeptState.SUCCEEDED
            assert there == b.submitted(handle.id).view()
        assert sorted(list_all(c)) == sorted(h.id for h in handles)
        assert text_of(c.submit("work", x=b"new").result(20)["y"]) == "new"


def test_a_node_alone_goes_on_with_what_it_has(tmp_path: Path) -> None:
    gate = Gate(0.2)
    catalog = f"sqlite:{tmp_path / 'store'}"

    def node() -> Node:
        cluster = Cluster(ClusterSettings("127.0.0.1:0", SECRET))
        return Node(settings(catalog=catalog), [scripted(gate.run)], cluster)

    with node() as first:
        first.register(function("work"))
        ids = [first.submit("work", x=b"%d" % number).id for number in range(3)]
        wait_until(lambda: bool(gate.seen))
    gate.opened.set()
    with node() as again:
        wait_until(lambda: len(list_all(again)) == 3)
        texts = [text_of(again.submitted(id_).result(20)["y"]) for id_ in ids]
        assert texts == ["0", "1", "2"]
    with node() as third:
        wait_until(lambda: len(list_all(third)) == 3)
        assert text_of(third.submitted(ids[0]).result(20)["y"]) == "0"


def test_a_node_that_comes_back_does_not_run_what_others_took_over(tmp_path: Path) -> None:
    gates = [Gate(0.2), Gate(), Gate(), Gate()]
    catalogs = [f"sqlite:{tmp_path / str(number)}" for number in range(3)]
    with nodes([[scripted(gate.run)] for gate in gates[:3]], catalogs=catalogs) as made:
        first, b, c = made
        first.register(function("work"))
        for node in made:
            wait_until(lambda node=node: len(node.records()) == 1)  # type: ignore[misc]
        ids = [first.submit("work", x=b"%d" % number).id for number in range(5)]
        info = first.cluster()
        assert info is not None
        voters = tuple(member.name for member in info.members)
        first.close()
        for gate in gates:
            gate.opened.set()
        texts = [text_of(b.submitted(id_).result(20)["y"]) for id_ in ids]
        assert texts == [str(number) for number in range(5)]
        cluster = Cluster(ClusterSettings(info.node, SECRET, peers=voters))
        with Node(settings(catalog=catalogs[0]), [scripted(gates[3].run)], cluster) as again:
            wait_until(lambda: alive(again) == alive(b) == alive(c) == 2)
            wait_until(lambda: sorted(list_all(again)) == sorted(ids))
            views = [again.submitted(id_).view() for id_ in ids]
            assert views == [b.submitted(id_).view() for id_ in ids]
            assert gates[3].seen == []
            infos = [one for one in (node.cluster() for node in (b, c, again)) if one is not None]
            assert sum(one.taken_over for one in infos) == 5
            assert [one.kept_copies for one in infos] == [5, 5, 5]
