"""Functions of keys and values against a redis server, and against broken ones."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import os
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import redis

from dandelion.data import Item
from dandelion.driver import AsyncEngine
from dandelion.errors import (
    ContextFull,
    RequestFailed,
    RequestInterrupted,
    RequestRefused,
    TimedOut,
    TooLarge,
)
from dandelion.function import Limits
from dandelion.memory import SharedDomain

from .store_calls import MIB, contexts, descriptors, run, store_call, store_engine, texts
from .store_servers import PASSWORD, FaultProxy, fault_proxy, redis_server

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


@contextlib.asynccontextmanager
async def kv(server: Path, **options: str) -> AsyncIterator[AsyncEngine]:
    async with store_engine("kv", s_address=f"unix:{server}", **options) as made:
        yield made


@contextlib.asynccontextmanager
async def behind(proxy: FaultProxy, **options: str) -> AsyncIterator[AsyncEngine]:
    async with store_engine("kv", s_address=f"redis://127.0.0.1:{proxy.port}", **options) as made:
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
        ("KvIncrement", "s n\nby: 9999999999999999999", "whole number"),
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


# --- servers and connections that fail ---------------------------------------------------------


def test_credentials(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TEST_KV_RIGHT", PASSWORD)
    monkeypatch.setenv("TEST_KV_WRONG", PASSWORD + "-not")

    async def scenario(server: Path) -> None:
        async with kv(server, s_password_env="TEST_KV_RIGHT") as e:
            await e.run(store_call("kv", "KvSet", {"v": b"1"}, {"t": "s k"}))
        for options in ({"s_password_env": "TEST_KV_WRONG"}, {}):
            async with kv(server, **options) as e:
                with pytest.raises(RequestFailed, match="refused the credentials") as caught:
                    await e.run(store_call("kv", "KvGet", {"r": "s k"}))
                assert not caught.value.transient
                assert PASSWORD not in repr(caught.value) + repr(e.__dict__)

    with redis_server(tmp_path, "--requirepass", PASSWORD) as server:
        run(scenario(server))


def test_no_server(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with kv(tmp_path / "no.sock") as e:
            with pytest.raises(RequestInterrupted, match="no connection") as caught:
                await e.run(store_call("kv", "KvGet", {"r": "s k"}))
            assert (caught.value.item, caught.value.transient) == ("r", True)
            assert caught.value.may_repeat
            with pytest.raises(RequestInterrupted) as caught:
                await e.run(store_call("kv", "KvIncrement", {"r": "s k"}))
            assert not caught.value.may_repeat

    run(scenario())


def test_a_lost_connection_is_replaced_for_what_may_be_repeated(proxy: FaultProxy) -> None:
    async def scenario() -> None:
        async with behind(proxy) as e:
            await e.run(store_call("kv", "KvSet", {"v": b"1"}, {"t": "s k"}))
            proxy.faults.refuse = 2
            proxy.faults.cut_after = 0
            with pytest.raises(RequestInterrupted):
                await e.run(store_call("kv", "KvGet", {"r": "s k"}))
            proxy.faults.refuse = 2
            proxy.faults.cut_after = None
            done = await e.run(store_call("kv", "KvGet", {"r": "s k"}))
            assert texts(done) == {"r": b"1"}

    run(scenario())


def test_what_may_not_be_repeated_is_sent_once(proxy: FaultProxy, direct: redis.Redis) -> None:
    async def scenario() -> None:
        async with behind(proxy) as e:
            proxy.faults.cut_after = 0
            with pytest.raises(RequestInterrupted):
                await e.run(store_call("kv", "KvIncrement", {"r": "s n"}))
            proxy.faults.cut_after = None
            done = await e.run(store_call("kv", "KvIncrement", {"r": "s n"}))
            assert texts(done) == {"r": b"2"}

    run(scenario())


@pytest.mark.parametrize("cut", [1, 5, 500, 70_000, 2_000_000])
def test_a_connection_that_breaks_off_within_a_value(
    proxy: FaultProxy, direct: redis.Redis, cut: int
) -> None:
    direct.set("v", bytes(3 * MIB))

    async def scenario() -> None:
        before = descriptors()
        domain = SharedDomain(16 * MIB)
        async with behind(proxy) as e:
            proxy.faults.cut_after = cut
            with pytest.raises(RequestInterrupted) as caught:
                await e.run(store_call("kv", "KvGet", {"r": "s v"}, domain=domain))
            assert caught.value.item == "r"
            assert await contexts(domain) == 0
            proxy.faults.cut_after = None
            done = await e.run(store_call("kv", "KvGet", {"r": "s v"}, domain=domain))
            assert texts(done) == {"r": bytes(3 * MIB)}
        domain.close()
        del domain, done
        assert descriptors() <= before + 4  # the other ends, which the proxy still has

    run(scenario())


@pytest.mark.parametrize(
    ("answer", "transient"),
    [
        (b"$999999999999\r\n", False),
        (b"$67108865\r\nx", False),
        (b"*1000000000\r\n", True),
        (b"$-5\r\n", True),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", False),
        (b"+" + b"x" * 200_000, False),
        (b":notanumber\r\n", False),
        (b"\0", True),
        (b"-LOADING soon\r\n", True),
        (b"-MOVED 1 10.0.0.1:6379\r\n", False),
        (b"-ERR secret-text-of-the-server\r\n", False),
    ],
    ids=lambda given: ascii(given[:16]) if isinstance(given, bytes) else "",
)
def test_answers_that_are_none(proxy: FaultProxy, answer: bytes, transient: bool) -> None:
    async def scenario() -> None:
        domain = SharedDomain(MIB)
        async with behind(proxy, retries="0") as e:
            proxy.faults.answer, proxy.faults.then = answer, 1
            with pytest.raises(RequestFailed) as caught:
                await e.run(store_call("kv", "KvGet", {"r": "s k"}, domain=domain))
            assert caught.value.item == "r"
            assert caught.value.transient == transient
            assert "secret-text" not in str(caught.value)
            assert await contexts(domain) == 0
            done = await e.run(store_call("kv", "KvGet", {"r": "s k"}))
            assert texts(done, 1) == {"r": b"s k"}
        domain.close()

    run(scenario())


def test_a_server_that_never_answers(proxy: FaultProxy) -> None:
    async def scenario() -> None:
        async with behind(proxy, idle_s="0.05", retries="0") as e:
            proxy.faults.silent = True
            with pytest.raises(RequestInterrupted, match=r"0\.05 s"):
                await e.run(store_call("kv", "KvGet", {"r": "s k"}))
        async with behind(proxy) as e:
            with pytest.raises(TimedOut):
                await e.run(store_call("kv", "KvGet", {"r": "s k"}, seconds=0.05))
            proxy.faults.arrived.clear()
            call = store_call("kv", "KvGet", {"r": "s k"})
            task = asyncio.create_task(e.run(call))
            await asyncio.to_thread(proxy.faults.arrived.wait, 20)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            proxy.faults.silent = False
            assert texts(await e.run(call), 1) == {"r": b"s k"}

    run(scenario())


def test_a_slow_drip_ends_with_the_deadline(proxy: FaultProxy, direct: redis.Redis) -> None:
    direct.set("v", bytes(100_000))

    async def scenario() -> None:
        domain = SharedDomain(MIB)
        async with behind(proxy, idle_s="5") as e:
            proxy.faults.drip_s = 0.002
            with pytest.raises(TimedOut):
                await e.run(store_call("kv", "KvGet", {"r": "s v"}, domain=domain, seconds=0.2))
            assert await contexts(domain) == 0
            proxy.faults.drip_s = 0.0
            assert len(texts(await e.run(store_call("kv", "KvGet", {"r": "s v"})))["r"]) == 100_000
        domain.close()

    run(scenario())


def test_an_idle_connection_that_the_server_closed_is_replaced(
    server: Path, direct: redis.Redis
) -> None:
    async def scenario() -> None:
        async with kv(server) as e:
            count = store_call("kv", "KvIncrement", {"r": "s n"})
            await e.run(count)
            for client in direct.client_list():
                if client["id"] != str(direct.client_id()):
                    direct.client_kill_filter(_id=client["id"])
            (idle,) = e._stores["s"].client._available_connections  # type: ignore[attr-defined]
            while not await idle.can_read():  # which is true at the end of a stream
                await asyncio.sleep(0)
            assert texts(await e.run(count)) == {"r": b"2"}

    run(scenario())


def test_many_calls_at_once(server: Path, direct: redis.Redis) -> None:
    async def scenario() -> None:
        before = descriptors()
        async with kv(server, s_concurrency="4") as e:
            given = [{f"{c}.{n}": b"%d" % n for n in range(300)} for c in range(20)]
            calls = [store_call("kv", "KvSet", values, {"t": "s {name}"}) for values in given]
            written = await asyncio.gather(*(e.run(call) for call in calls))
            reads = [store_call("kv", "KvGet", texts(done)) for done in written]
            for done in await asyncio.gather(*(e.run(call) for call in reads)):
                assert [item.data for item in done[0] or ()] == [b"%d" % n for n in range(300)]
            assert len(direct.client_list()) <= 5
        assert descriptors() <= before

    run(scenario())
