"""Asynchronous invocations in a cluster when stores, nodes or catalogues do not do their part."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import msgspec
import pytest

from dandelion.asynchronous.records import KeptMark, KeptRecord, KeptRequest, KeptState
from dandelion.asynchronous.store import (
    Drop,
    MemoryKeptStore,
    Part,
    Put,
    StoreStep,
    open_kept_store,
)
from dandelion.asynchronous.stored_sets import encode_sets
from dandelion.cluster import (
    Cluster,
    ClusterSettings,
    departure,
    doors,
    kept_journals,
    kept_takeover,
    questions,
)
from dandelion.cluster.kept_copies import KeptCopies, mark_of
from dandelion.cluster.kept_journals import KeptJournals
from dandelion.cluster.kept_takeover import KeptTakeover
from dandelion.cluster.membership import Membership
from dandelion.cluster.messages import Question, Reply
from dandelion.cluster.questions import Answer, Questions
from dandelion.data import Bytes, Item, ItemSet
from dandelion.driver import Call, Engine, InstanceSets
from dandelion.errors import CatalogUnavailable, DiskFull, Overloaded, Unknown
from dandelion.node import Node
from dandelion.node.invocation import Invocation
from dandelion.node.invoker import Invoker
from dandelion.node.kept_access import NodeKept
from dandelion.testing import wait_until
from tests.cluster.clusters import (
    SECRET,
    alive,
    free_addresses,
    function,
    nodes,
    scripted,
    settings,
    text_of,
)
from tests.cluster.test_asynchronous import Gate, list_all


class _Full(MemoryKeptStore):
    """A store whose disk is full now and then."""

    is_full = False

    def write(self, steps: Sequence[StoreStep]) -> None:
        if self.is_full:
            raise DiskFull("store", "a file", 1, 0)
        super().write(steps)


def _record(id_: str) -> KeptRecord:
    return KeptRecord(id=id_, tenant="t", request=KeptRequest(name="work"))


class _Journals:
    """Journals of the only voter, on a loop of their own."""

    def __init__(self) -> None:
        self.store = _Full()
        self.copies = KeptCopies()
        self.journals = KeptJournals(
            "a:1#life", ["a:1"], self.copies, self.store, lambda ids: None, self._spawn
        )
        self._tasks: list[asyncio.Task[None]] = []

    def _spawn(self, work: Coroutine[None, None, None]) -> None:
        self._tasks.append(asyncio.get_running_loop().create_task(work))

    async def write(self, *steps: StoreStep) -> None:
        for entry in self.journals.write(steps):
            await asyncio.wrap_future(entry.done)


def test_what_a_full_disk_refuses_changes_no_copy() -> None:
    """Else the other voters would drop what was acknowledged, as its holder had it no longer."""

    async def run() -> None:
        made = _Journals()
        await made.write(Put(_record("x"), Part.INPUTS, (b"inputs",)))
        before = made.copies.records["x"]
        made.store.is_full = True
        for step in (Put(_record("x")), Drop("x")):
            with pytest.raises(DiskFull):
                await made.write(step)
            assert made.copies.records == {"x": before}
        with pytest.raises(DiskFull):
            await made.write(Put(_record("new"), Part.INPUTS, (b"",)))
        journal = mark_of(before).journal
        assert [one.id for one in made.copies.offer(journal)] == ["x"]
        made.store.is_full = False
        await made.write(Drop("x"))
        assert (made.store.load(), made.copies.records) == ([], {})
        made.journals.close()

    asyncio.run(run())


def test_a_journal_is_no_larger_than_a_message(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept_journals, "JOURNAL_RECORDS", 3)

    async def run() -> None:
        made = _Journals()
        for number in range(7):
            await made.write(Put(_record(str(number)), Part.INPUTS, (b"",)))
        await made.write(Put(_record("0")))
        ids = [made.copies.ids(journal) for journal, _ in made.copies.journals()]
        assert ids == [["0", "1", "2"], ["3", "4", "5"], ["6"]]
        made.journals.close()

    asyncio.run(run())


def _apart(shared: Path, address: str, catalog: str, peers: tuple[str, ...], gate: Gate) -> Node:
    given = ClusterSettings(address, SECRET, peers=peers, store=f"folder:{shared}")
    return Node(settings(catalog=catalog), [scripted(gate.run, 2)], Cluster(given))


def test_with_a_store_a_node_goes_on_without_its_peers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kept_takeover, "SETTLE_S", 0.05)
    gate = Gate(0.1)
    (tmp_path / "shared").mkdir()
    (first, second), catalog = free_addresses(2), f"sqlite:{tmp_path / 'b'}"
    shared = tmp_path / "shared"
    with (
        _apart(shared, first, "memory:", (), Gate()) as a,
        _apart(shared, second, catalog, (first,), gate) as b,
    ):
        wait_until(lambda: alive(a) == alive(b) == 1)
        b.register(function("work"))
        wait_until(lambda: len(a.records()) == 1)
        made = b.submit("work", x=b"one", key="key")
        assert a.submit("work", x=b"one", key="key").id == made.id
    gate.opened.set()
    with _apart(shared, second, catalog, (first,), gate) as b:
        wait_until(lambda: made.id in list_all(b))
        assert text_of(b.submitted(made.id).result(20)["y"]) == "one"


def test_keys_hold_at_nodes_that_do_not_vote() -> None:
    gate = Gate()
    gate.opened.set()
    with nodes([[scripted(gate.run)]]) as (voter,):
        info = voter.cluster()
        assert info is not None
        given = ClusterSettings("127.0.0.1:0", SECRET, peers=(info.node,))
        with Node(settings(), [scripted(gate.run)], Cluster(given)) as other:
            wait_until(lambda: alive(voter) == alive(other) == 1)
            voter.register(function("work"))
            wait_until(lambda: len(other.records()) == 1)
            first = voter.submit("work", x=b"one", key="key")
            assert other.submit("work", x=b"one", key="key").id == first.id


def test_a_node_whose_catalogue_is_behind_takes_nothing_over() -> None:
    copies = KeptCopies()
    for holder in ("a:1", "b:1"):
        ballot = (0, f"{holder}#life")
        mark = KeptMark(f"{holder}#life#1", ballot, 1, "data")
        copies.put(msgspec.structs.replace(_record(holder), mark=mark))
    members = Membership("b:1", (), ("b:1",))
    spawned: list[Coroutine[None, None, None]] = []
    journals = KeptJournals("b:1#new", ["b:1"], copies, _Full(), lambda ids: None, spawned.append)
    is_current = False
    takeover = KeptTakeover(
        "b:1#new",
        ["b:1"],
        copies,
        journals,
        members,
        {},
        {},
        lambda records, from_another: None,
        lambda: is_current,
        spawned.append,
    )
    takeover.look(1.0)
    assert len(spawned) == 1  # what it accepted itself
    is_current = True
    takeover.look(2.0)
    assert len(spawned) == 2
    for work in spawned:
        work.close()


def test_a_name_that_comes_after_the_takeover_is_no_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The catalogue of the node that takes over may be some changes behind."""
    gate = Gate(0.05)

    def node() -> Node:
        cluster = Cluster(ClusterSettings("127.0.0.1:0", SECRET))
        catalog = f"sqlite:{tmp_path / 'store'}"
        return Node(settings(catalog=catalog), [scripted(gate.run)], cluster)

    with node() as first:
        first.register(function("work"))
        made = first.submit("work", x=b"one")
        wait_until(lambda: bool(gate.seen))
    gate.opened.set()
    made_kept, missing = Invoker.made_kept, [Unknown("function", "work")]

    def late(self: Invoker, *given: Any) -> tuple[Invocation, Any]:
        if missing:
            raise missing.pop()
        return made_kept(self, *given)

    monkeypatch.setattr(Invoker, "made_kept", late)
    with node() as again:
        wait_until(lambda: list_all(again) == [made.id])
        assert text_of(again.submitted(made.id).result(20)["y"]) == "one"
    assert not missing


def test_invocations_that_had_ended_are_not_counted_as_taken_over(tmp_path: Path) -> None:
    gate = Gate()
    gate.opened.set()
    catalog = f"sqlite:{tmp_path / 'store'}"

    def node() -> Node:
        cluster = Cluster(ClusterSettings("127.0.0.1:0", SECRET))
        return Node(settings(catalog=catalog), [scripted(gate.run)], cluster)

    with node() as first:
        first.register(function("work"))
    ended, waiting = "0" * 32, "1" * 32
    store = open_kept_store(catalog)
    for step, (id_, state) in enumerate(
        [(ended, KeptState.CANCELLED), (waiting, KeptState.WAITING)]
    ):
        mark = KeptMark("10.0.0.9:1#life#1", (0, "10.0.0.9:1#life"), step, "data")
        request = KeptRequest(name="work")
        record = KeptRecord(id=id_, tenant="default", request=request, state=state, mark=mark)
        sets = encode_sets({"x": ItemSet("x", (Item("a", 0, b"one"),))})
        store.write([Put(record, Part.INPUTS, sets) if id_ == waiting else Put(record)])
    store.close()
    with node() as again:
        wait_until(lambda: sorted(list_all(again)) == [ended, waiting])
        assert text_of(again.submitted(waiting).result(20)["y"]) == "one"
        info = again.cluster()
        assert info is not None
        assert info.taken_over == 1


def test_a_node_that_takes_over_makes_a_limited_number_of_tenants(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Invocations of further tenants end with the reason; tenants of the node itself may come."""
    gate = Gate()
    gate.opened.set()
    catalog = f"sqlite:{tmp_path / 'store'}"

    def node() -> Node:
        cluster = Cluster(ClusterSettings("127.0.0.1:0", SECRET))
        return Node(settings(catalog=catalog), [scripted(gate.run)], cluster)

    ids = {f"t{number}": f"{number:032x}" for number in range(5)}
    with node() as first:
        for tenant in ids:
            first.register(function("work"), tenant=tenant)
    sets = encode_sets({"x": ItemSet("x", (Item("a", 0, b"one"),))})
    store = open_kept_store(catalog)
    for step, (tenant, id_) in enumerate(ids.items()):
        mark = KeptMark("10.0.0.9:1#life#1", (0, "10.0.0.9:1#life"), step, "data")
        record = KeptRecord(id=id_, tenant=tenant, request=KeptRequest(name="work"), mark=mark)
        store.write([Put(record, Part.INPUTS, sets)])
    store.close()
    monkeypatch.setattr("dandelion.node.spaces.TENANTS_LIMIT", 3)
    with node() as again:
        ended = []
        for tenant, id_ in ids.items():
            wait_until(partial(_found, again, id_, tenant))
            try:
                ended.append(text_of(again.submitted(id_, tenant).result(20)["y"]))
            except Overloaded as error:
                ended.append(error.what)
        assert ended == ["one", "one", "tenants", "tenants", "tenants"]
        assert len(again._spaces.tenants()) == 3
        again.register(function("work"), tenant="own")


def _found(node: Node, id_: str, tenant: str) -> bool:
    return node._parts.kept.lives.find(id_, tenant) is not None


def test_a_key_whose_copy_was_never_acknowledged_is_free() -> None:
    """A node that was cut off kept one, which it dropped while another one looked for it."""
    gate = Gate()
    gate.opened.set()

    class Elsewhere:
        """The first answers name an invocation that no node runs."""

        def __init__(self, stale: int) -> None:
            self.stale = stale

        async def earlier(self, tenant: str, key: str, digest: str) -> str | None:
            self.stale -= 1
            return None if self.stale < 0 else "a" * 32

        async def watch(self, id_: str, tenant: str, **given: object) -> None:
            raise Unknown("invocation", id_)

    with Node(settings(), [scripted(gate.run)]) as node:
        node.register(function("work"))
        sets = {"x": ItemSet("x", (Item("a", 0, b"one"),))}
        for stale in (2, 100):
            cluster = Mock(elsewhere=Elsewhere(stale))
            access = NodeKept(node._parts.kept, node._parts.loop, node._invoker, cluster)
            request = KeptRequest(name="work", key=f"key-{stale}")
            work = access.submit(request, sets, tenant="default")
            if stale < 100:
                made = access.blocking(work)
                assert text_of(node.submitted(made.id).result(20)["y"]) == "one"
            else:
                with pytest.raises(CatalogUnavailable, match="try again"):
                    access.blocking(work)


def test_an_invocation_that_failed_as_something_is_unknown_is_no_unknown_invocation() -> None:
    """A node that took one for the other asked itself for ever, and its loop stood still."""

    def run(engine: Engine, call: Call) -> InstanceSets:
        raise Unknown("library", "missing")

    with nodes([[scripted(run)], [scripted(run)]]) as (a, b):
        a.register(function("work"))
        wait_until(lambda: len(b.records()) == 1)
        made = a.submit("work", x=b"one")
        wait_until(lambda: made.state().has_ended)
        for node in (b, a):
            with pytest.raises(Unknown, match="missing"):
                node.submitted(made.id).result(20)


def test_too_many_callers_that_wait_end_no_link(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(questions, "QUESTIONS_LIMIT", 1)
    asked: list[bytes] = []

    async def answer(peer: str, content: bytes, data: Bytes) -> Answer:
        asked.append(content)
        await asyncio.sleep(60)
        return Answer(b"")

    async def run() -> None:
        control, exchange = Mock(), Mock()
        made = Questions("b:1", control, exchange, answer)
        made.received(Question(1, b"first"), None)
        await asyncio.sleep(0)
        made.received(Question(2, b"second"), None)
        control.send.assert_called_once_with(Reply(2, b""))
        assert asked == [b"first"]
        made.close("the end")

    asyncio.run(run())


def test_a_node_that_cannot_end_its_connections_in_time_leaves_no_task(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def never(door: doors.Door) -> None:
        await asyncio.sleep(60)

    monkeypatch.setattr(departure, "DRAIN_S", 0.05)
    monkeypatch.setattr(doors.Door, "wait_closed", never)
    cluster = Cluster(ClusterSettings("127.0.0.1:0", SECRET))
    with Node(settings(), cluster=cluster):
        pass
    assert cluster._ending.cancelled()
