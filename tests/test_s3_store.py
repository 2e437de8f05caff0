"""Functions of objects against an S3 service, and against broken ones."""

from __future__ import annotations

import asyncio
import contextlib
import http.server
import importlib
import os
import threading
from collections.abc import AsyncIterator, Iterator
from typing import Any
from urllib.parse import urlsplit

import boto3
import pytest

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
from dandelion.executors.failures import strip_tracebacks
from dandelion.function import Limits
from dandelion.memory import SharedDomain

from .store_calls import MIB, contexts, descriptors, run, store_call, store_engine, texts
from .store_servers import KEY_ID, SECRET, FaultProxy, fault_proxy, s3_server

BUCKET = "pictures-of-tests"
WHOLE_BYTES = importlib.import_module("dandelion.backends.s3.engine").WHOLE_BYTES
HEAD = (
    b"HTTP/1.1 200 OK\r\nLast-Modified: Mon, 01 Jan 2024 00:00:00 GMT\r\nContent-Length: %d\r\n\r\n"
)


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with s3_server() as url:
        yield url


@pytest.fixture
def direct(server: str) -> Any:
    """A client of another library, and an empty bucket."""
    client = boto3.client(
        "s3",
        endpoint_url=server,
        aws_access_key_id=KEY_ID,
        aws_secret_access_key=SECRET,
        region_name="us-east-1",
    )
    client.create_bucket(Bucket=BUCKET)
    for entry in client.list_objects_v2(Bucket=BUCKET).get("Contents", ()):
        client.delete_object(Bucket=BUCKET, Key=entry["Key"])
    return client


@pytest.fixture
def proxy(server: str, direct: Any) -> Iterator[FaultProxy]:
    parts = urlsplit(server)
    assert parts.hostname is not None
    assert parts.port is not None
    with fault_proxy((parts.hostname, parts.port)) as made:
        yield made


@pytest.fixture(autouse=True)
def _credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TEST_S3_KEY_ID", KEY_ID)
    monkeypatch.setenv("TEST_S3_SECRET", SECRET)


@contextlib.asynccontextmanager
async def s3(server: str, **options: str) -> AsyncIterator[AsyncEngine]:
    given = {
        "s_bucket": BUCKET,
        "s_endpoint": server,
        "s_key_id_env": "TEST_S3_KEY_ID",
        "s_secret_env": "TEST_S3_SECRET",
        **options,
    }
    async with store_engine("s3", **given) as made:
        yield made


def url_of(proxy: FaultProxy) -> str:
    return f"http://127.0.0.1:{proxy.port}"


def test_objects_are_bytes(server: str, direct: Any) -> None:
    given = {
        "none": b"",
        "small": bytes(range(256)),
        "whole": os.urandom(WHOLE_BYTES),
        "streamed": os.urandom(WHOLE_BYTES + 1),
    }

    async def scenario() -> None:
        domain = SharedDomain(16 * MIB)
        async with s3(server) as e:
            done = await e.run(store_call("s3", "S3Put", given, {"t": "s a/{name}"}))
            wanted = {**texts(done), "no": b"s a/no"}
            done = await e.run(store_call("s3", "S3Get", wanted, domain=domain))
            assert texts(done) == given
            assert texts(done, 1) == {"no": b"s a/no"}
            assert done[0] is not None
            placed = {i.name for i in done[0] if domain.locate(i.data) is not None}
            assert placed == {"whole", "streamed"}
        domain.close()
        body = direct.get_object(Bucket=BUCKET, Key="a/small")["Body"].read()
        assert body == given["small"]

    run(scenario())


def test_names_and_keys_come_back(server: str, direct: Any) -> None:
    async def scenario() -> None:
        async with s3(server) as e:
            contents = [Item("x", 1, b"1"), Item("x", 2, b"2")]
            done = await e.run(store_call("s3", "S3Put", contents, {"t": "s {key}/{name}"}))
            assert done[0] is not None
            done = await e.run(store_call("s3", "S3Get", list(done[0])))
            assert done[0] is not None
            assert [(i.name, i.key, i.data) for i in done[0]] == [("x", 1, b"1"), ("x", 2, b"2")]

    run(scenario())


def test_large_contents_are_written_in_parts(server: str, direct: Any) -> None:
    content = os.urandom(13 * MIB)

    async def scenario() -> None:
        async with s3(server, s_part_bytes=str(5 * MIB)) as e:
            await e.run(store_call("s3", "S3Put", {"c": memoryview(content)}, {"t": "s big"}))  # type: ignore[dict-item]
        found = direct.get_object(Bucket=BUCKET, Key="big")
        assert found["ETag"].endswith('-3"')  # the number of parts
        assert found["Body"].read() == content

    run(scenario())


@pytest.mark.parametrize(
    ("text", "part"), [("0-0", b"a"), ("2-3", b"cd"), ("4-", b"ef"), ("-2", b"ef"), ("4-99", b"ef")]
)
def test_ranges(server: str, direct: Any, text: str, part: bytes) -> None:
    direct.put_object(Bucket=BUCKET, Key="k", Body=b"abcdef")

    async def scenario() -> None:
        async with s3(server) as e:
            done = await e.run(store_call("s3", "S3Get", {"r": f"s k\nrange: {text}"}))
            assert texts(done) == {"r": part}
            with pytest.raises(RequestFailed, match="range"):
                await e.run(store_call("s3", "S3Get", {"r": "s k\nrange: 6-7"}))

    run(scenario())


def test_keys_are_those_of_other_clients(server: str, direct: Any) -> None:
    keys = ["a b", "%41", "ü/é", "a+b&c=d?e#f", "{x}", "[~]*", "a'b\"c", "-"]

    async def scenario() -> None:
        async with s3(server) as e:
            contents = {key.replace("/", "_"): key.encode() for key in keys}
            targets = [Item(k.replace("/", "_"), 0, f"s {k}".encode()) for k in keys]
            await e.run(store_call("s3", "S3Put", contents, targets))
            for key in keys:
                assert direct.get_object(Bucket=BUCKET, Key=key)["Body"].read() == key.encode()
            done = await e.run(store_call("s3", "S3List", {"r": "s"}))
            assert sorted(texts(done)) == sorted(keys)
            done = await e.run(store_call("s3", "S3Get", texts(done)))
            assert texts(done) == {key: key.encode() for key in keys}

    run(scenario())


@pytest.mark.parametrize(
    "path", ["../x", "a/../b", "/a", "a//b", "a/", ".", "k" * 1025, "a\rb", "a\0"]
)
def test_paths_that_are_refused(server: str, path: str) -> None:
    async def scenario() -> None:
        async with s3(server) as e:
            with pytest.raises(RequestRefused) as caught:
                await e.run(store_call("s3", "S3Get", {"r": f"s {path}"}))
            assert (caught.value.item, caught.value.transient) == ("r", False)

    run(scenario())


def test_listing(server: str, direct: Any) -> None:
    for n in range(25):
        direct.put_object(Bucket=BUCKET, Key=f"part/a/{n:02}", Body=b"x" * n)
    for key in ("part/b", "part2/a/00", "other"):
        direct.put_object(Bucket=BUCKET, Key=key, Body=b"")

    async def scenario() -> None:
        async with s3(server, s_prefix="part/") as e:
            done = await e.run(store_call("s3", "S3List", [Item("r", 5, b"s a\nlimit: 10")]))
            assert list(texts(done)) == [f"a/{n:02}" for n in range(10)]
            assert texts(done)["a/03"] == b"s a/03"
            assert b"size:3\n" in texts(done, 1)["a/03"]
            assert done[0] is not None
            assert {item.key for item in done[0]} == {5}
            names: list[str] = []
            again = b"s\nlimit: 10"
            while again:
                done = await e.run(store_call("s3", "S3List", {"r": again}))
                names += texts(done)
                again = texts(done, 2).get("r", b"")
            assert names == [*(f"a/{n:02}" for n in range(25)), "b"]
            done = await e.run(store_call("s3", "S3List", {"r": "s no/such"}))
            assert done == (None, None, None)

    run(scenario())


def test_keys_that_are_no_paths_cannot_be_listed(server: str, direct: Any) -> None:
    direct.put_object(Bucket=BUCKET, Key="good/k", Body=b"")
    direct.put_object(Bucket=BUCKET, Key="good/folder/", Body=b"")  # as other tools make them

    async def scenario() -> None:
        async with s3(server) as e:
            done = await e.run(store_call("s3", "S3List", {"r": "s"}))
            assert list(texts(done)) == ["good/folder", "good/k"]
            direct.put_object(Bucket=BUCKET, Key="bad//k", Body=b"")
            with pytest.raises(RequestFailed, match="a key with a part that is empty") as caught:
                await e.run(store_call("s3", "S3List", {"r": "s"}))
            assert not caught.value.transient
            done = await e.run(store_call("s3", "S3List", {"r": "s good"}))
            assert list(texts(done)) == ["good/folder", "good/k"]

    run(scenario())


def test_prefixes_keep_tenants_apart(server: str, direct: Any) -> None:
    async def scenario() -> None:
        async with s3(server, s_tenants="*", s_prefix="{tenant}/") as e:
            for tenant in ("a", "b"):
                contents = {"c": tenant.encode()}
                await e.run(store_call("s3", "S3Put", contents, {"t": "s k"}, tenant=tenant))
            for tenant in ("a", "b"):
                done = await e.run(store_call("s3", "S3List", {"r": "s"}, tenant=tenant))
                assert texts(done) == {"k": b"s k"}
                done = await e.run(store_call("s3", "S3Get", texts(done), tenant=tenant))
                assert texts(done) == {"k": tenant.encode()}

    run(scenario())


def test_deleting(server: str, direct: Any) -> None:
    direct.put_object(Bucket=BUCKET, Key="k", Body=b"")

    async def scenario() -> None:
        async with s3(server, s_read_only="yes") as e:
            for name, sets in [("S3Delete", [{"r": "s k"}]), ("S3Put", [{"c": b""}, {"t": "s k"}])]:
                with pytest.raises(RequestRefused, match="read-only"):
                    await e.run(store_call("s3", name, *sets))
        assert direct.list_objects_v2(Bucket=BUCKET)["KeyCount"] == 1
        async with s3(server) as e:
            done = await e.run(store_call("s3", "S3Delete", {"r": "s k", "no": "s no"}))
            assert texts(done) == {"r": b"s k", "no": b"s no"}
        assert direct.list_objects_v2(Bucket=BUCKET)["KeyCount"] == 0

    run(scenario())


def test_limits_hold_before_a_body_is_received(server: str, direct: Any) -> None:
    direct.put_object(Bucket=BUCKET, Key="k", Body=bytes(3 * MIB))

    def get(limits: Limits | None = None, domain: SharedDomain | None = None) -> Any:
        return store_call("s3", "S3Get", {"a": "s k", "b": "s k"}, limits=limits, domain=domain)

    async def scenario() -> None:
        domain, small = SharedDomain(8 * MIB), SharedDomain(4 * MIB)
        async with s3(server, concurrency="1") as e:
            with pytest.raises(TooLarge, match="'b'"):
                await e.run(get(Limits(output_bytes=6 * MIB - 1), domain))
            with pytest.raises(ContextFull):
                await e.run(get(domain=small))
            assert await contexts(domain) == await contexts(small) == 0
            await e.run(get(domain=domain))
        domain.close()
        small.close()

    run(scenario())


# --- services and connections that fail --------------------------------------------------------


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


def answer(status: str, body: bytes = b"", *headers: str) -> bytes:
    lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", "Connection: close", *headers]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


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
        (b"HTTP/1.1 200 OK\r\n\r\nno length", "or the answer", True),
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


# --- where requests go --------------------------------------------------------------------------


class Redirecting(http.server.BaseHTTPRequestHandler):
    """Redirects to the target of its server, or answers if it has none."""

    server: RedirectingServer

    def do_GET(self) -> None:
        self.server.requested += 1
        target = self.server.target
        self.send_response(307 if target else 200)
        if target:
            self.send_header("Location", target + self.path)
        self.send_header("Content-Length", "0" if target else "6")
        self.send_header("Last-Modified", "Mon, 01 Jan 2024 00:00:00 GMT")
        self.end_headers()
        if not target:
            self.wfile.write(b"secret")

    def __getattr__(self, name: str) -> Any:
        if name.startswith("do_"):  # all other methods
            return self.do_GET
        raise AttributeError(name)

    def log_message(self, *_: object) -> None:
        pass


class RedirectingServer(http.server.ThreadingHTTPServer):
    """A service that answers by redirects.

    Attributes:
        target: URL where it redirects to.
        requested: how many requests have come.
    """

    daemon_threads = True
    target = ""
    requested = 0

    @property
    def url(self) -> str:
        return f"http://{self.server_address[0]!s}:{self.server_address[1]}"


@contextlib.contextmanager
def redirecting(address: str = "127.0.0.1") -> Iterator[RedirectingServer]:
    with RedirectingServer((address, 0), Redirecting) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


HIDDEN = ("127.0.0.2", "localhost", "[::ffff:127.0.0.2]", "0x7f000002", "2130706434")


@pytest.mark.parametrize("function", ["S3Get", "S3List"])
def test_a_read_is_not_redirected_to_another_address(function: str) -> None:
    async def scenario(front: RedirectingServer, hidden: RedirectingServer) -> None:
        async with s3(front.url, retries="1") as e:
            for host in (
                "127.0.0.2",
                "localhost",
                "[::ffff:127.0.0.2]",
                "0x7f000002",
                "2130706434",
            ):
                front.target = f"http://{host}:{hidden.server_address[1]}"
                with pytest.raises(RequestFailed, match="redirects") as caught:
                    await e.run(store_call("s3", function, {"r": "s k"}))
                assert not caught.value.transient
                assert host not in str(caught.value)
            assert hidden.requested == 0
            assert front.requested >= 5
            front.target = ""
            if function == "S3Get":
                done = await e.run(store_call("s3", function, {"r": "s k"}))
                assert texts(done) == {"r": b"secret"}

    with redirecting() as front, redirecting("127.0.0.2") as hidden:
        run(scenario(front, hidden))


def test_writes_are_not_redirected() -> None:
    async def scenario(front: RedirectingServer, hidden: RedirectingServer) -> None:
        front.target = hidden.url
        async with s3(front.url, retries="0") as e:
            with pytest.raises(RequestFailed, match="redirects"):
                await e.run(store_call("s3", "S3Put", {"k": b"x"}, {"t": "s k"}))
            with pytest.raises(RequestFailed, match="redirects"):
                await e.run(store_call("s3", "S3Delete", {"r": "s k"}))
        assert hidden.requested == 0

    with redirecting() as front, redirecting("127.0.0.2") as hidden:
        run(scenario(front, hidden))


def test_the_environment_decides_nothing(
    server: str, direct: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere = "http://127.0.0.1:1"
    for name, text in {
        "AWS_ENDPOINT_URL": elsewhere,
        "AWS_ENDPOINT_URL_S3": elsewhere,
        "AWS_ENDPOINT": elsewhere,
        "AWS_ACCESS_KEY_ID": "other",
        "AWS_SECRET_ACCESS_KEY": "other",
        "AWS_SESSION_TOKEN": "other",
        "AWS_REGION": "eu-west-9",
        "AWS_SKIP_SIGNATURE": "true",
        "AWS_BUCKET": "other",
        "AWS_VIRTUAL_HOSTED_STYLE_REQUEST": "true",
        "AWS_REQUESTER_PAYS": "true",
        "AWS_PROXY_URL": elsewhere,
        "AWS_S3_EXPRESS": "true",
        "AWS_ALLOW_INVALID_CERTIFICATES": "true",
    }.items():
        monkeypatch.setenv(name, text)

    async def scenario() -> None:
        async with s3(server) as e:
            await e.run(store_call("s3", "S3Put", {"c": b"1"}, {"t": "s k"}))
        assert direct.get_object(Bucket=BUCKET, Key="k")["Body"].read() == b"1"

    run(scenario())


def test_proxies_of_the_environment_are_not_used(
    server: str, direct: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(proxy: RedirectingServer) -> None:
        for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy", "AWS_PROXY_URL"):
            monkeypatch.setenv(name, proxy.url)
        async with s3(server) as e:
            await e.run(store_call("s3", "S3Put", {"k": b"x"}, {"t": "s k"}))
        assert proxy.requested == 0

    with redirecting() as proxy:
        run(scenario(proxy))
    assert direct.get_object(Bucket=BUCKET, Key="k")["Body"].read() == b"x"


def test_credentials_are_not_sent_to_where_a_service_redirects(
    proxy: FaultProxy, direct: Any
) -> None:
    received: list[bytes] = []

    async def scenario() -> None:
        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            received.append(await reader.readuntil(b"\r\n\r\n"))
            writer.write(answer("404 Not Found"))
            await writer.drain()
            writer.close()

        other = await asyncio.start_server(serve, "127.0.0.1", 0)
        address = f"http://127.0.0.1:{other.sockets[0].getsockname()[1]}/k"
        async with other, s3(url_of(proxy), retries="0") as e:
            for name, sets in [("S3Put", [{"r": b"x"}, {"t": "s k"}]), ("S3Get", [{"r": "s k"}])]:
                reply = answer("307 Temporary Redirect", b"", f"Location: {address}")
                proxy.faults.answer, proxy.faults.then = reply, 1
                with contextlib.suppress(RequestFailed):
                    await e.run(store_call("s3", name, *sets))
        for request in received:
            assert KEY_ID.encode() not in request
            assert not request.startswith(b"PUT")

    run(scenario())


def test_many_objects_at_once_leave_nothing_open(server: str, direct: Any) -> None:
    async def scenario() -> None:
        before = descriptors()
        async with s3(server) as e:
            given = {str(n): b"%d" % n for n in range(200)}
            done = await e.run(store_call("s3", "S3Put", given, {"t": "s {name}"}))
            done = await e.run(store_call("s3", "S3Get", texts(done)))
            assert texts(done) == given
        del e, done
        for _ in range(200):  # the library closes connections in a thread of its own
            if descriptors() <= before + 2:
                break
            await asyncio.sleep(0.01)
        assert descriptors() <= before + 12, "its threads keep some for themselves"

    run(scenario())
