"""Clients that send nothing, half of something, or a byte at a time, and those that do not read.

In bounded form: small limits, a few hundred connections. Each client waits for what the server
does.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import re
import resource
import select
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import msgspec
import pytest

from dandelion.frontend import protocol
from dandelion.frontend.server import BackgroundServer
from dandelion.node import Node, TenantSettings
from dandelion.testing import wait_until
from tests.node.served import DOCUMENT, SETTINGS, GateDriver

HEAD = b"POST /v1/invoke/%b HTTP/1.1\r\nHost: localhost\r\n"
WHOLE = HEAD % b"echo" + b"Content-Length: 4\r\n\r\nbody"
PATIENT = {"head_timeout_s": 1000.0, "idle_timeout_s": 1000.0, "body_timeout_s": 1000.0}
SHORT_HEADS = PATIENT | {"head_timeout_s": 0.3}
SHORT_BODIES = PATIENT | {"body_timeout_s": 0.3}
"""A machine may stall at any time, so a server has one short limit at most."""
LIMIT_S = 20
STALLS_S = 60
"""How long something is tried again that fails if the machine stalls for as long as a limit."""


@dataclass
class Served:
    node: Node
    gate: GateDriver
    port: int
    opened: list[socket.socket] = field(default_factory=list)

    def connect(self, source: str = "127.0.0.1", read_bytes: int = 0) -> socket.socket:
        made = socket.socket()
        self.opened.append(made)
        made.settimeout(LIMIT_S)
        if read_bytes:
            made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, read_bytes)
        made.bind((source, 0))
        made.connect(("127.0.0.1", self.port))
        return made

    def ask(self, request: bytes = WHOLE) -> tuple[int, bytes]:
        """Ask as a new caller does."""
        connection = self.connect()
        with contextlib.closing(connection):
            connection.sendall(request)
            return answer_of(connection)[::2]

    def healthy(self) -> bool:
        return self.ask(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")[0] == 200


@contextmanager
def serving(**settings: object) -> Iterator[Served]:
    gate = GateDriver()
    with Node(msgspec.structs.replace(SETTINGS, **settings), [gate]) as node:
        node.register(DOCUMENT)
        assert node.wait_ready()
        with BackgroundServer(node, drain_s=5) as server:
            served = Served(node, gate, int(server.url.rpartition(":")[2]))
            try:
                yield served
            finally:
                gate.gate.open(100)
                for connection in served.opened:
                    connection.close()


@pytest.fixture(scope="module")
def short_heads() -> Iterator[Served]:
    """A server with a short limit of heads: a stalled client may be closed before it began."""
    with serving(**SHORT_HEADS) as served:
        yield served


@pytest.fixture(scope="module")
def quick() -> Iterator[Served]:
    """A server with a short limit of bodies and replies."""
    with serving(**SHORT_BODIES) as served:
        yield served


@pytest.fixture(scope="module")
def patient() -> Iterator[Served]:
    with serving() as served:
        yield served


def answer_of(connection: socket.socket) -> tuple[int, http.client.HTTPMessage, bytes]:
    response = http.client.HTTPResponse(connection)
    response.begin()
    return response.status, response.headers, response.read()


def answer_alone(connection: socket.socket) -> int:
    """Read an answer and nothing of what follows it; return its status."""
    head = b""
    while not head.endswith(b"\r\n\r\n"):
        byte = connection.recv(1)
        if not byte:
            raise ConnectionResetError("the server ended it before its answer")
        head += byte
    length = re.search(rb"(?i)content-length: (\d+)", head)
    if length is not None:
        connection.recv(int(length[1]), socket.MSG_WAITALL)
    return int(head.split()[1])


def ended(connection: socket.socket) -> bool:
    """Wait until the server has ended a connection on which it says nothing."""
    try:
        return connection.recv(1) == b""
    except ConnectionResetError:
        return True


def readable(connection: socket.socket, within_s: float) -> bool:
    """Wait until something has come, or the end; by `poll`, which takes all descriptors."""
    poll = select.poll()
    poll.register(connection, select.POLLIN)
    return bool(poll.poll(within_s * 1000))


def is_open(connection: socket.socket) -> bool:
    """Whether nothing has come, not even the end."""
    return not readable(connection, 0)


def drip(connection: socket.socket, what: bytes) -> None:
    """Send a byte at a time until the server answers or ends the connection."""
    end = time.monotonic() + LIMIT_S
    sent = 0
    while time.monotonic() < end:
        if readable(connection, 0.01):
            return
        with contextlib.suppress(ConnectionError):
            connection.send(what[sent % len(what) :][:1])
        sent += 1
    raise AssertionError("the server listened all the time")


def problem_on(connection: socket.socket) -> tuple[int, str]:
    """Read a problem, and the end of the connection after it."""
    status, headers, body = answer_of(connection)
    assert headers["connection"] == "close"
    assert headers["content-type"] == "application/problem+json"
    assert ended(connection)
    return status, json.loads(body)["type"].rpartition(":")[2]


def until_no_stall(attempt: Callable[[], bool]) -> None:
    """Try until an attempt succeeds; one that the server closed too early failed."""

    def succeeds() -> bool:
        with contextlib.suppress(ConnectionError, http.client.HTTPException):
            return attempt()
        return False

    wait_until(succeeds, STALLS_S)


# --- refusals -----------------------------------------------------------------------------------


@pytest.mark.parametrize("held_s", [0, 1000])
def test_the_next_request_after_a_refusal_is_read_later(
    held_s: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(protocol, "RETRY_AFTER_S", held_s)
    waits = HEAD % b"wait" + b"Content-Length: 4\r\n\r\nbody"
    with serving(max_waiting=1) as served:
        running, refused = served.connect(), served.connect()
        running.sendall(waits)
        while not served.node.info().running:
            assert served.healthy()
        for _ in range(3 if not held_s else 1):
            refused.sendall(waits)
            assert answer_of(refused)[0] == 429
        if held_s:
            refused.sendall(waits)
            assert all(served.healthy() for _ in range(10))
            assert is_open(refused)
        served.gate.gate.open()
        assert answer_of(running)[0] == 200


def test_a_refusal_for_a_tenant_does_not_delay_others_on_its_connection(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(protocol, "RETRY_AFTER_S", 1000)
    waits = HEAD % b"wait" + b"Content-Length: 4\r\n\r\nbody"
    with serving(tenants={"default": TenantSettings(invocations=1)}) as served:
        running, refused = served.connect(), served.connect()
        running.sendall(waits)
        while not served.node.info().running:
            assert served.healthy()
        for _ in range(3):
            refused.sendall(waits)
            assert answer_of(refused)[0] == 429
        served.gate.gate.open()
        assert answer_of(running)[0] == 200


# --- silence ------------------------------------------------------------------------------------


def test_silent_connections_are_closed(short_heads: Served) -> None:
    silent = [short_heads.connect() for _ in range(300)]
    blank = short_heads.connect()
    with contextlib.suppress(ConnectionError):
        blank.sendall(b"\r\n")  # which may come before a request, and is none
    until_no_stall(short_heads.healthy)
    assert all(ended(connection) for connection in [*silent, blank])
    until_no_stall(short_heads.healthy)


def test_half_a_head_is_answered_and_closed(short_heads: Served) -> None:
    def halves_end() -> bool:
        half = []
        for _ in range(300):
            half.append(short_heads.connect())
            half[-1].sendall(HEAD % b"echo" + b"x-half: ")
        until_no_stall(short_heads.healthy)
        assert {problem_on(connection) for connection in half} == {(408, "Stalled")}
        return True

    until_no_stall(halves_end)


@pytest.mark.parametrize("rubbish", [b"\x16\x03\x01\x02", b"GET / HTTP/1.1\n\n", b"get / HTTP"])
def test_what_cannot_be_a_head_is_refused_at_once(patient: Served, rubbish: bytes) -> None:
    connection = patient.connect()
    connection.sendall(rubbish)
    assert problem_on(connection) == (400, "InvalidInput")


def test_half_a_head_and_no_more_is_the_end(patient: Served) -> None:
    connection = patient.connect()
    connection.sendall(b"GET /heal")
    connection.shutdown(socket.SHUT_WR)
    assert ended(connection)


def test_a_dripping_head_is_not_heard_out(short_heads: Served) -> None:
    def head_ends() -> bool:
        connection = short_heads.connect()
        drip(connection, HEAD % b"echo" + b"x: y\r\n" * 10_000)
        assert problem_on(connection) == (408, "Stalled")
        return True

    until_no_stall(head_ends)


def test_idle_connections_are_closed() -> None:
    with serving(**PATIENT | {"idle_timeout_s": 0.6}) as served:
        connection = served.connect()
        connection.sendall(WHOLE * 2)
        assert [answer_alone(connection) for _ in range(2)] == [200, 200]
        assert ended(connection)


def test_half_a_head_after_a_request_is_closed(short_heads: Served) -> None:
    def half_ends() -> bool:
        connection = short_heads.connect()
        connection.sendall(WHOLE + b"GET /heal")
        assert answer_alone(connection) == 200
        assert problem_on(connection) == (408, "Stalled")
        return True

    until_no_stall(half_ends)


# --- bodies and replies -------------------------------------------------------------------------

FRAMES = {
    "of known size": b"Content-Length: 100000\r\n\r\n",
    "large": b"Content-Length: 4000000\r\n\r\n",
    "chunked": b"Transfer-Encoding: chunked\r\n\r\n20000\r\n",
    "form": b"Content-Type: multipart/form-data; boundary=B\r\nContent-Length: 100000\r\n\r\n"
    b'--B\r\ncontent-disposition: form-data; name="a"\r\n\r\n',
    "expected": b"Expect: 100-continue\r\nContent-Length: 100000\r\n\r\n",
}


@pytest.mark.parametrize("frame", FRAMES.values(), ids=FRAMES.keys())
@pytest.mark.parametrize("start", [0, 3000])
def test_a_dripping_body_is_not_heard_out(quick: Served, frame: bytes, start: int) -> None:
    at_rest = quick.node.info().arena.contexts
    connection = quick.connect()
    connection.sendall(HEAD % b"echo" + frame)
    if b"Expect" in frame:
        assert answer_alone(connection) == 100
    connection.sendall(bytes(start))
    drip(connection, b"x")
    assert problem_on(connection) == (408, "Stalled")
    assert quick.healthy()
    wait_until(lambda: quick.node.info().arena.contexts <= at_rest)


def test_a_body_behind_an_early_answer_is_not_heard_out_either(quick: Served) -> None:
    connection = quick.connect()
    connection.sendall(HEAD % b"ecko" + b"Content-Length: 100000\r\n\r\n")
    assert answer_alone(connection) == 404
    drip(connection, b"x")
    with contextlib.suppress(ConnectionResetError):
        assert b" 408 " in connection.recv(65536).partition(b"\r\n")[0]


def test_a_steady_body_may_take_its_time() -> None:
    with serving(**SHORT_BODIES | {"body_rate_bytes": 1000}) as served:

        def body_arrives() -> bool:
            connection = served.connect()
            connection.sendall(HEAD % b"echo" + b"Content-Length: 20000\r\n\r\n")
            for _ in range(20):  # about a second: several times the time-out
                if readable(connection, 0.05):
                    return False
                connection.sendall(bytes(1000))
            return answer_of(connection)[0] == 200

        until_no_stall(body_arrives)


def test_a_body_that_the_node_does_not_read_is_not_stalled(quick: Served) -> None:
    connection = quick.connect()
    connection.sendall(HEAD % b"wait" + b"Content-Length: 1\r\n\r\nx")
    assert quick.gate.gate.entered(LIMIT_S)
    large = b"Connection: close\r\nContent-Length: 300000\r\n\r\n" + bytes(300_000)
    connection.sendall(HEAD % b"echo" + large)  # which waits for its turn behind the first
    assert not readable(connection, 1.0)
    quick.gate.gate.open()
    answers = b"".join(iter(lambda: connection.recv(65536), b""))
    assert answers.count(b"HTTP/1.1 200 ") == 2


@pytest.mark.parametrize("close", [b"", b"Connection: close\r\n"])
def test_a_steady_reader_may_take_its_time(close: bytes) -> None:
    size = 7 << 20  # more than the kernel keeps for both sides
    head = HEAD % b"echo" + close + b"Content-Type: application/octet-stream\r\n"
    with serving(**SHORT_BODIES | {"body_rate_bytes": 1000}) as served:

        def reply_arrives() -> bool:
            connection = served.connect(read_bytes=16384)
            connection.sendall(head + b"Content-Length: %d\r\n\r\n" % size + bytes(size))
            received = 0
            for _ in range(20):  # about a second: several times the time-out
                time.sleep(0.05)
                received += len(connection.recv(16384))
            while received < size and (piece := connection.recv(1 << 20)):
                received += len(piece)
            return received >= size

        until_no_stall(reply_arrives)


@pytest.mark.parametrize("close", [b"", b"Connection: close\r\n"])
def test_a_reply_that_is_not_read_is_given_up(quick: Served, close: bytes) -> None:
    size = 7 << 20  # more than the kernel keeps for both sides
    at_rest = quick.node.info().arena.contexts
    connection = quick.connect(read_bytes=4096)
    head = HEAD % b"echo" + close + b"Content-Type: application/octet-stream\r\n"
    connection.sendall(head + b"Content-Length: %d\r\n\r\n" % size + bytes(size))
    poll = select.poll()
    poll.register(connection, select.POLLHUP)
    assert poll.poll(LIMIT_S * 1000)
    assert quick.healthy()
    wait_until(lambda: quick.node.info().arena.contexts <= at_rest)


# --- too large ----------------------------------------------------------------------------------

OVER = SETTINGS.body_limit_bytes + (20 << 20)


@pytest.mark.parametrize("frame", ["known", "chunked"])
def test_a_client_that_sends_all_first_reads_its_413(patient: Served, frame: str) -> None:
    connection = patient.connect()
    piece = bytes(1 << 20)
    if frame == "known":
        connection.sendall(HEAD % b"echo" + b"Content-Length: %d\r\n\r\n" % OVER)
    else:
        connection.sendall(HEAD % b"echo" + b"Transfer-Encoding: chunked\r\n\r\n")
    for _ in range(OVER >> 20):
        connection.sendall(piece if frame == "known" else b"100000\r\n%b\r\n" % piece)
    assert problem_on(connection) == (413, "TooLarge")
    assert patient.healthy()


def test_a_client_that_asks_first_gets_its_413_at_once(patient: Served) -> None:
    connection = patient.connect()
    frame = b"Expect: 100-continue\r\nContent-Length: %d\r\n\r\n" % OVER
    connection.sendall(HEAD % b"echo" + frame)
    assert problem_on(connection) == (413, "TooLarge")


def test_what_follows_a_refused_body_is_no_request(patient: Served) -> None:
    connection = patient.connect()
    connection.sendall(HEAD % b"echo" + b"Content-Length: %d\r\n\r\n" % OVER + WHOLE)
    assert problem_on(connection) == (413, "TooLarge")
    connection = patient.connect()
    expect = b"Expect: 100-continue\r\nContent-Length: 9\r\n\r\n"
    connection.sendall(HEAD % b"ecko" + expect)
    assert problem_on(connection) == (404, "Unknown")  # it is not known whether the body comes


@pytest.mark.parametrize("size", [200_000, 2_000_000])
def test_a_head_without_end_is_refused_also_in_one_piece(patient: Served, size: int) -> None:
    connection = patient.connect()
    connection.sendall(HEAD % b"echo" + b"x: " + b"y" * size)
    assert problem_on(connection) == (431, "HeadTooLong")


def test_a_head_below_the_limit_is_taken_also_in_pieces(patient: Served) -> None:
    connection = patient.connect()
    connection.sendall(WHOLE + HEAD % b"echo" + b"Content-Length: 4\r\nx: " + b"y" * 60_000)
    assert answer_of(connection)[0] == 200
    connection.sendall(b"\r\n\r\nbody")
    assert answer_of(connection)[0] == 200


# --- too many -----------------------------------------------------------------------------------


@pytest.mark.parametrize("sent", [b"", b"GET /heal", WHOLE[:-1], WHOLE], ids=str)
def test_new_callers_find_a_place(sent: bytes) -> None:
    with serving(max_connections=100, max_connections_per_peer=50) as served:
        for count in range(400):
            connection = served.connect()
            with contextlib.suppress(ConnectionError):
                connection.sendall(sent)
            if count % 40 == 0 and sent != WHOLE[:-1]:
                assert served.healthy()
                assert served.ask()[0] == 200
        assert served.healthy()


def test_served_connections_outlive_silent_ones() -> None:
    with serving(max_connections_per_peer=50) as served:
        known = served.connect()
        known.sendall(WHOLE)
        assert answer_of(known)[0] == 200
        silent = [served.connect() for _ in range(200)]
        assert all(ended(connection) for connection in silent[:151])
        known.sendall(WHOLE)
        assert answer_of(known)[0] == 200


def test_one_peer_takes_no_places_of_others() -> None:
    with serving(max_connections_per_peer=20, max_connections=60) as served:
        other = served.connect("127.0.0.9")
        silent = [served.connect() for _ in range(100)]
        assert all(ended(connection) for connection in silent[:80])
        assert is_open(other)
        other.sendall(WHOLE)
        assert answer_of(other)[0] == 200


def test_health_is_told_when_all_places_are_taken() -> None:
    with serving(max_connections=4) as served:
        busy = [served.connect() for _ in range(4)]
        for connection in busy:
            connection.sendall(HEAD % b"wait" + b"Content-Length: 1\r\n\r\nx")
        assert served.gate.gate.entered(LIMIT_S)  # of the first: one waits at the gate
        while served.node.info().running < 4:
            assert served.healthy()
        connection = served.connect()
        connection.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
        status, headers, _ = answer_of(connection)
        assert (status, headers["connection"]) == (200, "close")
        connection = served.connect()
        connection.sendall(WHOLE)
        status, headers, body = answer_of(connection)
        assert (status, headers["retry-after"]) == (503, "1")
        assert json.loads(body)["error"]["fields"] == {"limit": 4}
        served.gate.gate.open(4)
        assert {answer_of(connection)[0] for connection in busy} == {200}
        assert served.ask()[0] == 200


LITTLE = """
import resource, runpy, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (100, int(sys.argv.pop(1))))
sys.argv[0] = "dandelion"
runpy.run_module("dandelion", run_name="__main__")
"""


@pytest.mark.parametrize(
    ("hard", "limits", "raised"),
    [(300, [], 300), (5000, ["--max-connections=100"], 356)],
    ids=["fewer descriptors", "enough"],
)
def test_more_connections_than_places(hard: int, limits: list[str], raised: int) -> None:
    command = [sys.executable, "-c", LITTLE, str(hard), "serve", "--json", "--port=0"]
    with contextlib.ExitStack() as opened:
        process = opened.enter_context(
            subprocess.Popen(
                [*command, "--backends=null", *limits],
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
            )
        )
        opened.callback(process.terminate)
        assert process.stdout is not None
        port = json.loads(process.stdout.readline())["port"]
        assert resource.prlimit(process.pid, resource.RLIMIT_NOFILE) == (raised, hard)
        for _ in range(500):
            opened.enter_context(socket.create_connection(("127.0.0.1", port), LIMIT_S))
        for _ in range(20):
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=LIMIT_S)
            opened.enter_context(contextlib.closing(connection))
            connection.request("GET", "/healthz")
            assert connection.getresponse().status == 200
