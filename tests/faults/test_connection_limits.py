"""Requests that are too large, and too many connections."""

from __future__ import annotations

import contextlib
import http.client
import json
import resource
import socket
import subprocess
import sys
from collections.abc import Iterator

import pytest

from tests.faults.raw_connections import (
    HEAD,
    LIMIT_S,
    WHOLE,
    Served,
    answer_of,
    ended,
    is_open,
    problem_on,
    serving,
)
from tests.node.served import SETTINGS


@pytest.fixture(scope="module")
def patient() -> Iterator[Served]:
    with serving() as served:
        yield served


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
