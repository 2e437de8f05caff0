"""Giving voters copies: what is sent again, and links that end."""

from __future__ import annotations

import asyncio
from typing import cast

import pytest

from dandelion.asynchronous.records import KeptState
from dandelion.asynchronous.store import Part, Put
from dandelion.cluster import kept_followers, kept_journals
from dandelion.cluster.kept_copies import CopyLimits
from dandelion.cluster.kept_messages import AskLife, Offer, Write, decode_question
from dandelion.cluster.questions import Answer
from dandelion.data import Bytes
from tests.cluster.keepers import (
    VOTERS,
    PlayedLink,
    PlayedNode,
    drop,
    id_of,
    linked,
    put,
    record,
    until,
)


def test_one_large_invocation_does_not_make_a_voter_slow(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(kept_followers, "QUEUE_BYTES", 20)

    async def run() -> None:
        async with linked(None, None, None) as (a, b, c):
            await a.write(put(0))
            await until(lambda: a.ids == b.ids == c.ids)
            await a.write(put(1, bytes(21)))
            await until(lambda: a.ids == b.stored == c.stored)

    asyncio.run(run())
    assert "is slow" not in caplog.text


def test_a_voter_is_reported_once_each_time_it_becomes_slow(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(kept_followers, "QUEUE_LIMIT", 2)

    async def run() -> None:
        async with linked(None, None, None) as (a, b, c):
            await a.write(put(0))
            await until(lambda: a.ids == c.stored)
            answer = c.answer
            for times in (1, 2):
                answering = asyncio.Event()

                async def slow(
                    peer: str, content: bytes, data: Bytes, answering: asyncio.Event = answering
                ) -> Answer:
                    await answering.wait()
                    return await answer(peer, content, data)

                monkeypatch.setattr(c, "answer", slow)
                for number in range(9):
                    await a.write(put(10 * times + number))
                answering.set()
                await until(lambda: a.ids == b.ids == c.stored)
                await until(lambda times=times: caplog.text.count("c:1 takes copies") == times)
                assert caplog.text.count("c:1 is slow") == times

    with caplog.at_level("INFO"):
        asyncio.run(run())


def test_what_a_full_voter_left_out_counts_when_it_is_taken_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Else its writer would wait for another voter, which may be gone for good."""
    monkeypatch.setattr(kept_followers, "OFFER_AGAIN_S", 0.01)

    async def run() -> None:
        async with linked(None, None, CopyLimits(9, 20)) as (a, _, c):
            await a.write(put(1, bytes(10)), put(2, bytes(10)))
            await until(lambda: a.ids == c.ids)
            link = a.out.pop("b:1")
            link.closed = True
            a.unlinked("b:1", link)
            done = record(1, input_bytes=10, state=KeptState.SUCCEEDED, result_bytes=15)
            written = asyncio.create_task(a.write(Put(done, Part.RESULT, (bytes(15),))))
            await until(lambda: a.full_voters == ("c:1",))
            assert not written.done()
            await a.write(drop(2))
            try:
                async with asyncio.timeout(20):
                    await asyncio.shield(written)
            finally:
                a.store.closing()
            assert (c.stored, c.copies_bytes) == ([id_of(1)], 15)
            await until(lambda: a.full_voters == ())

    asyncio.run(run())


def test_a_link_that_ends_before_it_is_followed_gets_nothing() -> None:
    async def run() -> None:
        a, b = PlayedNode("a:1"), PlayedNode("b:1")
        a.link(b)
        a.out["b:1"].closed = True
        a.unlinked("b:1", a.out["b:1"])
        await until(lambda: not a.tasks)
        assert a._journals is not None
        assert not a._journals.followers._all
        for one in (a, b):
            await one.close()

    asyncio.run(run())


# --- new links ------------------------------------------------------------------------------------


async def relinked(a: PlayedNode, b: PlayedNode) -> PlayedLink:
    """Replace the link between two nodes, and wait until everything was asked."""
    unlinked(a, b)
    a.link(b)
    assert a._journals is not None
    followers = a._journals.followers._all
    link = cast(PlayedLink, a.out[b.name])
    await until(lambda: b.name in followers and not followers[b.name].queue)
    count = -1
    while count != len(link.asked):
        count = len(link.asked)
        await asyncio.sleep(0)
    return link


def unlinked(a: PlayedNode, b: PlayedNode) -> None:
    link = a.out.pop(b.name)
    link.closed = True
    a.unlinked(b.name, link)


def offers(link: PlayedLink) -> list[Offer]:
    asked = [decode_question(content) for content in link.asked]
    return [one for one in asked if isinstance(one, Offer)]


def test_a_new_link_costs_what_has_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also while a voter is away for good, so that no journal is ever forgotten."""
    monkeypatch.setattr(kept_journals, "JOURNAL_RECORDS", 4)

    async def run() -> None:
        a, b = PlayedNode("a:1"), PlayedNode("b:1")
        a.link(b)
        for number in range(40):
            await a.write(put(number))
        await a.write(*[drop(number) for number in range(32)])
        assert a._journals is not None
        journals = a._journals
        await until(lambda: all(journals.is_up_to_date(one, "b:1") for one in journals.held))
        assert len(journals.held) == 10, "the third voter may have copies of all journals"
        link = await relinked(a, b)
        asked = [decode_question(content) for content in link.asked]
        assert isinstance(asked.pop(0), AskLife)
        assert all(isinstance(one, Write) and not one.steps for one in asked), asked
        assert len(asked) == 2, "only journals with invocations may be taken over"

        unlinked(a, b)
        written = asyncio.create_task(a.write(drop(32)))
        await until(lambda: id_of(32) not in a.ids)
        a.link(b)
        await written
        [offer] = offers(cast(PlayedLink, a.out["b:1"]))
        assert [one.id for one in offer.records] == [id_of(n) for n in (33, 34, 35)]
        await until(lambda: a.ids == b.stored)

        restarted = PlayedNode("b:1")
        unlinked(a, b)
        a.link(restarted)
        await until(lambda: a.ids == restarted.stored)
        c = PlayedNode("c:1")
        a.link(c)
        await until(lambda: len(journals.held) == 2)
        for one in (a, b, c, restarted):
            await one.close()

    asyncio.run(run())


def test_empty_journals_of_a_voter_that_is_away_are_used_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(kept_journals, "JOURNAL_RECORDS", 2)
    monkeypatch.setattr(kept_journals, "EMPTY_LIMIT", 3)

    async def run() -> None:
        a, b, c = (PlayedNode(name) for name in VOTERS)
        journals = a._journals
        assert journals is not None
        try:
            a.link(b, c)
            await a.write(put(1), put(2))
            await until(lambda: c.ids == [id_of(1), id_of(2)])
            a.unlinked(c.name, a.out[c.name])  # for a long time, with copies
            await a.write(drop(1), drop(2))
            for number in range(3, 43):
                await a.write(put(number))
                await a.write(drop(number))
            assert len(journals.held) <= 3 + 2
            await a.write(put(43))
            await until(lambda: a.ids == b.ids == [id_of(43)])
            assert c.ids == [id_of(1), id_of(2)]
            a.link(c)  # what it has missed reaches it, and the empty journals are forgotten
            await until(lambda: c.ids == [id_of(43)])
            await until(lambda: len(journals.held) <= 2)
        finally:
            for node in (a, b, c):
                await node.close()

    asyncio.run(run())


def test_a_journal_that_another_node_took_meanwhile_is_not_held_after_a_new_link() -> None:
    async def run() -> None:
        async with linked(None, None, None) as (a, b, _):
            await a.write(put(1))
            [(journal, _)] = a._copies.journals()
            assert a._journals is not None
            journals = a._journals
            await until(lambda: journals.is_up_to_date(journal, "b:1"))
            unlinked(a, b)
            assert b._copies.prepare(journal, (1, "c:1#life"))
            assert journal in journals.held
            a.link(b)
            await until(lambda: journal not in journals.held)
            link = cast(PlayedLink, a.out["b:1"])
            assert not [one for one in offers(link) if one.journal == journal]

    asyncio.run(run())


@pytest.mark.parametrize("is_changed", [False, True])
def test_what_a_full_voter_left_out_is_offered_at_a_new_link(is_changed: bool) -> None:
    async def run() -> None:
        async with linked(None, None, CopyLimits(2, 1000)) as (a, b, c):
            for number in range(4):
                await a.write(put(number, b"inputs"))
            await until(lambda: len(b.ids) == 4 and a.full_voters == ("c:1",))
            if is_changed:  # which it takes, so it has the last entry
                await a.write(Put(record(0, b"inputs", attempts=1)))
                await until(lambda: c._copies.records[id_of(0)].attempts == 1)
            unlinked(a, c)
            c._copies._limits = CopyLimits()
            a.link(c)
            await until(lambda: a.ids == c.stored)

    asyncio.run(run())
