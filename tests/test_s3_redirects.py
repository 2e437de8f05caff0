"""S3: where requests go."""

from __future__ import annotations

import asyncio
import contextlib
import http.server
import threading
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import pytest

from dandelion.errors import (
    RequestFailed,
)
from tests.s3_services import BUCKET, answer, given_direct, s3, url_of

from .store_calls import run, store_call, texts
from .store_servers import KEY_ID, SECRET, FaultProxy, fault_proxy, s3_server

direct = pytest.fixture()(given_direct)


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
