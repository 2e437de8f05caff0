"""TLS of the server, with one and two frontends, and of the clients."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from dandelion import AsyncClient, Client
from dandelion.errors import InvalidInput
from dandelion.frontend.client_tls import UnverifiedNode
from dandelion.frontend.problem import Unreachable
from dandelion.frontend.server import BackgroundServer
from dandelion.node import Node, Settings
from dandelion.testing import wait_until

from .frontend_processes import Processes
from .served import DOCUMENT, SETTINGS

TIMEOUT_S = 20.0


ECDSA = ("ec", "-pkeyopt", "ec_paramgen_curve:P-256")
RSA = ("rsa:2048",)


def certificate(
    folder: Path, name: str = "127.0.0.1", key_type: tuple[str, ...] = ECDSA
) -> tuple[str, str]:
    """Make a certificate that signs itself; return its file and that of its key."""
    chain, key = str(folder / "cert.pem"), str(folder / "key.pem")
    kind = "IP" if name[0].isdigit() else "DNS"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", *key_type,
         "-nodes", "-days", "2", "-subj", f"/CN={name}", "-addext", f"subjectAltName={kind}:{name}",
         "-keyout", key, "-out", chain],
        check=True,
        capture_output=True,
    )  # fmt: skip
    return chain, key


@contextlib.contextmanager
def serving(chain: str, key: str, frontends: int, **changed: object) -> Iterator[tuple[Node, int]]:
    settings: Settings = msgspec.structs.replace(
        SETTINGS, tls_cert=chain, tls_key=key, frontends=frontends, **changed
    )
    document = msgspec.structs.replace(DOCUMENT, functions=DOCUMENT.functions[:4])
    if frontends > 1:
        with Processes(settings, [], frontends) as processes:
            processes.node.register(document)
            yield processes.node, processes.port
        return
    with Node(settings) as node, BackgroundServer(node) as server:
        assert server.url.startswith("https://")
        node.register(document)
        yield node, int(server.url.rpartition(":")[2])


class Secure:
    """A node that speaks TLS."""

    def __init__(self, node: Node, port: int, chain: str) -> None:
        self.node = node
        self.port = port
        self.chain = chain
        self.url = f"https://127.0.0.1:{port}"

    def connect(self) -> socket.socket:
        """Connect without a handshake."""
        return socket.create_connection(("127.0.0.1", self.port), TIMEOUT_S)

    def secure(self) -> ssl.SSLSocket:
        """Connect with a handshake."""
        context = ssl.create_default_context(cafile=self.chain)
        return context.wrap_socket(self.connect(), server_hostname="127.0.0.1")


@pytest.fixture(scope="module", params=[1, 2])
def secure(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Secure]:
    chain, key = certificate(tmp_path_factory.mktemp("tls"))
    with serving(chain, key, request.param, head_timeout_s=1.0, body_timeout_s=1.0) as (node, port):
        yield Secure(node, port, chain)


def test_both_clients_invoke_over_tls(secure: Secure) -> None:
    with Client(secure.url, tls=secure.chain) as client:
        assert client.ready(TIMEOUT_S)
        for size in (1, 5000, 3 << 20):
            assert client.invoke("echo", a=b"x" * size).b.bytes() == b"x" * size

    async def ask() -> None:
        async with AsyncClient(secure.url, tls=secure.chain) as client:
            for size in (1, 5000, 3 << 20):
                result = await client.invoke("echo", a=b"y" * size)
                assert result.b.bytes() == b"y" * size

    asyncio.run(ask())


def test_clients_accept_a_context(secure: Secure) -> None:
    context = ssl.create_default_context(cafile=secure.chain)
    with Client(secure.url, tls=context) as client:
        assert client.invoke("echo", a=b"x").b.bytes() == b"x"


def test_clients_refuse_an_unknown_certificate(secure: Secure, tmp_path: Path) -> None:
    other, _ = certificate(tmp_path)
    for tls in (True, other):
        with Client(secure.url, tls=tls) as client, pytest.raises(Unreachable) as caught:
            client.list()
        assert "--ca FILE" in str(caught.value)

        async def ask(tls: bool | str = tls) -> None:
            async with AsyncClient(secure.url, tls=tls) as client:
                await client.list()

        with pytest.raises(Unreachable) as caught:
            asyncio.run(ask())
        assert "--ca FILE" in str(caught.value)


def test_clients_refuse_the_certificate_of_another_host(secure: Secure) -> None:
    url = secure.url.replace("127.0.0.1", "localhost")
    with Client(url, tls=secure.chain) as client, pytest.raises(Unreachable) as caught:
        client.list()
    assert "a name of the certificate" in str(caught.value)


def explains_scheme(url: str, expected: str) -> None:
    """Check that both clients say which scheme the server may have."""

    async def ask() -> None:
        async with AsyncClient(url) as client:
            await client.list()

    with Client(url) as client, pytest.raises(Unreachable) as caught:
        client.list()
    assert f"write {expected}://" in str(caught.value)
    with pytest.raises(Unreachable) as caught:
        asyncio.run(ask())
    assert f"write {expected}://" in str(caught.value)


def test_http_to_a_server_with_tls_is_explained(secure: Secure) -> None:
    explains_scheme(secure.url.replace("https:", "http:"), "https")


def test_https_to_a_server_without_tls_is_explained() -> None:
    with Node(SETTINGS) as node, BackgroundServer(node) as server:
        explains_scheme(server.url.replace("http:", "https:"), "http")


def test_clients_warn_if_they_check_nothing(secure: Secure) -> None:
    with pytest.warns(UnverifiedNode):
        client = Client(secure.url, tls=False)
    with client, pytest.warns(Warning, match="Unverified HTTPS"):
        assert client.list()
    with pytest.warns(UnverifiedNode):
        waiting = AsyncClient(secure.url, tls=False)

    async def ask() -> None:
        async with waiting:
            assert await waiting.list()

    asyncio.run(ask())


def test_plain_http_gets_no_response(secure: Secure) -> None:
    with secure.connect() as plain:
        plain.sendall(b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        with contextlib.suppress(ConnectionResetError):
            assert not plain.recv(4096).startswith(b"HTTP")


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_current_versions_are_served(secure: Secure, version: ssl.TLSVersion) -> None:
    context = ssl.create_default_context(cafile=secure.chain)
    context.minimum_version = context.maximum_version = version
    with Client(secure.url, tls=context) as client:
        assert client.list()


def test_old_versions_are_refused(secure: Secure) -> None:
    done = subprocess.run(
        ["openssl", "s_client", "-connect", f"127.0.0.1:{secure.port}", "-tls1_1",
         "-cipher", "ALL:@SECLEVEL=0"],
        input=b"",
        capture_output=True,
        timeout=TIMEOUT_S,
        check=False,
    )  # fmt: skip
    assert done.returncode
    assert b"Cipher is (NONE)" in done.stdout or b"alert" in done.stderr


def test_a_request_in_many_pieces_is_served(secure: Secure) -> None:
    with secure.secure() as connection:
        for part in (b"GET /hea", b"lthz HTTP/1.1\r\nHo", b"st: 127.0.0.1\r\n\r", b"\n"):
            connection.sendall(part)
        assert connection.recv(4096).startswith(b"HTTP/1.1 200")


def test_a_refusal_is_read_before_the_connection_closes(secure: Secure) -> None:
    with secure.secure() as connection:
        connection.sendall(b"POST /v1/none HTTP/1.1\r\nHost: evil\r\nContent-Length: 99\r\n\r\n")
        assert connection.recv(4096).startswith(b"HTTP/1.1 421")


@pytest.mark.parametrize(
    "begun", [b"", b"\x16", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\x00" * 20]
)
def test_a_silent_handshake_ends_after_the_time_of_a_head(secure: Secure, begun: bytes) -> None:
    with secure.connect() as silent:
        silent.sendall(begun)
        with contextlib.suppress(ConnectionResetError):
            while silent.recv(4096):
                pass  # raises TimeoutError if the node does not close the connection


def test_a_silent_connection_ends_after_its_handshake(secure: Secure) -> None:
    with secure.secure() as silent, contextlib.suppress(ConnectionResetError):
        while silent.recv(4096):
            pass


INVOKE = (
    b"POST /v1/invoke/echo HTTP/1.1\r\nHost: 127.0.0.1\r\n"
    b"Content-Type: application/octet-stream\r\nContent-Length: %d\r\n\r\n"
)


def test_a_body_that_stalls_is_refused(secure: Secure) -> None:
    with secure.secure() as stalled:
        stalled.sendall(INVOKE % (1 << 20) + b"x")
        assert stalled.recv(4096).startswith(b"HTTP/1.1 408")


def test_a_client_that_does_not_read_is_closed(secure: Secure) -> None:
    before = secure.node.info().arena.used_bytes
    with secure.connect() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        context = ssl.create_default_context(cafile=secure.chain)
        with context.wrap_socket(connection, server_hostname="127.0.0.1") as silent:
            silent.sendall(INVOKE % (8 << 20) + bytes(8 << 20))
            wait_until(lambda: secure.node.info().arena.used_bytes > before, TIMEOUT_S)
            wait_until(lambda: secure.node.info().arena.used_bytes <= before, TIMEOUT_S)


def test_silent_handshakes_do_not_keep_others_out(tmp_path: Path) -> None:
    chain, key = certificate(tmp_path)
    with (
        serving(chain, key, 1, max_connections=8, head_timeout_s=600.0) as (_, port),
        contextlib.ExitStack() as silent,
    ):
        for _ in range(32):
            one = silent.enter_context(socket.create_connection(("127.0.0.1", port), TIMEOUT_S))
            one.sendall(b"\x16\x03\x01")
        with Client(f"https://127.0.0.1:{port}", tls=chain) as client:
            assert client.invoke("echo", a=b"x").b.bytes() == b"x"


def test_a_server_closes_during_handshakes(tmp_path: Path) -> None:
    chain, key = certificate(tmp_path)
    with (
        contextlib.ExitStack() as silent,
        serving(chain, key, 1, head_timeout_s=600.0) as (_, port),
    ):
        for _ in range(4):
            one = silent.enter_context(socket.create_connection(("127.0.0.1", port), TIMEOUT_S))
            one.sendall(b"\x16\x03\x01")


def served_chain(port: int) -> str:
    return ssl.get_server_certificate(("127.0.0.1", port), timeout=TIMEOUT_S)


@pytest.mark.parametrize("frontends", [1, 2])
def test_a_signal_reads_the_certificate_again(tmp_path: Path, frontends: int) -> None:
    chain, key = certificate(tmp_path)
    command = [
        sys.executable, "-m", "dandelion", "serve", "--port", "0", "--backends", "null", "--json",
        "--frontends", str(frontends), "--tls-cert", chain, "--tls-key", key,
        "--arena-bytes", "16MiB", "--body-limit-bytes", "1MiB",
    ]  # fmt: skip
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        try:
            assert process.stdout is not None
            place = msgspec.json.decode(process.stdout.readline())
            assert place["url"].startswith("https://")
            old = served_chain(place["port"])
            certificate(tmp_path, key_type=RSA)
            assert served_chain(place["port"]) == old
            os.kill(process.pid, signal.SIGHUP)
            new = Path(chain).read_text().strip()
            wait_until(
                lambda: all(served_chain(place["port"]).strip() == new for _ in range(8)), 20
            )
            Path(key).write_text("damaged")
            os.kill(process.pid, signal.SIGHUP)
            assert served_chain(place["port"]).strip() == new
        finally:
            process.terminate()


@pytest.mark.parametrize("frontends", [1, 2])
def test_files_that_cannot_be_used_are_refused(tmp_path: Path, frontends: int) -> None:
    chain, key = certificate(tmp_path)
    other = tmp_path / "other"
    other.mkdir()
    for files in ((chain, ""), ("", key), (chain, certificate(other)[1]), (key, chain), ("x", "y")):
        with pytest.raises(InvalidInput, match="tls_"), serving(*files, frontends):
            pass


def test_a_server_that_stops_does_not_wait_for_idle_clients(tmp_path: Path) -> None:
    chain, key = certificate(tmp_path)
    settings = msgspec.structs.replace(SETTINGS, tls_cert=chain, tls_key=key)
    with Node(settings) as node, contextlib.ExitStack() as idle:
        with BackgroundServer(node) as server:
            client = idle.enter_context(Client(server.url, tls=chain))
            client.list()
            begun_s = time.monotonic()
        assert time.monotonic() - begun_s < 8


def test_a_slow_reader_gets_all_of_a_last_response(tmp_path: Path) -> None:
    size = 7 << 20  # more than the kernel keeps for both sides
    chain, key = certificate(tmp_path)
    head = b"POST /v1/invoke/echo HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
    with serving(chain, key, 1, body_timeout_s=1.0, body_rate_bytes=1000) as (node, port):
        made = Secure(node, port, chain)
        with made.secure() as connection:
            kind = b"Content-Type: application/octet-stream\r\n"
            connection.sendall(head + kind + b"Content-Length: %d\r\n\r\n" % size + bytes(size))
            received = 0
            for _ in range(30):
                time.sleep(0.05)
                received += len(connection.recv(16384))
            while piece := connection.recv(1 << 20):
                received += len(piece)
        assert received > size
