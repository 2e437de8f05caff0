"""Voters keep a bounded number of copies of what other nodes run, and free them."""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import Sequence

import msgspec
import pytest

from dandelion.asynchronous.failures import CopiesFull
from dandelion.asynchronous.records import Ballot, KeptMark, KeptState
from dandelion.asynchronous.store import MemoryKeptStore, Part, Put, StoreStep
from dandelion.cluster import kept_followers, kept_journals, kept_store
from dandelion.cluster.kept_copies import CopyLimits, KeptCopies, mark_of
from dandelion.cluster.kept_messages import (
    CopyStep,
    Write,
    Written,
    decode_answer,
    encode_kept,
)
from dandelion.cluster.questions import Answer
from dandelion.data import Bytes
from dandelion.errors import CatalogUnavailable, DiskFull
from dandelion.testing import wait_until
from tests.cluster.clusters import function, nodes, scripted
from tests.cluster.keepers import VOTERS, PlayedNode, drop, id_of, linked, put, record, until
from tests.cluster.test_asynchronous import Gate

JOURNAL = "a:1#life#1"
FIRST: Ballot = (0, "a:1#life")


def marked(number: int, step: int, data: bytes = b"", key: str = "", **given: object):  # type: ignore[no-untyped-def]
    mark = KeptMark(JOURNAL, FIRST, step, f"data {step}" if data else "")
    return msgspec.structs.replace(record(number, data, key, **given), mark=mark)


# --- the pure part ------------------------------------------------------------------------------


class _NotScanned(dict):  # type: ignore[type-arg]
    def values(self):  # type: ignore[no-untyped-def]
        raise AssertionError("all records are looked at")

    items = __iter__ = values


def test_a_key_is_found_without_looking_at_all_copies() -> None:
    copies = KeptCopies()
    for number in range(50):
        copies.put(marked(number, 1, key=f"key {number % 40}", created_s=number))
    copies.records = _NotScanned(copies.records)
    found = [copies.with_key("t", f"key {number}") for number in (3, 39, 40)]
    assert [one and one.id for one in found] == [id_of(43), id_of(39), None]
    copies.drop(JOURNAL, id_of(43), (FIRST, 2))
    assert copies.with_key("t", "key 3") is not None
    assert copies.with_key("other", "key 3") is None
    copies.drop(JOURNAL, id_of(3), (FIRST, 2))
    assert copies.with_key("t", "key 3") is None


def test_what_copies_take_is_counted_and_freed() -> None:
    chance = random.Random(5)
    copies = KeptCopies()
    for step in range(1, 2000):
        number = chance.randrange(20)
        before = copies.records.get(id_of(number))
        data = bytes(chance.randrange(9))
        if chance.random() < 0.3:
            copies.drop(JOURNAL, id_of(number), (FIRST, step))
            after = None
        else:
            after = marked(number, step, data, key=str(number))
            copies.put(after)
        if chance.random() < 0.3:
            copies.restore(id_of(number), after, before)
        assert copies.kept_bytes == sum(one.kept_bytes for one in copies.records.values())
        assert copies.room(JOURNAL, [JOURNAL]).free_bytes == 4 << 30
        assert sorted(copies.ids(JOURNAL)) == sorted(copies.records)
        assert len(copies._keys) == len(copies.records)
    for id_ in copies.ids(JOURNAL):
        copies.drop(JOURNAL, id_, (FIRST, 5000))
    assert (copies.kept_bytes, copies._keys, list(copies.journals())) == (0, {}, [])


def test_a_journal_that_was_taken_over_has_twice_the_room() -> None:
    copies = KeptCopies(CopyLimits(3, 100))
    copies.put(marked(1, 1, b"12345"))
    room = copies.room(JOURNAL, ())
    assert (room.number, room.free_bytes) == (2, 95)
    assert copies.accept(JOURNAL, (1, "b:1#life"))
    room = copies.room(JOURNAL, ())
    assert (room.number, room.free_bytes) == (5, 195)
    assert room.take(195, None)
    assert not room.take(1, None)
    assert room.take(5, copies.records[id_of(1)])  # it needs no more than before
    assert room.take(0, None)


# --- between nodes ------------------------------------------------------------------------------


def test_a_full_voter_is_passed_over_and_gets_copies_when_it_has_room(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(kept_followers, "OFFER_AGAIN_S", 0.01)

    async def run() -> None:
        async with linked(None, None, CopyLimits(2, 1000)) as (a, b, c):
            for number in range(4):
                await a.write(put(number, b"inputs"))
            await until(lambda: len(b.ids) == 4 and len(c.ids) == 2)
            await until(lambda: a.full_voters == ("c:1",))  # it is offered more now and then
            assert (c.copies, c.copies_bytes, c.stored) == (2, 12, c.ids)
            assert (a.copies, a.copies_bytes) == (4, 24)
            await a.write(Put(record(3, b"inputs", attempts=1)))  # it is known to b alone
            await a.write(drop(0), drop(1))
            await until(lambda: a.ids == b.ids == c.ids == [id_of(2), id_of(3)])
            await until(lambda: a.full_voters == ())
            assert c._copies.records[id_of(3)].attempts == 1
            assert c.inner.read(id_of(3), Part.INPUTS) == b"inputs"

    asyncio.run(run())


def test_a_new_invocation_is_refused_at_once_if_too_few_voters_have_room(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(kept_store, "GIVE_UP_S", 60)

    async def run() -> None:
        limits = CopyLimits(2, 20)
        async with linked(None, limits, limits) as (a, b, c):
            await a.write(put(1, bytes(10)))
            with pytest.raises(
                CopiesFull, match=r"\(11 bytes are needed, 10 bytes and 1 "
            ) as found:
                await a.write(put(2, bytes(11)))
            assert (found.value.free_bytes, found.value.free_number) == (10, 1)
            await a.write(put(3, bytes(10)))
            with pytest.raises(CopiesFull):
                await a.write(put(4))
            kept = [id_of(1), id_of(3)]
            await until(lambda: a.stored == b.stored == c.stored == kept)
            assert a.ids == b.ids == c.ids == kept
            await a.write(drop(1))
            await a.write(put(4))

    asyncio.run(run())


def test_figures_that_are_not_known_are_not_shown() -> None:
    assert "room for a copy of this invocation, so less" in str(CopiesFull("b:1"))
    assert "(0 bytes are needed, 7 bytes and 0 invocations" in str(CopiesFull("b:1", 0, 7, -1))


def test_a_result_without_room_is_refused_and_the_failure_is_stored() -> None:
    async def run() -> None:
        limits = CopyLimits(9, 20)
        async with linked(None, limits, limits) as (a, b, c):
            await a.write(put(1, bytes(20)))
            done = record(1, input_bytes=20, state=KeptState.SUCCEEDED, result_bytes=21)
            with pytest.raises(CopiesFull):
                await a.write(Put(done, Part.RESULT, (bytes(21),)))
            failed = record(1, input_bytes=20, state=KeptState.FAILED)
            await a.write(Put(failed))
            await until(lambda: all(one.copies_bytes == 0 for one in (a, b, c)))
            states = [one._copies.records[id_of(1)].state for one in (a, b, c)]
            assert states == [KeptState.FAILED] * 3

    asyncio.run(run())


class _Full(MemoryKeptStore):
    is_full = False

    def write(self, steps: Sequence[StoreStep]) -> None:
        if self.is_full:
            raise DiskFull("store", "a file", 1, 0)
        super().write(steps)


def test_what_the_owner_could_not_store_is_dropped_by_voters() -> None:
    async def run() -> None:
        store = _Full()
        a, b = PlayedNode("a:1", inner=store), PlayedNode("b:1")
        a.link(b)
        await a.write(put(1))
        store.is_full = True
        with pytest.raises(DiskFull):
            await a.write(put(2))
        await until(lambda: b.ids == b.stored == [id_of(1)])
        for one in (a, b):
            await one.close()

    asyncio.run(run())


def test_journals_that_are_empty_everywhere_are_forgotten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(kept_journals, "JOURNAL_RECORDS", 2)

    async def run() -> None:
        a, b, c = [PlayedNode(name) for name in VOTERS]
        a.link(b)
        for number in range(6):
            await a.write(put(number))
        assert a._journals is not None
        held = a._journals.held
        assert len(held) == 3
        for number in range(5):
            await a.write(drop(number))
        await until(lambda: b.ids == [id_of(5)])
        assert len(held) == 3  # the third voter may have copies
        a.link(c)
        await until(lambda: len(held) == 1)
        await until(lambda: (a.ids, b.ids, c.ids) == ([id_of(5)],) * 3)
        await a.write(put(7))
        await a.write(drop(5), drop(7))
        await until(lambda: not (b.ids or c.ids) and len(held) == 1)
        assert a._journals._stamps.keys() <= held.keys()
        for one in (a, b, c):
            await one.close()

    asyncio.run(run())


def test_what_no_voter_answers_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its data would stay in memory, again and again, until a voter answers."""
    monkeypatch.setattr(kept_store, "GIVE_UP_S", 0.01)

    async def run() -> None:
        a, b = PlayedNode("a:1"), PlayedNode("b:1")
        assert a._journals is not None
        for number in range(3):
            with pytest.raises(CatalogUnavailable, match="half of the voters"):
                await a.write(put(number, b"inputs"))
        await until(lambda: not a.stored and not a.ids)
        assert not a._journals._open
        a.link(b)
        await a.write(put(4))
        assert a.ids == b.ids == [id_of(4)]
        for one in (a, b):
            await one.close()

    asyncio.run(run())


def test_a_slow_voter_is_offered_what_is_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept_followers, "QUEUE_BYTES", 20)

    async def run() -> None:
        async with linked(None, None, None) as (a, b, c):
            await a.write(put(0))
            answering = asyncio.Event()
            answer = c.answer

            async def slow(peer: str, content: bytes, data: Bytes) -> Answer:
                await answering.wait()
                return await answer(peer, content, data)

            monkeypatch.setattr(c, "answer", slow)
            assert a._journals is not None
            for number in range(1, 9):
                await a.write(put(number, b"inputs"))
            queue = a._journals.followers._all["c:1"].queue
            assert sum(entry.size_bytes for entry in queue) <= 20
            answering.set()
            await until(lambda: a.ids == b.ids == c.ids == c.stored)

    asyncio.run(run())


def test_what_is_taken_before_a_step_that_cannot_be_taken_is_stored() -> None:
    """A copy that is not in the store would be offered, and could not be read."""

    async def run() -> None:
        b = PlayedNode("b:1")
        whole, bare = marked(1, 1, b"inputs"), marked(2, 2, b"inputs")
        steps = [CopyStep(whole.id, whole, mark_of(whole).version, Part.INPUTS, 6)]
        steps.append(CopyStep(bare.id, bare, mark_of(bare).version))
        question = encode_kept(Write(JOURNAL, FIRST, tuple(steps)))
        answer = await b.answer("a:1", question, b"inputs")
        assert decode_answer(answer.content, Written).problem
        assert b.ids == b.stored == [whole.id]
        await b.close()

    asyncio.run(run())


def test_what_another_node_has_taken_is_not_begun_again_by_a_step_that_waited() -> None:
    """It would be run by no node, as its own one has forgotten it, and kept for ever."""

    async def run() -> None:
        async with linked(None, None, None) as (a, b, _):
            await a.write(put(1), put(2))
            assert a._journals is not None
            [(journal, _)] = a._copies.journals()
            a._journals.fence(journal, (1, "b:1#life"))
            a._copies.drop(journal, id_of(1), ((1, "b:1#life"), 1))  # the new holder lacks it
            for steps in ([put(1)], [put(3), Put(record(2, attempts=1))], [put(3), put(1)]):
                with pytest.raises(CatalogUnavailable, match="taken over"):
                    await a.write(*steps)
                assert a.ids == [id_of(2)]
            await a.write(drop(1), drop(2))
            await a.write(put(3))
            await until(lambda: id_of(3) in a.ids and id_of(3) in b.ids)

    asyncio.run(run())


class _Slow(MemoryKeptStore):
    def __init__(self) -> None:
        super().__init__()
        self.opened = threading.Event()

    def write(self, steps: Sequence[StoreStep]) -> None:
        assert self.opened.wait(20)
        super().write(steps)


def test_copies_are_in_the_store_also_if_the_link_ends_meanwhile() -> None:
    """Else the node would take the invocation over, and would have no inputs of it."""

    async def run() -> None:
        store = _Slow()
        b = PlayedNode("b:1", inner=store)
        asked = []
        for number in (1, 2):
            one = marked(number, number, b"inputs")
            step = CopyStep(one.id, one, mark_of(one).version, Part.INPUTS, 6)
            question = encode_kept(Write(JOURNAL, FIRST, (step,)))
            asked.append(asyncio.create_task(b.answer("a:1", question, b"inputs")))
        await until(lambda: len(b.ids) == 2)
        for task in asked:  # as `Questions.close` does
            task.cancel()
        await asyncio.gather(*asked, return_exceptions=True)
        store.opened.set()
        await until(lambda: b.stored == b.ids)
        assert store.read(id_of(2), Part.INPUTS) == b"inputs"
        await b.close()

    asyncio.run(run())


def test_a_caller_is_told_that_there_is_no_room_and_may_make_some() -> None:
    gate = Gate()
    gate.opened.set()
    limits = CopyLimits(1, 1000)
    with nodes([[scripted(gate.run)], [scripted(gate.run)]], copies=limits) as (a, b):
        a.register(function("work"))
        wait_until(lambda: len(b.records()) == 1)
        first = a.submit("work", x=b"one")
        with pytest.raises(CopiesFull):
            a.submit("work", x=b"two")
        wait_until(lambda: first.state().has_ended)
        first.cancel()  # forgets it
        second = a.submit("work", x=b"two")
        assert bytes(second.result(20)["y"].items[0].data) == b"two"
        large = a.submitted(second.id)
        large.cancel()
        info = a.cluster()
        assert info is not None
        wait_until(lambda: b.cluster().kept_copies == 0)  # type: ignore[union-attr]
