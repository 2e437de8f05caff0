"""S3: services and connections that fail."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import pytest

from dandelion.errors import (
    RequestFailed,
    RequestInterrupted,
    TimedOut,
    TooLarge,
)
from dandelion.executors.failures import strip_tracebacks
from dandelion.memory import SharedDomain
from tests.s3_services import BUCKET, answer, given_direct, s3, url_of

from .store_calls import MIB, contexts, run, store_call, texts
from .store_servers import KEY_ID, SECRET, FaultProxy, fault_proxy, s3_server

direct = pytest.fixture()(given_direct)

HEAD = (
    b"HTTP/1.1 200 OK\r\nLast-Modified: Mon, 01 Jan 2024 00:00:00 GMT\r\nContent-Length: %d\r\n\r\n"
)


@pytest.fixture(autouse=True)
def _credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TEST_S3_KEY_ID", KEY_ID)
    monkeypatch.setenv("TEST_S3_SECRET", SECRET)


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with s3_server() as url:
        yield url


@pytest.fixture
def proxy(server: str, direct: Any) -> Iterator[FaultProxy]:
    parts = urlsplit(server)
    assert parts.hostname is not None
    assert parts.port is not None
    with fault_proxy((parts.hostname, parts.port)) as made:
        yield made


def test_a_missing_bucket_is_not_a_missing_object(server: str, direct: Any) -> None:
    async def scenario() -> None:
        async with s3(server, s_bucket="no-such-bucket") as e:
            for name, sets in [
                ("S3Get", [{"r": "s k"}]),
                ("S3List", [{"r": "s"}]),
                ("S3Put", [{"r": b""}, {"t": "s k"}]),
            ]:
                with pytest.raises(RequestFailed, match="bucket") as caught:
                    await e.run(store_call("s3", name, *sets))
                assert (caught.value.item, caught.value.transient) == ("r", False)

    run(scenario())


DENIED = f"<Error><Code>InvalidAccessKeyId</Code><AWSAccessKeyId>{KEY_ID}</AWSAccessKeyId></Error>"


@pytest.mark.parametrize(
    ("reply", "hint", "transient"),
    [
        (answer("403 Forbidden", DENIED.encode()), r"refused .*\(InvalidAccessKeyId\)", False),
        (answer("401 Unauthorized"), "refused the credentials", False),
        (answer("400 Bad Request", b"secret-text-of-the-server"), "status 400", False),
        (answer("503 Slow Down"), "busy", True),
        (answer("500 Oops"), "status 500", True),
        (answer("429 Too Many Requests"), "busy", True),
        (HEAD % 500 + b"too short", "broke off", True),
        (b"HTTP/1.1 200 OK\r\n\r\nno length", "answer is not one", False),
        (answer("301 Moved Permanently"), "redirects.* region", False),
        (HEAD % (1 << 60), "more than the limit", False),
        (b"nonsense\r\n\r\n", "no connection", True),
        (b"\0", "no connection", True),
    ],
    ids=lambda given: ascii(given[:24]) if isinstance(given, bytes) else "",
)
def test_answers_that_are_none(
    proxy: FaultProxy, direct: Any, reply: bytes, hint: str, transient: bool
) -> None:
    direct.put_object(Bucket=BUCKET, Key="k", Body=b"right")

    async def scenario() -> None:
        domain = SharedDomain(MIB)
        async with s3(url_of(proxy), retries="0") as e:
            proxy.faults.answer, proxy.faults.then = reply, 1
            with pytest.raises((RequestFailed, TooLarge), match=hint) as caught:
                await e.run(store_call("s3", "S3Get", {"r": "s k"}, domain=domain))
            assert "'r'" in str(caught.value)
            if isinstance(caught.value, RequestFailed):
                assert caught.value.transient == transient
            for hidden in (KEY_ID, SECRET, "secret-text", url_of(proxy)):
                assert hidden not in str(caught.value) + repr(caught.value.record())
            assert await contexts(domain) == 0
            done = await e.run(store_call("s3", "S3Get", {"r": "s k"}))
            assert texts(done) == {"r": b"right"}
        domain.close()

    run(scenario())


def deleted(code: str) -> bytes:
    error = f"<Error><Key>k</Key><Code>{code}</Code><Message>secret-text</Message></Error>"
    return answer("200 OK", f"<DeleteResult>{error}</DeleteResult>".encode())


PUT: tuple[str, ...] = ("S3Put", "s k", "s k")


@pytest.mark.parametrize(
    ("sets", "reply", "hint", "transient"),
    [
        (PUT, answer("200 OK"), "answer is not one", False),
        (("S3List", "s"), answer("200 OK", b"no list"), "answer is not one", False),
        (("S3List", "s"), b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n<L", "broke off", True),
        (("S3Delete", "s k"), answer("200 OK", b"<x/>"), "answer is not one", False),
        (("S3Delete", "s k"), deleted("AccessDenied"), r"error \(AccessDenied\)", False),
        (("S3Delete", "s k"), deleted("InternalError"), r"error \(InternalError\)", True),
        (("S3Get", "s k\nrange: -1"), HEAD % 0, "is empty", False),
        (("S3Get", "s k"), answer("307 Moved", b"", f"Location: /{BUCKET}/k"), "redirects", False),
    ],
    ids=lambda given: ascii(given[:24]) if isinstance(given, bytes) else "",
)
def test_only_failures_that_can_pass_are_transient(
    proxy: FaultProxy, sets: tuple[str, ...], reply: bytes, hint: str, transient: bool
) -> None:
    async def scenario() -> None:
        async with s3(url_of(proxy), retries="0") as e:
            proxy.faults.answer = reply
            call = store_call("s3", sets[0], *({"r": text} for text in sets[1:]))
            with pytest.raises(RequestFailed, match=hint) as caught:
                await e.run(call)
            assert caught.value.transient == transient
            assert "secret-text" not in str(caught.value)

    run(scenario())


def test_a_busy_service_is_asked_again(proxy: FaultProxy, direct: Any) -> None:
    direct.put_object(Bucket=BUCKET, Key="k", Body=b"right")

    async def scenario() -> None:
        async with s3(url_of(proxy)) as e:
            for busy in (answer("503 Slow Down"), b""):
                proxy.faults.answer, proxy.faults.then = busy, 2
                proxy.faults.refuse = 0 if busy else 2
                done = await e.run(store_call("s3", "S3Get", {"r": "s k"}))
                assert texts(done) == {"r": b"right"}
            proxy.faults.answer, proxy.faults.then = answer("503 Slow Down"), 3
            with pytest.raises(RequestInterrupted):
                await e.run(store_call("s3", "S3Get", {"r": "s k"}))

    run(scenario())


@pytest.mark.parametrize("size", [1000, 2 * MIB])
def test_a_connection_that_breaks_off_within_a_body(
    proxy: FaultProxy, direct: Any, size: int
) -> None:
    direct.put_object(Bucket=BUCKET, Key="k", Body=bytes(size))

    async def scenario() -> None:
        domain = SharedDomain(4 * MIB)
        proxy.faults.cut_after = size // 2 + 400
        async with s3(url_of(proxy)) as e:  # the rest is asked for on another connection
            done = await e.run(store_call("s3", "S3Get", {"r": "s k"}))
            assert texts(done) == {"r": bytes(size)}
        async with s3(url_of(proxy), retries="0") as e:
            with pytest.raises(RequestInterrupted) as caught:
                await e.run(store_call("s3", "S3Get", {"r": "s k"}, domain=domain))
            assert caught.value.item == "r"
            # Frames of its causes refer to the context, and a thread of the library to a cause.
            strip_tracebacks(caught.value)  # as a node does
            del caught
            assert await contexts(domain) == 0
            proxy.faults.cut_after = None
            done = await e.run(store_call("s3", "S3Get", {"r": "s k"}))
            assert texts(done) == {"r": bytes(size)}
        domain.close()

    run(scenario())


def test_a_service_that_never_answers(proxy: FaultProxy, direct: Any) -> None:
    async def scenario() -> None:
        proxy.faults.silent = True
        async with s3(url_of(proxy), idle_s="0.1", retries="0") as e:
            with pytest.raises(RequestInterrupted):
                await e.run(store_call("s3", "S3Get", {"r": "s k"}))
        async with s3(url_of(proxy)) as e:
            with pytest.raises(TimedOut):
                await e.run(store_call("s3", "S3Get", {"r": "s k"}, seconds=0.05))
            for call in (
                store_call("s3", "S3Get", {"r": "s k"}),
                store_call("s3", "S3List", {"r": "s"}),
                store_call("s3", "S3Put", {"r": b"x"}, {"t": "s k"}),
            ):
                proxy.faults.arrived.clear()
                task = asyncio.create_task(e.run(call))
                await asyncio.to_thread(proxy.faults.arrived.wait, 20)
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
            proxy.faults.silent = False
            done = await e.run(store_call("s3", "S3Get", {"r": "s no"}))
            assert texts(done, 1) == {"r": b"s no"}

    run(scenario())


def test_a_slow_drip_ends_with_the_deadline(proxy: FaultProxy, direct: Any) -> None:
    direct.put_object(Bucket=BUCKET, Key="k", Body=bytes(2 * MIB))

    async def scenario() -> None:
        domain = SharedDomain(4 * MIB)
        async with s3(url_of(proxy)) as e:
            proxy.faults.drip_s = 0.001
            with pytest.raises(TimedOut):
                await e.run(store_call("s3", "S3Get", {"r": "s k"}, domain=domain, seconds=0.6))
            assert await contexts(domain) == 0
        domain.close()

    run(scenario())


def test_no_service() -> None:
    async def scenario() -> None:
        async with s3("http://127.0.0.1:1") as e:
            with pytest.raises(RequestInterrupted, match="no connection"):
                await e.run(store_call("s3", "S3Get", {"r": "s k"}))

    run(scenario())


def test_the_first_failure_ends_the_call(server: str, direct: Any) -> None:
    async def scenario() -> None:
        async with s3(server) as e:
            given = {str(n): "s no" for n in range(100)} | {"bad": "s k\nrange: 5-6"}
            direct.put_object(Bucket=BUCKET, Key="k", Body=b"")
            with pytest.raises(RequestFailed) as caught:
                await e.run(store_call("s3", "S3Get", given))
            assert caught.value.item == "bad"

    run(scenario())
