"""Functions of keys and values against a redis server, and against broken ones."""

from __future__ import annotations

import asyncio
import importlib
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from dandelion.data import Item
from dandelion.errors import (
    ContextFull,
    RequestFailed,
    RequestRefused,
    TooLarge,
)
from dandelion.function import Limits
from dandelion.memory import SharedDomain
from tests.kv_servers import behind, kv

from .store_calls import MIB, contexts, run, store_call, texts
from .store_servers import FaultProxy, fault_proxy, redis_server

connections = importlib.import_module("dandelion.backends.kv.connections")
engine_module = importlib.import_module("dandelion.backends.kv.engine")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with redis_server(tmp_path_factory.mktemp("redis")) as path:
        yield path


@pytest.fixture
def direct(server: Path) -> Iterator[redis.Redis]:
    with redis.Redis(unix_socket_path=str(server)) as client:
        client.flushall()
        yield client


@pytest.fixture
def proxy(server: Path, direct: redis.Redis) -> Iterator[FaultProxy]:
    with fault_proxy(str(server)) as made:
        yield made


def test_values_are_bytes(server: Path, direct: redis.Redis) -> None:
    given = {
        "none": b"",
        "small": bytes(range(256)),
        "line": b"\r\n$5\r\n",
        "limit": os.urandom(connections.STREAMED_BYTES - 1),
        "streamed": os.urandom(connections.STREAMED_BYTES),
        "large": os.urandom(5 * MIB + 3),
    }

    async def scenario() -> None:
        domain = SharedDomain(32 * MIB)
        async with kv(server) as e:
            done = await e.run(store_call("kv", "KvSet", given, {"t": "s a:{name}"}))
            assert texts(done)["small"] == b"s a:small"
            wanted = {**texts(done), "no": b"s a:no"}
            done = await e.run(store_call("kv", "KvGet", wanted, domain=domain))
            assert texts(done) == given
            assert texts(done, 1) == {"no": b"s a:no"}
            assert done[0] is not None
            placed = {i.name for i in done[0] if domain.locate(i.data) is not None}
            assert placed == {"limit", "streamed", "large"}
        domain.close()
        assert direct.get("a:line") == b"\r\n$5\r\n"

    run(scenario())


def test_names_and_keys_come_back(server: Path, direct: redis.Redis) -> None:
    async def scenario() -> None:
        async with kv(server) as e:
            values = [Item("x", 1, b"1"), Item("x", 2, b"2")]
            done = await e.run(store_call("kv", "KvSet", values, {"t": "s {name}.{key}"}))
            assert done[0] is not None
            done = await e.run(store_call("kv", "KvGet", list(done[0])))
            assert done[0] is not None
            assert [(i.name, i.key, i.data) for i in done[0]] == [("x", 1, b"1"), ("x", 2, b"2")]

    run(scenario())


def test_adding_counting_deleting_and_expiring(server: Path, direct: redis.Redis) -> None:
    async def scenario() -> None:
        async with kv(server) as e:
            add = store_call("kv", "KvAdd", {"a": b"1"}, {"t": "s lock\nttl: 60"})
            first, second = await e.run(add), await e.run(add)
            assert [texts(first, n) for n in (0, 1)] == [{"a": b"s lock"}, {}]
            assert [texts(second, n) for n in (0, 1)] == [{}, {"a": b"s lock"}]
            assert 0 < direct.ttl("lock") <= 60
            count = store_call("kv", "KvIncrement", {"a": "s n", "b": "s n\nby: -3", "c": "s n"})
            assert texts(await e.run(count)) == {"a": b"1", "b": b"-2", "c": b"-1"}
            ends = {"a": "s m\nby: 9223372036854775807", "b": "s l\nby: -9223372036854775808"}
            summed = texts(await e.run(store_call("kv", "KvIncrement", ends)))
            assert summed == {"a": b"9223372036854775807", "b": b"-9223372036854775808"}
            gone = store_call("kv", "KvDelete", {"a": "s n", "b": "s lock", "c": "s no"})
            done = await e.run(gone)
            assert [texts(done, n) for n in (0, 1)] == [
                {"a": b"s n", "b": b"s lock"},
                {"c": b"s no"},
            ]
            assert not direct.exists("n", "lock")

    run(scenario())


@pytest.mark.parametrize(
    ("function", "text", "hint"),
    [
        ("KvIncrement", "s n\nby: 1.5", "whole number"),
        ("KvIncrement", "s n\nby: 9999999999999999999", "from -9223372036854775808 to 9223"),
        ("KvIncrement", "s n\nby: 9223372036854775808", "to 9223372036854775807"),
        ("KvIncrement", "s n\nby: -9223372036854775809", "from -9223372036854775808"),
        ("KvGet", "s n\nttl: 5", "unknown option"),
        ("KvGet", "s " + "k" * 1025, "1024 bytes"),
        ("KvGet", "s a\tb", "control character"),
        ("KvGet", "s ", "no path"),
    ],
)
def test_requests_that_are_refused(server: Path, function: str, text: str, hint: str) -> None:
    async def scenario() -> None:
        async with kv(server) as e:
            with pytest.raises(RequestRefused, match=hint) as caught:
                await e.run(store_call("kv", function, {"r": text}))
            assert (caught.value.item, caught.value.transient) == ("r", False)

    run(scenario())


@pytest.mark.parametrize("ttl", ["0", "-1", "1.5", "x", "99999999999"])
def test_times_to_live_that_are_refused(server: Path, ttl: str) -> None:
    async def scenario() -> None:
        async with kv(server) as e:
            with pytest.raises(RequestRefused, match="'ttl'"):
                await e.run(store_call("kv", "KvSet", {"r": b""}, {"t": f"s k\nttl: {ttl}"}))

    run(scenario())


def test_the_server_says_no(server: Path, direct: redis.Redis) -> None:
    direct.lpush("list", "x")
    direct.set("text", "x")

    async def scenario() -> None:
        async with kv(server) as e:
            for function, text, hint in [
                ("KvGet", "s list", "another type: WRONGTYPE"),
                ("KvIncrement", "s text", "not a whole number"),
            ]:
                with pytest.raises(RequestFailed, match=hint) as caught:
                    await e.run(store_call("kv", function, {"ok": "s 1", "bad": text}))
                assert (caught.value.item, caught.value.transient) == ("bad", False)
            done = await e.run(store_call("kv", "KvGet", {"r": "s text"}))
            assert texts(done) == {"r": b"x"}

    run(scenario())


def test_items_of_a_call_share_round_trips(proxy: FaultProxy, direct: redis.Redis) -> None:
    def calls() -> int:
        return sum(c["calls"] for c in direct.info("commandstats").values())

    async def scenario() -> None:
        async with behind(proxy) as e:
            given = {str(n): b"%d" % n for n in range(engine_module.PIECE_ITEMS)}
            done = await e.run(store_call("kv", "KvSet", given, {"t": "s {name}"}))
            assert proxy.faults.connections == 1
            done = await e.run(store_call("kv", "KvGet", texts(done)))
            assert texts(done) == given
            assert proxy.faults.connections == 1
            large = {str(n): bytes(engine_module.PIECE_BYTES // 2 + 1) for n in range(3)}
            await e.run(store_call("kv", "KvSet", large, {"t": "s {name}"}))
            assert proxy.faults.connections == 3

    run(scenario())


def test_prefixes_keep_tenants_apart(server: Path, direct: redis.Redis) -> None:
    async def scenario() -> None:
        options = {"s_tenants": "*", "s_prefix": "{tenant}:"}
        async with kv(server, **options) as e:
            for tenant in ("a", "b"):
                value = {"v": tenant.encode()}
                await e.run(store_call("kv", "KvSet", value, {"t": "s k"}, tenant=tenant))
            for tenant in ("a", "b"):
                done = await e.run(store_call("kv", "KvGet", {"r": "s k"}, tenant=tenant))
                assert texts(done) == {"r": tenant.encode()}
        assert direct.get("a:k") == b"a"

    run(scenario())


def test_limits_hold_before_a_value_is_received(server: Path, direct: redis.Redis) -> None:
    direct.set("v", bytes(3 * MIB))

    def get(limits: Limits | None = None, domain: SharedDomain | None = None) -> object:
        given = {"a": "s v", "b": "s v"}
        return store_call("kv", "KvGet", given, limits=limits, domain=domain)

    async def scenario() -> None:
        domain = SharedDomain(16 * MIB)
        async with kv(server, s_concurrency="1") as e:
            with pytest.raises(TooLarge, match="'b'"):
                await e.run(get(Limits(output_bytes=6 * MIB - 1), domain))
            small = SharedDomain(4 * MIB)
            with pytest.raises(ContextFull):
                await e.run(get(domain=small))
            assert await contexts(small) == await contexts(domain) == 0
            await e.run(get(domain=domain))
        async with kv(server, s_value_bytes=str(MIB)) as e:
            with pytest.raises(RequestFailed, match=f"more than {MIB}"):
                await e.run(get(domain=domain))
            write = store_call("kv", "KvSet", {"v": bytes(MIB + 1)}, {"t": "s k"})
            with pytest.raises(RequestRefused, match=str(MIB + 1)):
                await e.run(write)
        async with kv(server, s_read_only="yes") as e:
            for call in (write, store_call("kv", "KvDelete", {"r": "s v"})):
                with pytest.raises(RequestRefused, match="read-only"):
                    await e.run(call)
        small.close()
        domain.close()

    run(scenario())
    assert direct.exists("v")


def test_the_loop_is_free_between_items_that_need_no_waiting(
    server: Path, direct: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of pieces whose replies have all arrived, and before and after these."""
    monkeypatch.setattr(importlib.import_module("dandelion.backends.stores.turns"), "TURN_S", 0.0)
    given = {str(n): b"s %d" % n for n in range(4 * engine_module.PIECE_ITEMS)}
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0)
            turns += 1

    async def scenario() -> None:
        async with kv(server) as e:
            counting = asyncio.create_task(count())
            await e.run(store_call("kv", "KvGet", given))
            counting.cancel()

    run(scenario())
    passes = ("jobs", "pieces", "replies", "results")
    assert turns >= len(passes) * len(given)
