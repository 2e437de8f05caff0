"""Clients that send nothing, half of something, or a byte at a time, and those that do not read.

In bounded form: small limits, a few hundred connections. Each client waits for what the server
does.
"""

from __future__ import annotations

import contextlib
import select
import socket
import time
from collections.abc import Iterator

import pytest

from dandelion.frontend import protocol
from dandelion.node import TenantSettings
from dandelion.testing import wait_until
from tests.faults.raw_connections import (
    HEAD,
    LIMIT_S,
    WHOLE,
    Served,
    answer_of,
    ended,
    is_open,
    problem_on,
    readable,
    serving,
)

QUICK = {"head_timeout_s": 0.3, "idle_timeout_s": 0.6, "body_timeout_s": 0.3}


@pytest.fixture(scope="module")
def quick() -> Iterator[Served]:
    """A server with short time limits."""
    with serving(**QUICK) as served:
        yield served


@pytest.fixture(scope="module")
def patient() -> Iterator[Served]:
    with serving() as served:
        yield served


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


def test_silent_connections_are_closed(quick: Served) -> None:
    silent = [quick.connect() for _ in range(300)]
    blank = quick.connect()
    blank.sendall(b"\r\n")  # which may come before a request, and is none
    assert quick.healthy()
    assert all(ended(connection) for connection in [*silent, blank])
    assert quick.healthy()


def test_half_a_head_is_answered_and_closed(quick: Served) -> None:
    half = [quick.connect() for _ in range(300)]
    for connection in half:
        connection.sendall(HEAD % b"echo" + b"x-half: ")
    assert quick.healthy()
    assert {problem_on(connection) for connection in half} == {(408, "Stalled")}


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


def test_a_dripping_head_is_not_heard_out(quick: Served) -> None:
    connection = quick.connect()
    drip(connection, HEAD % b"echo" + b"x: y\r\n" * 10_000)
    assert problem_on(connection) == (408, "Stalled")


def test_idle_connections_are_closed(quick: Served) -> None:
    connection = quick.connect()
    for _ in range(2):
        connection.sendall(WHOLE)
        assert answer_of(connection)[0] == 200
    assert ended(connection)


def test_half_a_head_after_a_request_is_closed() -> None:
    with serving(**QUICK | {"idle_timeout_s": 1000.0}) as served:
        connection = served.connect()
        connection.sendall(WHOLE + b"GET /heal")
        assert answer_of(connection)[0] == 200
        assert problem_on(connection) == (408, "Stalled")


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
        assert connection.recv(1000).startswith(b"HTTP/1.1 100 ")
    connection.sendall(bytes(start))
    drip(connection, b"x")
    assert problem_on(connection) == (408, "Stalled")
    assert quick.healthy()
    wait_until(lambda: quick.node.info().arena.contexts <= at_rest)


def test_a_body_behind_an_early_answer_is_not_heard_out_either(quick: Served) -> None:
    connection = quick.connect()
    connection.sendall(HEAD % b"ecko" + b"Content-Length: 100000\r\n\r\n")
    assert answer_of(connection)[0] == 404
    drip(connection, b"x")
    with contextlib.suppress(ConnectionResetError):
        assert b" 408 " in connection.recv(65536).partition(b"\r\n")[0]


def test_a_steady_body_may_take_its_time() -> None:
    with serving(**QUICK | {"body_rate_bytes": 1000}) as served:
        connection = served.connect()
        connection.sendall(HEAD % b"echo" + b"Content-Length: 20000\r\n\r\n")
        for _ in range(20):  # about a second: several times the time-out
            assert not readable(connection, 0.05)
            connection.sendall(bytes(1000))
        assert answer_of(connection)[0] == 200


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
