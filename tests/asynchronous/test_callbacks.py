"""Callbacks: which URLs are allowed, what is sent, and that it is tried again."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import msgspec
import pytest

from dandelion import Node
from dandelion.asynchronous import callbacks
from dandelion.asynchronous.callbacks import CallbackPrefix, after_attempt, check_callback
from dandelion.asynchronous.records import CallbackRecord, CallbackState
from dandelion.asynchronous.signing import HEADER, WINDOW_S, sign, verify
from dandelion.errors import InvalidInput
from dandelion.node import callback_sender
from dandelion.node.callback_answer import LIMIT_BYTES
from dandelion.testing import wait_until
from tests.node.served import DOCUMENT, SETTINGS

SECRET = "a secret of the tenant default"
LIMIT_S = 20.0
NO_ANSWER = "the connection was closed without an answer"


class Hook:
    """Receives callbacks.

    Attributes:
        received: path, headers and body of each request.
        answers: statuses to answer with; 200 when there are none left.
        raw: what is sent instead of an answer.
        answering: is awaited before an answer.
    """

    def __init__(self) -> None:
        self.received: list[tuple[str, dict[str, str], bytes]] = []
        self.answers: list[int] = []
        self.raw: bytes | None = None
        self.answering = threading.Event()
        self.answering.set()
        hook = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:  # the name that the base class calls
                body = self.rfile.read(int(self.headers["Content-Length"]))
                hook.received.append((self.path, dict(self.headers.items()), body))
                hook.answering.wait()
                if hook.raw is not None:
                    self.wfile.write(hook.raw)
                    return
                self.send_response(hook.answers.pop(0) if hook.answers else 200)
                self.send_header("Location", f"http://127.0.0.1:{hook.port}/redirected")
                self.end_headers()

            def log_message(self, *arguments: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.port = self._server.server_address[1]
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self._thread.start()

    def close(self) -> None:
        self.answering.set()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


@pytest.fixture
def hook() -> Iterator[Hook]:
    made = Hook()
    yield made
    made.close()


def node_of(hook: Hook, folder: Path, **changes: Any) -> Node:
    secrets = folder / "secrets.toml"
    secrets.write_text(f'[secrets]\ndefault = "{SECRET}"\n')
    given = {
        "callback_allow": (f"http://127.0.0.1:{hook.port}/hooks", f"http://localhost:{hook.port}/"),
        "callback_networks": ("127.0.0.0/8", "::1/128"),
        "callback_secrets": str(secrets),
        **changes,
    }
    settings = msgspec.structs.replace(SETTINGS, **given)
    return Node(settings)


def register(node: Node) -> None:
    node.register(*(f for f in DOCUMENT.functions if f.name in ("echo", "fail")))


def test_a_signed_callback_is_sent_and_repeated(
    hook: Hook, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(callbacks, "FIRST_PAUSE_S", 0.01)
    hook.answers = [500, 302, 204]
    with node_of(hook, tmp_path) as node:
        register(node)
        url = f"http://127.0.0.1:{hook.port}/hooks/one?x=%20y"
        handle = node.submit("echo", a=b"1", callback=url)
        wait_until(lambda: len(hook.received) == 3, LIMIT_S)
        wait_until(lambda: handle.view().callback.state is CallbackState.DELIVERED, LIMIT_S)  # type: ignore[union-attr]  # it has one
    for number, (path, headers, body) in enumerate(hook.received):
        assert path == "/hooks/one?x=%20y"
        assert verify(SECRET.encode(), headers[HEADER], body, time.time())
        assert headers["Dandelion-Attempt"] == str(number + 1)
        assert headers["Content-Type"] == "application/json"
        told = msgspec.json.decode(body)
        assert (told["id"], told["state"], told["name"]) == (handle.id, "succeeded", "echo")
        assert told["result"] == f"/v1/invocations/{handle.id}/result"


def test_a_failure_is_told_and_in_the_end_it_is_given_up(
    hook: Hook, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(callbacks, "FIRST_PAUSE_S", 0.0)
    hook.answers = [500] * callbacks.ATTEMPTS
    with node_of(hook, tmp_path) as node:
        register(node)
        url = f"http://localhost:{hook.port}/x"
        handle = node.submit("fail", a=b"1", callback=url)
        wait_until(lambda: handle.view().callback.state is CallbackState.GIVEN_UP, LIMIT_S)  # type: ignore[union-attr]  # it has one
        callback = handle.view().callback
        assert callback is not None
        assert (callback.attempts, callback.problem) == (callbacks.ATTEMPTS, "status 500")
    assert len(hook.received) == callbacks.ATTEMPTS
    told = msgspec.json.decode(hook.received[0][2])
    assert (told["state"], told["error"]) == ("failed", "Raised")
    assert "result" not in told


@pytest.mark.parametrize(
    ("raw", "problem"),
    [
        (b"220 mail.internal\r\n", "the answer is not valid HTTP"),
        (b"HTTP/1.1 200 OK\r\nX: " + bytes(9000), "the answer is not valid HTTP"),
        (b"HTTP/1.1 200", NO_ANSWER),
        (b"", NO_ANSWER),
    ],
)
def test_an_answer_that_is_none_is_not_shown(
    hook: Hook, tmp_path: Path, raw: bytes, problem: str
) -> None:
    hook.raw = raw
    with node_of(hook, tmp_path) as node:
        assert problem_of(node, f"http://127.0.0.1:{hook.port}/hooks/x") == problem


INTERIM = b"HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n"
OK = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n"


@pytest.mark.parametrize(
    ("raw", "problem"),
    [
        (3 * INTERIM + OK % 0, ""),
        (OK % LIMIT_BYTES + bytes(LIMIT_BYTES), ""),
        (LIMIT_BYTES // len(INTERIM) * INTERIM + OK % 0, NO_ANSWER),
    ],
    ids=["interim responses", "a long body", "too many interim responses"],
)
def test_only_the_beginning_of_an_answer_is_read(
    hook: Hook, tmp_path: Path, raw: bytes, problem: str
) -> None:
    hook.raw = raw
    with node_of(hook, tmp_path) as node:
        assert problem_of(node, f"http://127.0.0.1:{hook.port}/hooks/x") == problem


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_no_receiver(tmp_path: Path, host: str) -> None:
    hook = Hook()
    hook.close()
    path = "/hooks/x" if host == "127.0.0.1" else "/x"
    with node_of(hook, tmp_path) as node:
        found = problem_of(node, f"http://{host}:{hook.port}{path}")
        assert found == "no connection: Connection refused"


def test_a_receiver_that_does_not_answer_delays_no_other(
    hook: Hook, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(callback_sender, "LIMIT_S", 1000.0)
    other = Hook()
    other.answering.clear()
    allowed = tuple(f"http://127.0.0.1:{one.port}/" for one in (hook, other))
    try:
        with node_of(hook, tmp_path, callback_allow=allowed) as node:
            register(node)
            for _ in range(callback_sender.CONCURRENCY + 1):
                node.submit("echo", a=b"1", callback=allowed[1]).result(LIMIT_S)
            wait_until(lambda: len(other.received) == callback_sender.RECEIVER_CONCURRENCY, LIMIT_S)
            node.submit("echo", a=b"1", callback=allowed[0])
            wait_until(lambda: hook.received, LIMIT_S)
            assert len(other.received) == callback_sender.RECEIVER_CONCURRENCY
            other.answering.set()
            wait_until(lambda: len(other.received) == callback_sender.CONCURRENCY + 1, LIMIT_S)
    finally:
        other.close()


def problem_of(node: Node, url: str) -> str:
    """Give the problem of the first attempt of a callback."""
    register(node)
    handle = node.submit("echo", a=b"1", callback=url)
    wait_until(lambda: handle.view().callback.attempts, LIMIT_S)  # type: ignore[union-attr]  # it has one
    callback = handle.view().callback
    assert callback is not None
    return callback.problem


def test_private_addresses_are_not_reached_unless_allowed(hook: Hook, tmp_path: Path) -> None:
    with node_of(hook, tmp_path, callback_networks=()) as node:
        register(node)
        for host in ("127.0.0.1", "localhost"):
            path = "/hooks/x" if host == "127.0.0.1" else "/x"
            url = f"http://{host}:{hook.port}{path}"
            handle = node.submit("echo", a=b"1", callback=url)
            wait_until(lambda h=handle: h.view().callback.attempts, LIMIT_S)  # type: ignore[misc]
            callback = handle.view().callback
            assert callback is not None
            assert "may" in callback.problem
    assert hook.received == []


def test_a_callback_survives_a_restart(hook: Hook, tmp_path: Path) -> None:
    catalog = f"sqlite:{tmp_path / 'store'}"
    url = f"http://127.0.0.1:{hook.port}/hooks/x"
    with node_of(hook, tmp_path, catalog=catalog, callback_networks=()) as node:
        register(node)
        handle = node.submit("echo", a=b"1", callback=url)
        wait_until(lambda: handle.view().callback.attempts, LIMIT_S)  # type: ignore[union-attr]  # it has one
    assert hook.received == []
    with node_of(hook, tmp_path, catalog=catalog) as node:
        wait_until(lambda: hook.received, LIMIT_S)
    assert msgspec.json.decode(hook.received[0][2])["id"] == handle.id


def test_without_a_list_or_a_secret_there_are_no_callbacks(hook: Hook, tmp_path: Path) -> None:
    url = f"http://127.0.0.1:{hook.port}/hooks/x"
    for changes in ({"callback_allow": ()}, {"callback_secrets": ""}):
        with node_of(hook, tmp_path, **changes) as node:
            register(node)
            with pytest.raises(InvalidInput):
                node.submit("echo", a=b"1", callback=url)
            assert SECRET not in repr(node.settings)


@pytest.mark.parametrize(
    "text",
    ["", "[secrets]\ndefault = 1", '[secrets]\ndefault = "short"', '[other]\na = "b"', "a = b ="],
)
def test_a_bad_file_of_secrets_is_refused(hook: Hook, tmp_path: Path, text: str) -> None:
    path = tmp_path / "bad.toml"
    path.write_text(text)
    with pytest.raises(InvalidInput) as caught:
        node_of(hook, tmp_path, callback_secrets=str(path))
    assert "callback_secrets" in str(caught.value)
    with pytest.raises(InvalidInput):
        node_of(hook, tmp_path, callback_networks=("10.0.0.0/99",))
    with pytest.raises(InvalidInput):
        node_of(hook, tmp_path, callback_allow=("hooks.example.org",))


ALLOWED = [
    CallbackPrefix.read(text)
    for text in (
        "https://hooks.example.org/in",
        "https://*.acme.example/",
        "http://[2001:db8::1]:81/",
    )
]


@pytest.mark.parametrize(
    ("url", "allowed"),
    [
        ("https://hooks.example.org/in", True),
        ("https://hooks.example.org/in/a?b=c", True),
        ("https://HOOKS.example.org:443/in/", True),
        ("https://a.acme.example/x", True),
        ("https://a.b.acme.example", True),
        ("http://[2001:db8::1]:81/x", True),
        ("https://hooks.example.org/inner", False),
        ("https://hooks.example.org/", False),
        ("https://hooks.example.org/in/../out", False),
        ("https://hooks.example.org/in/%2e%2e/out", False),
        ("https://hooks.example.org/in/%252e%252e/out", False),
        ("https://hooks.example.org/in/..%2fout", False),
        ("http://hooks.example.org/in", False),
        ("https://hooks.example.org:8443/in", False),
        ("https://hooks.example.org.evil.example/in", False),
        ("https://hooks.example.org@evil.example/in", False),
        ("https://evil.example\\@hooks.example.org/in", False),
        ("https://evil.example#@hooks.example.org/in", False),
        ("https://acme.example/x", False),
        ("https://eacme.example/x", False),
        ("https://hooks.example.org/in\n", False),
        ("https://hooks.example.org:x/in", False),
        ("file:///etc/passwd", False),
        ("https:///in", False),
        ("https://hooks.example.org/in/" + "x" * 3000, False),
    ],
)
def test_which_urls_may_be_called(url: str, allowed: bool) -> None:
    if allowed:
        check_callback(url, ALLOWED, has_secret=True)
        return
    with pytest.raises(InvalidInput):
        check_callback(url, ALLOWED, has_secret=True)


def test_signatures_hold_for_one_body_one_secret_and_a_time() -> None:
    header = sign(b"secret", b"body", 1000.9)
    assert verify(b"secret", header, b"body", 1000.0)
    assert verify(b"secret", header, b"body", 1000.0 + WINDOW_S)
    assert not verify(b"secret", header, b"body", 1001.0 + WINDOW_S)
    assert not verify(b"secret", header, b"body", 999.0 - WINDOW_S)
    assert not verify(b"secret", header, b"bodx", 1000.0)
    assert not verify(b"other", header, b"body", 1000.0)
    for bad in ("", "t=1,v1=", header.upper(), header + " ", header.replace("t=1000", "t=1001")):
        assert not verify(b"secret", bad, b"body", 1000.0)


def test_pauses_grow_and_end() -> None:
    callback, now, pauses = CallbackRecord("https://x.example/"), 0.0, []
    while callback.state is CallbackState.WAITING:
        callback = after_attempt(callback, "refused", now)
        pauses.append(callback.due_s - now)
        now = callback.due_s
    assert pauses[:-1] == [1.0, 4.0, 16.0, 64.0, 256.0, 600.0, 600.0]
    assert callback.state is CallbackState.GIVEN_UP
    done = after_attempt(CallbackRecord("https://x.example/"), "", 5.0)
    assert done.state is CallbackState.DELIVERED
