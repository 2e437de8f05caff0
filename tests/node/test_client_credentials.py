"""Tokens, headers, certificates and path prefixes of the clients and the command line."""

from __future__ import annotations

import asyncio
import contextlib
import http.server
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from dandelion import AsyncClient, Client
from dandelion.cli.main import main
from dandelion.errors import InvalidInput
from dandelion.frontend.client_requests import ClientTarget

from .guarded import Guarded, guarded, named, token

SECRET = "a-secret-token"


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    with guarded(tmp_path_factory.mktemp("tokens"), 1) as opened:
        opened.node.register(named("echo"), tenant="acme")
        assert opened.node.wait_ready()
        yield opened


class Recorder(http.server.BaseHTTPRequestHandler):
    """Answers that nothing is registered, and keeps what was asked."""

    requested: list[tuple[str, str | None, str | None]]

    def do_GET(self) -> None:
        self.requested.append(
            (self.path, self.headers.get("Authorization"), self.headers.get("X-Team"))
        )
        body = b"{}"
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Print nothing."""


@contextlib.contextmanager
def recording() -> Iterator[tuple[str, list[tuple[str, str | None, str | None]]]]:
    requested: list[tuple[str, str | None, str | None]] = []

    class Handler(Recorder):
        pass

    Handler.requested = requested
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}", requested
        server.shutdown()
        thread.join()


@pytest.mark.parametrize("prefix", ["", "/", "/prefix", "/a/b/", "/a%20b"])
def test_a_prefix_is_put_before_the_path(prefix: str) -> None:
    with (
        recording() as (url, requested),
        Client(url + prefix, token=SECRET, headers={"X-Team": "red"}) as client,
    ):
        client.list()
    expected = prefix.rstrip("/") + "/v1/functions"
    assert requested[0] == (expected, f"Bearer {SECRET}", "red")


def test_a_prefix_is_put_before_the_path_of_the_asynchronous_client() -> None:
    async def ask(url: str) -> None:
        async with AsyncClient(url + "/a/b", token=SECRET, headers={"X-Team": "red"}) as client:
            await client.list()

    with recording() as (url, requested):
        asyncio.run(ask(url))
    assert requested[0] == ("/a/b/v1/functions", f"Bearer {SECRET}", "red")


@pytest.mark.parametrize("kind", [Client, AsyncClient])
@pytest.mark.parametrize(
    "wrong", ["", " ", f"{SECRET}\n", f"{SECRET} x", "é-" + SECRET, "x\r\ny: z"]
)
def test_a_malformed_token_is_refused_and_not_shown(
    kind: type[Client] | type[AsyncClient], wrong: str
) -> None:
    with pytest.raises(InvalidInput) as refused:
        kind(token=wrong)
    assert SECRET not in str(refused.value)


def test_no_error_and_no_representation_has_a_secret() -> None:
    for headers, url in (
        ({"Authorization": f"{SECRET}\n"}, "http://127.0.0.1:1"),
        ({}, f"http://user:{SECRET}@127.0.0.1:1"),
        ({"Authorization": SECRET}, "http://127.0.0.1:1"),
    ):
        with pytest.raises(InvalidInput) as refused:
            Client(url, token="x", headers=headers)
        assert SECRET not in str(refused.value)
    target = ClientTarget.of("http://127.0.0.1:1", 1.0, None, 1, SECRET, True)
    assert SECRET not in repr(target)
    with Client("http://127.0.0.1:1", token=SECRET) as client:
        assert SECRET not in repr(client)


def test_a_file_of_certificates_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    (tmp_path / "empty.pem").write_text("")
    for name in ("none.pem", "empty.pem"):
        with pytest.raises(InvalidInput, match=name):
            Client("https://127.0.0.1:1", tls=tmp_path / name)


def test_the_command_line_takes_a_token(
    served: Guarded,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfdbinary: pytest.CaptureFixture[bytes],
) -> None:
    words = ["ls", "functions", "--url", f"http://127.0.0.1:{served.port}"]
    monkeypatch.delenv("DANDELION_TOKEN", raising=False)
    assert main(words) == 1
    error = capfdbinary.readouterr().err
    assert b"no valid token" in error
    assert b"DANDELION_TOKEN" in error
    file = tmp_path / "token"
    file.write_text(token("acme") + "\n")
    for given in (token("acme"), f"@{file}"):
        assert main([*words, "--token", given]) == 0
        assert b"echo" in capfdbinary.readouterr().out
    monkeypatch.setenv("DANDELION_TOKEN", token("acme"))
    assert main(words) == 0
    assert b"echo" in capfdbinary.readouterr().out
    assert main([*words, "--token", "wrong" + SECRET]) == 1
    assert SECRET.encode() not in capfdbinary.readouterr().err
    assert main(["ls", "--help"]) == 0
    assert token("acme").encode() not in capfdbinary.readouterr().out
