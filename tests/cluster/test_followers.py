"""Giving voters copies: what is sent again, and links that end."""

from __future__ import annotations

import asyncio

import pytest

from dandelion.asynchronous.records import KeptState
from dandelion.asynchronous.store import Part, Put
from dandelion.cluster import kept_followers
from dandelion.cluster.kept_copies import CopyLimits
from tests.cluster.keepers import PlayedNode, drop, id_of, linked, put, record, until


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
