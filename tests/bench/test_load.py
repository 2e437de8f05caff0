"""Load over HTTP: what is counted, what goes wrong, and that a run always ends."""

from __future__ import annotations

import select
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import pytest
from dandelion.bench import load as load_module
from dandelion.bench.load import (
    Arrivals,
    HttpRequest,
    LoadOrder,
    LoadResult,
    closed_loop,
    intended_times,
    open_loop,
)
from dandelion.bench.load_connection import LoadConnection
from dandelion.bench.load_generator import RequestLog
from dandelion.bench.processes import ServerProcess
from dandelion.bench.samples import Samples
from dandelion.bench.systems.asgi import asgi_server

from tests.bench.scripted_server import REQUEST, Fault, Script, account_of, scripted_server

QUICK = Script(((100.0, 1.0),))
MS = 1_000_000


@pytest.fixture(scope="module")
def echo() -> Iterator[ServerProcess]:
    with asgi_server() as server:
        yield server


@contextmanager
def answering(head: bytes, body: bytes, opened: list[object] | None = None) -> Iterator[int]:
    """Serves one answer again and again from a thread; notes the connections in a list."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["content-length"]))
            self.wfile.write(b"HTTP/1.1 200 OK\r\n" + head + b"\r\n" + body)
            self.close_connection = b"close" in head

        def setup(self) -> None:
            super().setup()
            if opened is not None:
                opened.append(self.client_address)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - of the library
            pass

    class Server(ThreadingHTTPServer):
        request_queue_size = 128  # by default 5, beyond which a connection takes a second

    server = Server(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    server.block_on_close = False
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


# --- intended times -----------------------------------------------------------------------------


@pytest.mark.parametrize("arrivals", Arrivals)
def test_intended_times_are_fixed_by_the_seed(arrivals: Arrivals) -> None:
    times = intended_times(1000, 5, arrivals, seed=3)
    assert len(times) == 5000
    assert np.all(np.diff(times) >= 0)
    assert 0 <= times[0] <= times[-1] < 5e9
    assert np.array_equal(times, intended_times(1000, 5, arrivals, seed=3))


def test_poisson_gaps_are_exponential_and_even_ones_are_not() -> None:
    gaps = np.diff(intended_times(1000, 20, Arrivals.POISSON, seed=1)) / MS
    assert gaps.mean() == pytest.approx(1, rel=0.01)
    assert gaps.std() == pytest.approx(1, rel=0.05)
    assert np.ptp(np.diff(intended_times(1000, 20, Arrivals.EVEN, seed=1))) <= 2
    other = np.diff(intended_times(1000, 20, Arrivals.POISSON, seed=2)) / MS
    assert not np.array_equal(gaps, other)


# --- what is counted ----------------------------------------------------------------------------


def test_every_request_of_an_open_loop_is_accounted_for() -> None:
    faults = {
        3: Fault.STATUS, 5: Fault.CLOSE, 7: Fault.WRONG, 9: Fault.NO_HTTP, 11: Fault.SILENCE,
        60: Fault.WRONG, 61: Fault.WRONG,
    }  # fmt: skip
    with scripted_server(Script(((100.0, 1.0),), faults=faults)) as server:
        load = open_loop(
            server.port, REQUEST, rate_per_s=200, seconds=0.5, warm_up_s=0, drain_s=1.0
        )
        account = account_of(server)
    words = ("status 503", "closed", "no HTTP", "unanswered")
    assert load.errors == {**dict.fromkeys(words, 1), "wrong answer": 3}
    assert load.offered_per_s == 200
    assert load.count + load.failed == 100
    assert sorted([*account.numbers, 5, 11]) == list(range(100))
    assert "3 x wrong answer" in load.note


def test_the_warm_up_does_not_count() -> None:
    faults = dict.fromkeys(range(40), Fault.STATUS)
    script = Script(((100.0, 1.0),), faults=faults)
    with scripted_server(script) as server:
        load = open_loop(
            server.port, REQUEST, rate_per_s=200, seconds=0.3, warm_up_s=0.2,
            arrivals=Arrivals.EVEN,
        )  # fmt: skip
    assert load.errors == {}
    assert load.count == 60
    assert load.offered_per_s == pytest.approx(200)


def test_waiting_for_a_stalled_server_counts_from_the_intended_time() -> None:
    stalls = Script(((100.0, 1.0),), stall_every_s=0.1, stall_s=0.3)
    with scripted_server(stalls) as server:
        load = open_loop(
            server.port, REQUEST, rate_per_s=200, seconds=0.6, warm_up_s=0, connections=1,
            arrivals=Arrivals.EVEN,
        )  # fmt: skip
    latency, service = load.latency, load.service
    assert load.count == 120
    assert load.queued >= 50  # those whose turn came while the only connection was waiting
    assert latency.percentile(75) > 100_000
    assert service.percentile(75) < latency.percentile(75)  # as a closed loop would have it


def test_a_closed_loop_asks_when_it_is_answered() -> None:
    with scripted_server(QUICK) as server:
        load = closed_loop(server.port, REQUEST, callers=3, seconds=0.2, warm_up_s=0.1)
        account = account_of(server)
    assert load.errors == {}
    assert load.latency == load.service
    assert 0 < load.count < len(account.numbers)
    assert load.achieved_per_s <= load.offered_per_s + 3 / 0.2
    assert set(load.values()) >= {"p50", "p90", "p99", "p999", "achieved_per_s"}


def test_a_closed_loop_waits_for_its_last_answers_as_long_as_it_is_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    orders: list[LoadOrder] = []
    monkeypatch.setattr(load_module, "_generate", orders.append)
    closed_loop(1, REQUEST, callers=3, seconds=0.2, drain_s=20)
    closed_loop(1, REQUEST, callers=3, seconds=0.2)
    assert [(one.seconds, one.warm_up_s, one.drain_s) for one in orders] == [
        (0.2, 0.5, 20),
        (0.2, 0.5, 1),
    ]


# --- HTTP ---------------------------------------------------------------------------------------


def test_several_requests_take_turns(echo: ServerProcess) -> None:
    requests = [
        HttpRequest("/", b"a", expect=b"a"),
        HttpRequest("/", b"b", expect=b"b"),
        HttpRequest("/", b"c", expect=b"never"),
        HttpRequest("/", b"d"),
    ]
    load = open_loop(echo.port, requests, rate_per_s=400, seconds=0.2, warm_up_s=0)
    assert load.errors == {"wrong answer": 20}
    assert load.count == 60


def test_large_bodies_go_both_ways(echo: ServerProcess) -> None:
    body = bytes(range(256)) * 16384
    load = closed_loop(
        echo.port, HttpRequest("/", body, expect=body), callers=2, seconds=0.5, warm_up_s=0
    )
    assert load.errors == {}
    assert load.count >= 2


@pytest.mark.parametrize(
    ("head", "body"),
    [
        (b"connection: close\r\ncontent-length: 2\r\n", b"ok"),
        (b"transfer-encoding: chunked\r\n", b"1\r\no\r\n1\r\nk\r\n0\r\n\r\n"),
    ],
    ids=["close", "chunked"],
)
def test_other_ways_to_answer(head: bytes, body: bytes) -> None:
    with answering(head, body) as port:
        request = HttpRequest("/", b"?", expect=b"ok")
        load = open_loop(port, request, rate_per_s=100, seconds=0.2, warm_up_s=0)
        closed = closed_loop(port, request, callers=2, seconds=0.2, warm_up_s=0)
    assert load.errors == closed.errors == {}
    assert load.count == 20
    assert closed.count > 2


def test_a_connection_is_used_again() -> None:
    opened: list[object] = []
    with answering(b"content-length: 2\r\n", b"ok", opened) as port:
        load = closed_loop(
            port, HttpRequest("/", b"?", expect=b"ok"), callers=3, seconds=0.2, warm_up_s=0
        )
    assert load.count > 6
    assert len(opened) == 3


# --- what goes wrong ----------------------------------------------------------------------------


def test_a_server_that_refuses_is_counted() -> None:
    with socket.socket() as unused:  # which does not listen
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
        load = open_loop(port, REQUEST, rate_per_s=1000, seconds=0.2, warm_up_s=0.1)
        assert load.errors == {"refused": round(load.offered_per_s * 0.2)}
        assert load.count == load.achieved_per_s == 0
        load = closed_loop(port, REQUEST, callers=2, seconds=0.2, warm_up_s=0)
    assert load.errors.keys() == {"refused"}
    assert load.failed < 100  # it does not run wild


def test_a_server_that_dies_is_counted() -> None:
    with scripted_server(Script(((1000.0, 1.0),))) as server:
        timer = threading.Timer(0.3, server.stop)
        timer.start()
        load = open_loop(
            server.port, REQUEST, rate_per_s=200, seconds=0.8, warm_up_s=0, connections=4
        )
        timer.join()
    assert load.count + load.failed == 160
    assert load.errors.keys() <= {"closed", "refused"}
    assert load.errors["refused"] > 0


def test_a_server_that_says_nothing_does_not_hold_the_run() -> None:
    script = Script(((100.0, 1.0),), faults=dict.fromkeys(range(1000), Fault.SILENCE))
    with scripted_server(script) as server:
        load = open_loop(
            server.port, REQUEST, rate_per_s=100, seconds=0.2, warm_up_s=0, connections=4,
            drain_s=0.1,
        )  # fmt: skip
    assert load.errors == {"unanswered": 20}
    assert load.queued == 16
    assert load.count == 0


def test_a_generator_that_fails_is_an_error_of_the_load(monkeypatch: pytest.MonkeyPatch) -> None:
    load = open_loop(1, [], rate_per_s=100, seconds=0.1, warm_up_s=0)
    assert [w for w in load.errors if w.startswith("generator: ")]
    assert load.bottleneck
    monkeypatch.setattr(load_module, "module", lambda _: ["sleep", "60"])
    monkeypatch.setattr(load_module, "_GRACE_S", 0.0)
    load = open_loop(1, REQUEST, rate_per_s=100, seconds=0.1, warm_up_s=0, drain_s=0.1)
    assert any("did not end" in what for what in load.errors)
    monkeypatch.setattr(load_module, "module", lambda _: ["echo", "nonsense"])
    assert closed_loop(1, REQUEST, callers=1, seconds=0.1).failed == 1


# --- judging ------------------------------------------------------------------------------------


def judged(late_us: float, latency_us: float, busy: float = 0.1) -> LoadResult:
    log = RequestLog(0, 2 * 10**9, closed=False)
    connection = LoadConnection(1, select.epoll())
    for _ in range(20):
        connection.begin(0, 1, round(late_us * 1000))
        log.sent(connection, 0)
        log.over(connection, round(latency_us * 1000))
    return log.report(busy, 0)


def test_a_late_or_busy_generator_is_the_bottleneck() -> None:
    load = judged(late_us=10, latency_us=1000)
    assert not load.bottleneck
    assert (load.offered_per_s, load.note) == (10, "")
    assert judged(late_us=300, latency_us=1000).bottleneck
    assert judged(late_us=10, latency_us=1000, busy=0.95).note == "the client was the bottleneck"


@pytest.mark.parametrize(("closed", "counted"), [(False, 0), (True, 2)])
def test_a_closed_loop_shows_who_waits_since_the_warm_up(closed: bool, counted: int) -> None:
    log = RequestLog(10, 100, closed=closed)
    answered, unanswered = (LoadConnection(1, select.epoll()) for _ in range(2))
    for connection in (answered, unanswered):
        connection.begin(0, 1, 1)
        log.sent(connection, 1)
    log.over(answered, 90)
    assert log.report(0.0, 0).count + log.lacks(unanswered) == counted


@pytest.mark.parametrize(("closed", "per_s"), [(True, 10), (False, 5)])
def test_a_closed_loop_has_no_answers_after_its_window(closed: bool, per_s: int) -> None:
    """Each request takes 0.5 s; the window is the first second, and nothing is sent after it."""
    log = RequestLog(0, 10**9, closed=closed)
    connection = LoadConnection(1, select.epoll())
    for end_ms in range(50, 1050, 100):
        connection.begin(0, 1, 1 + (end_ms - 500) * 10**6)
        connection.intended_ns = connection.sent_ns
        log.over(connection, end_ms * 10**6)
    assert log.report(0.0, 0).achieved_per_s == per_s


@pytest.mark.parametrize(
    ("achieved", "p99_us", "failed", "count", "overloaded"),
    [
        (96.0, 900.0, 1, 100, False),
        (94.0, 900.0, 0, 100, True),
        (99.0, 1001.0, 0, 100, True),
        (99.0, 900.0, 3, 100, True),
        (0.0, 0.0, 0, 0, True),
    ],
)
def test_a_server_is_overloaded_by_late_slow_or_wrong_answers(
    achieved: float, p99_us: float, failed: int, count: int, overloaded: bool
) -> None:
    latency = Samples.of_us([p99_us] * count)
    load = LoadResult(100.0, achieved, latency, latency, {"closed": failed}, 0.0, 1.0, False)
    assert load.overloaded(1000.0) is overloaded
