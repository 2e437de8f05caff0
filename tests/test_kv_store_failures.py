"""Key-value servers and connections that fail."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import redis

from dandelion.data import Item
from dandelion.errors import (
    RequestFailed,
    RequestInterrupted,
    TimedOut,
)
from dandelion.function import Limits
from dandelion.memory import SharedDomain
from tests.kv_servers import behind, kv

from .store_calls import MIB, contexts, descriptors, run, store_call, texts
from .store_servers import PASSWORD, FaultProxy, fault_proxy, redis_server


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


@contextlib.asynccontextmanager
async def scripted(path: Path, commands: int, *replies: bytes) -> AsyncIterator[list[bytes]]:
    """Serve one connection for each text of replies, and close it after them.

    Args:
        path: of the socket.
        commands: how many are awaited before the replies are sent.
        replies: for each connection.

    Yields:
        What was received, for each connection.
    """
    received: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        number = len(received)
        received.append(b"")
        while received[number].count(b"*") < commands:
            received[number] += await reader.read(65536)
        writer.write(replies[number])
        with contextlib.suppress(ConnectionError):
            await writer.drain()
            if number == len(replies) - 1:
                await reader.read()
        writer.close()

    async with await asyncio.start_unix_server(serve, path):
        yield received


def test_each_reply_is_counted_once(tmp_path: Path) -> None:
    async def scenario() -> None:
        replies = [b"+OK\r\n+OK\r\n", b"+OK\r\n+OK\r\n"]
        async with scripted(tmp_path / "kv", 2, *replies) as received, kv(tmp_path / "kv") as e:
            given = {"a": b"1", "b": b"2", "c": b"3", "d": b"4"}
            limits = Limits(output_items=4)
            done = await e.run(store_call("kv", "KvSet", given, {"t": "s {name}"}, limits=limits))
            assert texts(done) == {name: f"s {name}".encode() for name in given}
            assert b"$1\r\na\r\n" not in received[1]

    run(scenario())


def test_a_value_that_broke_off_is_read_again(tmp_path: Path) -> None:
    value = b"$100000\r\n" + bytes(100_000) + b"\r\n"

    async def scenario() -> None:
        replies = [b"$2\r\nxy\r\n" + value[:80_000], value[:5], value[:10], value]
        async with scripted(tmp_path / "kv", 1, *replies), kv(tmp_path / "kv", retries="3") as e:
            limits = Limits(output_bytes=100_002)
            call = store_call("kv", "KvGet", {"a": "s a", "b": "s b"}, limits=limits)
            assert texts(await e.run(call)) == {"a": b"xy", "b": bytes(100_000)}

    run(scenario())


def test_a_piece_is_repeated_while_another_one_receives(tmp_path: Path) -> None:
    answered = asyncio.Event()
    seconds: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        data = await reader.read(1 << 20)
        if b"\r\n256\r\n" not in data:
            writer.write(b"$1\r\nx\r\n" * 256)
        elif seconds:
            writer.write(b"$1\r\nx\r\n" * 44)
        else:
            seconds.append(data)
            await answered.wait()
        await writer.drain()
        answered.set()
        writer.close()

    async def scenario() -> None:
        given = [Item(str(n), 0, f"s {n}".encode()) for n in range(300)]
        server = await asyncio.start_unix_server(serve, tmp_path / "kv")
        async with server, kv(tmp_path / "kv") as e:
            done = await e.run(store_call("kv", "KvGet", given))
            assert [item.data for item in done[0] or ()] == [b"x"] * 300

    run(scenario())


def test_a_busy_server_is_asked_again(tmp_path: Path) -> None:
    async def scenario() -> None:
        replies = [b"-TRYAGAIN later\r\n", b"-LOADING soon\r\n", b"$1\r\nx\r\n"]
        async with scripted(tmp_path / "kv", 1, *replies), kv(tmp_path / "kv") as e:
            assert texts(await e.run(store_call("kv", "KvGet", {"r": "s k"}))) == {"r": b"x"}
        async with scripted(tmp_path / "kv2", 1, *replies) as received, kv(tmp_path / "kv2") as e:
            with pytest.raises(RequestInterrupted, match="TRYAGAIN"):
                await e.run(store_call("kv", "KvIncrement", {"r": "s k"}))
            assert len(received) == 1

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


@pytest.mark.parametrize(
    ("reply", "hint", "transient"),
    [
        ("MOVED 1 10.0.0.1:6379", "redirects .*: MOVED", False),
        ("ASK 1 10.0.0.1:6379", "redirects .*: ASK", False),
        ("TRYAGAIN Multiple keys", "refused the command: TRYAGAIN", True),
        ("CLUSTERDOWN Hash slot not served", "refused the command: CLUSTERDOWN", True),
        ("MASTERDOWN Link with MASTER is down", "refused the command: MASTERDOWN", True),
        ("CROSSSLOT Keys", "refused the command: CROSSSLOT", False),
        ("READONLY You can't write", "refused the command: READONLY", True),
        ("OOM command not allowed", "refused the command: OOM", True),
        ("NOREPLICAS Not enough", "refused the command: NOREPLICAS", True),
        ("NOPERM this user", "refused the operation: NOPERM", False),
        ("ERR unknown command", "refused the command", False),
    ],
)
@pytest.mark.parametrize("function", ["KvGet", "KvIncrement"])
def test_the_first_word_of_an_error_says_what_it_is(
    proxy: FaultProxy, function: str, reply: str, hint: str, transient: bool
) -> None:
    async def scenario() -> None:
        async with behind(proxy, retries="0") as e:
            proxy.faults.answer = f"-{reply}\r\n".encode()
            with pytest.raises(RequestFailed, match=hint) as caught:
                await e.run(store_call("kv", function, {"r": "s k"}))
            assert caught.value.transient == transient
            assert "10.0.0.1" not in str(caught.value)

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


@pytest.mark.parametrize("options", [{"s_database": "3"}, {"s_password_env": "TEST_KV_ANY"}, {}])
def test_a_server_that_answers_no_greeting(
    proxy: FaultProxy, monkeypatch: pytest.MonkeyPatch, options: dict[str, str]
) -> None:
    monkeypatch.setenv("TEST_KV_ANY", PASSWORD)

    async def scenario() -> None:
        times = {"connect_s": "0.05", "idle_s": "0.05", "retries": "1"}
        async with behind(proxy, **times, **options) as e:
            proxy.faults.silent = True
            for _ in range(2):
                with pytest.raises(RequestInterrupted):
                    await e.run(store_call("kv", "KvGet", {"r": "s k"}))

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
