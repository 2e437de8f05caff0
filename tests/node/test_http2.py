"""HTTP/2: the same answers as HTTP/1.1, the same limits, and clients that mean harm."""

from __future__ import annotations

import contextlib
import http.client
import random
import re
import socket
import ssl
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import h2.events
import h2.exceptions
import httpx
import msgspec
import pytest
from h2.errors import ErrorCodes
from h2.settings import SettingCodes
from hpack import Encoder
from hyperframe.frame import (
    Frame,
    GoAwayFrame,
    HeadersFrame,
    PingFrame,
    RstStreamFrame,
    SettingsFrame,
)
from hypothesis import given
from hypothesis import strategies as st

from dandelion.errors import BackendUnavailable
from dandelion.frontend import http2_limits as limits
from dandelion.frontend import server
from dandelion.frontend.http2_limits import FrameBudget, FrameScanner
from dandelion.frontend.listener import bind
from dandelion.frontend.server import BackgroundServer
from dandelion.node import Node
from dandelion.tokens import Right
from dandelion.tokens.file import write_tokens
from tests.node.http2_server import HTTP2, Served, pseudo, serving

from .frontend_processes import Processes
from .guarded import record, token
from .http2_client import Http2Client
from .served import DOCUMENT, SETTINGS, GateDriver
from .test_protocols import SHOUTING
from .test_protocols import Served as Shouting
from .test_tls import certificate

RAW = {"content-type": "application/octet-stream"}


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    with serving() as made:
        yield made


@pytest.fixture
def client(served: Served) -> Iterator[Http2Client]:
    with served.connect() as made:
        yield made


def test_an_independent_client_gets_the_same_answers(served: Served) -> None:
    url = f"http://127.0.0.1:{served.port}"
    requests = [
        ("GET", "/healthz", b""),
        ("HEAD", "/healthz", b""),
        ("GET", "/v1/functions/echo?version=1", b""),
        ("GET", "/v1/functions/e%63ho", b""),
        ("POST", "/v1/invoke/none", b"x"),
        ("POST", "/v1/invoke/echo", b"x"),
        ("POST", "/v1/invoke/fail", b"x"),
        ("DELETE", "/v1/invoke/echo", b""),
        ("OPTIONS", "/v1/functions", b""),
        ("GET", "/none", b""),
    ]
    with (
        httpx.Client(base_url=url, http1=False, http2=True) as two,
        httpx.Client(base_url=url) as one,
    ):
        for method, path, body in requests:
            new = two.request(method, path, content=body, headers=RAW)
            old = one.request(method, path, content=body, headers=RAW)
            assert (new.http_version, old.http_version) == ("HTTP/2", "HTTP/1.1")
            same = [re.sub(rb"[0-9a-f]{12}-[0-9a-f]+", b"ID", r.content) for r in (new, old)]
            assert (new.status_code, same[0]) == (old.status_code, same[1])
            volatile = {"dandelion-invocation", "content-length"}
            for name in (new.headers.keys() | old.headers.keys()) - volatile:
                assert new.headers.get(name) == old.headers.get(name), (path, name)


@pytest.mark.parametrize("size", [0, 1, 65_535, 65_536, 200_000, 5_000_000])
def test_bodies_of_all_sizes(served: Served, size: int) -> None:
    body = random.Random(size).randbytes(size)
    url = f"http://127.0.0.1:{served.port}/v1/invoke/echo"
    with httpx.Client(http1=False, http2=True) as client:
        assert client.post(url, content=body, headers=RAW).content == body
        pieces = (body[at : at + 10_000] for at in range(0, size, 10_000))
        assert client.post(url, content=pieces, headers=RAW).content == body  # of unknown size


def test_requests_of_one_connection_run_side_by_side(served: Served) -> None:
    with served.connect() as client:
        waiting = [client.request("/v1/invoke/wait", b"%d" % at) for at in range(4)]
        assert served.gate.entered()
        assert client.response(client.request("/v1/invoke/echo", b"now")) == (200, b"now")
        served.gate.open(4)
        assert sorted(client.response(one)[1] for one in waiting) == [b"0", b"1", b"2", b"3"]
        for _ in range(3):
            served.gate.entered()


def test_streams_of_adapters_and_clients_that_leave(tmp_path: Path) -> None:
    settings = msgspec.structs.replace(SHOUTING, http2=True)
    with Shouting(tmp_path, settings) as shouting:
        port = int(shouting._server.url.rsplit(":", 1)[1])
        with Http2Client(port) as client:
            assert client.response(client.request("/count", method="GET")) == (200, b"0\n1\n2\n")
            stream = client.request("/endless", method="GET")
            assert client.wait(h2.events.DataReceived) is not None
            client.h2.reset_stream(stream, ErrorCodes.CANCEL)
            client.flush()
            assert shouting.adapter.left.wait(20)
            assert client.response(client.request("/count", method="GET"))[0] == 200


def test_a_stream_ends_after_its_window_was_negative(tmp_path: Path) -> None:
    settings = msgspec.structs.replace(SHOUTING, http2=True)
    with Shouting(tmp_path, settings) as shouting:
        port = int(shouting._server.url.rsplit(":", 1)[1])
        with Http2Client(port) as client:
            assert client.wait(h2.events.SettingsAcknowledged) is not None
            stream = client.request("/pausing", method="GET")
            assert client.wait(h2.events.DataReceived) is not None
            client.h2.update_settings({SettingCodes.INITIAL_WINDOW_SIZE: 0})
            client.flush()
            assert client.wait(h2.events.SettingsAcknowledged) is not None
            shouting.adapter.ends.set()
            assert shouting.adapter.left.wait(20)
            client.h2.update_settings({SettingCodes.INITIAL_WINDOW_SIZE: 100})
            client.flush()
            assert client.response(stream) == (200, b"")


def test_a_reset_cancels_its_invocation_alone(served: Served, client: Http2Client) -> None:
    stays = client.request("/v1/invoke/wait", b"stays")
    assert served.gate.entered()
    leaves = client.request("/v1/invoke/wait", b"leaves")
    client.h2.reset_stream(leaves, ErrorCodes.CANCEL)
    client.flush()
    assert client.response(client.request("/v1/invoke/echo", b"x")) == (200, b"x")
    served.gate.open()
    assert client.response(stays) == (200, b"stays")


def test_a_reset_cancels_a_call_that_runs(served: Served, client: Http2Client) -> None:
    stream = client.request("/v1/invoke/wait", b"x")
    assert served.gate.entered()
    client.h2.reset_stream(stream, ErrorCodes.CANCEL)
    client.flush()
    assert served.gate.was_cancelled()


def test_trailers_and_expectations(client: Http2Client) -> None:
    stream = client.request("/v1/invoke/echo", None, [("expect", "100-continue")])
    assert client.wait(h2.events.InformationalResponseReceived) is not None
    client.h2.send_data(stream, b"body")
    client.h2.send_headers(stream, [("checksum", "7")], end_stream=True)
    client.flush()
    assert client.response(stream) == (200, b"body")


def test_hosts_origins_and_tokens_are_checked(tmp_path: Path) -> None:
    tokens = tmp_path / "tokens.toml"
    write_tokens(tokens, [record("caller", rights=(Right.INVOKE,))])
    settings = msgspec.structs.replace(HTTP2, tokens=str(tokens))
    mine = ("authorization", f"Bearer {token('caller')}")
    with serving(settings) as made, made.connect() as client:
        for expected, headers, authority in (
            (200, [mine], "localhost"),
            (401, [], "localhost"),
            (401, [mine, mine], "localhost"),
            (403, [mine, ("origin", "https://evil.example")], "localhost"),
            (421, [mine], "evil.example"),
        ):
            stream = client.request("/v1/invoke/echo", b"x", headers, authority=authority)
            assert client.response(stream)[0] == expected
        stream = client.request("/v1/engines", headers=[mine], method="GET")
        assert client.response(stream)[0] == 403


def test_a_refused_body_ends_its_stream_alone(client: Http2Client) -> None:
    size = str(SETTINGS.body_limit_bytes + 1)
    stream = client.request("/v1/invoke/echo", None, [("content-length", size)])
    assert client.response(stream)[0] == 413
    assert client.response(client.request("/v1/invoke/echo", b"x")) == (200, b"x")


@pytest.mark.parametrize("path", ["none", "", "/a#b", "/\xe9"])
def test_bad_paths_are_answered(served: Served, path: str) -> None:
    with served.connect() as client:
        client.h2.config.validate_outbound_headers = False
        status = client.response(client.request(path))[0]
        assert status in (0, 400)
    assert served.is_well()


@pytest.mark.parametrize("method", ["PUT", "PATCH", "TRACE", "PROPFIND"])
def test_a_method_that_a_route_does_not_have(
    served: Served, client: Http2Client, method: str
) -> None:
    client.request("/healthz", method=method)
    event = client.wait(h2.events.ResponseReceived)
    assert event is not None
    given = dict(event.headers)
    with contextlib.closing(http.client.HTTPConnection("127.0.0.1", served.port)) as connection:
        connection.request(method, "/healthz")
        response = connection.getresponse()
        assert (given[":status"], given["allow"]) == ("405", "GET")
        assert (response.status, response.headers["allow"]) == (405, "GET")


@pytest.mark.parametrize("method", ["FOO", "get", "GETT", "X-1"])
def test_an_unknown_method(served: Served, client: Http2Client, method: str) -> None:
    assert client.response(client.request("/healthz", method=method))[0] == 405
    with contextlib.closing(http.client.HTTPConnection("127.0.0.1", served.port)) as connection:
        connection.request(method, "/healthz")
        response = connection.getresponse()
        assert response.status == 400
        assert "method" in response.read().decode()


def test_http1_is_served_on_the_same_port(served: Served) -> None:
    with contextlib.closing(http.client.HTTPConnection("127.0.0.1", served.port)) as connection:
        connection.request("GET", "/healthz", headers={"upgrade": "h2c", "connection": "upgrade"})
        assert connection.getresponse().status == 200


def test_it_is_off_by_default() -> None:
    with serving(SETTINGS) as made, socket.create_connection(("127.0.0.1", made.port)) as raw:
        raw.sendall(FrameScanner.PREFACE + SettingsFrame(0).serialize())
        assert raw.recv(4096).startswith(b"HTTP/1.1 400 ")


def test_a_missing_library_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "h2", None)
    monkeypatch.setitem(sys.modules, "h2.connection", None)
    with Node(HTTP2) as node, pytest.raises(BackendUnavailable, match="http2"):
        BackgroundServer(node)


@pytest.mark.parametrize("frontends", [1, 2])
def test_tls_negotiates_either_version(tmp_path: Path, frontends: int) -> None:
    chain, key = certificate(tmp_path)
    settings = msgspec.structs.replace(HTTP2, tls_cert=chain, tls_key=key, frontends=frontends)
    with contextlib.ExitStack() as stack:
        if frontends == 1:
            port = stack.enter_context(serving(settings)).port
        else:
            processes = stack.enter_context(Processes(settings, [], 2))
            processes.node.register(DOCUMENT.functions[0])
            port = processes.port
        for is_new, version in ((True, "HTTP/2"), (False, "HTTP/1.1")):
            url = f"https://127.0.0.1:{port}/v1/invoke/echo"
            trusting = ssl.create_default_context(cafile=chain)
            with httpx.Client(http2=is_new, verify=trusting) as client:
                response = client.post(url, content=b"x" * 100_000, headers=RAW)
            assert (response.http_version, len(response.content)) == (version, 100_000)


def test_frontend_processes_serve_it() -> None:
    with Processes(msgspec.structs.replace(HTTP2, frontends=2), [], 2) as processes:
        processes.node.register(DOCUMENT.functions[0])
        for _ in range(6):
            with Http2Client(processes.port) as client:
                body = b"x" * 50_000
                assert client.response(client.request("/v1/invoke/echo", body)) == (200, body)


def test_a_server_that_stops_completes_what_runs() -> None:
    gate = GateDriver()
    with Node(HTTP2, [gate]) as node:
        node.register(DOCUMENT)
        server = BackgroundServer(node)
        with Http2Client(int(server.url.rsplit(":", 1)[1])) as client:
            runs = client.request("/v1/invoke/wait", b"runs")
            assert gate.gate.entered()
            closing = threading.Thread(target=server.close)
            closing.start()
            assert client.ending() == (ErrorCodes.NO_ERROR, b"the server is shutting down")
            late = HeadersFrame(runs + 2, Encoder().encode(pseudo("/healthz")))
            late.flags |= {"END_HEADERS", "END_STREAM"}
            client.send_frames([late])
            gate.gate.open()
            assert client.response(runs) == (200, b"runs")
            assert client.wait(h2.events.Event, lambda _: False) is None  # it is closed
            closing.join()


def test_streams_reset_while_the_server_stops_end_no_connection() -> None:
    gate = GateDriver()
    with Node(HTTP2, [gate]) as node:
        node.register(DOCUMENT)
        server = BackgroundServer(node)
        with Http2Client(int(server.url.rsplit(":", 1)[1])) as client:
            runs = client.request("/v1/invoke/wait", b"runs")
            assert gate.gate.entered()
            closing = threading.Thread(target=server.close)
            closing.start()
            assert client.ending()[0] == ErrorCodes.NO_ERROR
            frames: list[Frame] = []
            encoder = Encoder()
            for late in (runs + 2, runs + 4):
                head = HeadersFrame(late, encoder.encode(pseudo("/healthz")))
                head.flags |= {"END_HEADERS", "END_STREAM"}
                frames += [head, RstStreamFrame(late, ErrorCodes.CANCEL)]
            client.send_frames(frames)
            client.send_frames([PingFrame(0, b"received")])  # until the server has read them
            assert client.wait(h2.events.PingAckReceived) is not None
            gate.gate.open()
            assert client.response(runs) == (200, b"runs")
            closing.join()


def test_a_client_that_closes_gets_what_runs(served: Served, client: Http2Client) -> None:
    large = random.Random(5).randbytes(100_000)  # needs windows, which follow GOAWAY
    runs = client.request("/v1/invoke/wait", b"runs")
    assert served.gate.entered()
    echo = client.request("/v1/invoke/echo", None)
    client.h2.send_data(echo, large[:10_000])
    client.flush()
    client.send_frames([GoAwayFrame(0)])
    assert client.ending() == (ErrorCodes.NO_ERROR, b"the client closes the connection")
    for at in range(10_000, len(large), 10_000):
        while client.h2.local_flow_control_window(echo) < 10_000:
            client.wait(h2.events.WindowUpdated)
        client.h2.send_data(echo, large[at : at + 10_000], end_stream=at == 90_000)
        client.flush()
    assert client.response(echo) == (200, large)
    assert client.response(client.request("/healthz", method="GET"))[0] == 0  # refused
    served.gate.open()
    assert client.response(runs) == (200, b"runs")
    assert client.wait(h2.events.PingReceived) is None  # it is closed


@pytest.mark.parametrize("code", [ErrorCodes.NO_ERROR, ErrorCodes.PROTOCOL_ERROR])
def test_a_client_that_closes_and_wants_nothing(served: Served, code: ErrorCodes) -> None:
    with served.connect() as client:
        stream = client.request("/v1/invoke/wait", b"x")
        assert served.gate.entered()
        client.send_frames([GoAwayFrame(0, error_code=code)])
        if code == ErrorCodes.NO_ERROR:
            client.send_frames([RstStreamFrame(stream, ErrorCodes.CANCEL)])
        assert client.ending()[0] == ErrorCodes.NO_ERROR
        assert client.wait(h2.events.PingReceived) is None  # it is closed
        assert served.gate.was_cancelled()


def test_waiting_requests_end_with_the_server() -> None:
    gate = GateDriver()
    with Node(HTTP2, [gate]) as node:
        node.register(DOCUMENT)
        server = BackgroundServer(node, drain_s=0)
        with Http2Client(int(server.url.rsplit(":", 1)[1])) as client:
            stream = client.request("/v1/invoke/wait", b"x")
            assert gate.gate.entered()
            server.close()
            assert client.response(stream)[0] == 503


PATIENT = msgspec.structs.replace(
    HTTP2,
    head_timeout_s=1000.0,
    idle_timeout_s=1000.0,
    body_timeout_s=1000.0,
    body_rate_bytes=10_000_000,
)
"""A machine may stall at any time, so each of the next servers has one short limit."""


@pytest.fixture(scope="module")
def short_heads() -> Iterator[Served]:
    with serving(msgspec.structs.replace(PATIENT, head_timeout_s=0.2)) as made:
        yield made


@pytest.fixture(scope="module")
def quick() -> Iterator[Served]:
    """A server with a short limit of bodies and replies."""
    with serving(msgspec.structs.replace(PATIENT, body_timeout_s=0.2)) as made:
        yield made


def test_silent_connections_are_closed(short_heads: Served) -> None:
    with short_heads.connect() as client:
        assert client.ending()[0] == ErrorCodes.NO_ERROR


def test_idle_connections_are_closed() -> None:
    with (
        serving(msgspec.structs.replace(PATIENT, idle_timeout_s=0.2)) as made,
        made.connect() as client,
    ):
        assert client.response(client.request("/v1/invoke/echo", b"x"))[0] == 200
        assert client.ending() == (ErrorCodes.NO_ERROR, b"the connection was idle")


def test_a_connection_whose_requests_were_all_reset_is_idle() -> None:
    with (
        serving(msgspec.structs.replace(PATIENT, idle_timeout_s=0.2)) as made,
        made.connect() as client,
    ):
        stream = client.request("/v1/invoke/echo", None, [("content-length", "10")])
        client.h2.reset_stream(stream)
        client.flush()
        assert client.ending() == (ErrorCodes.NO_ERROR, b"the connection was idle")


def test_pings_do_not_keep_a_connection_open(short_heads: Served) -> None:
    with short_heads.connect() as client:
        ping = PingFrame(0, b"12345678").serialize()
        while not client.is_closed:
            client.send_raw(ping)
            client.wait(h2.events.PingAckReceived)
    assert client.is_closed


def test_a_body_that_stops_gets_408(quick: Served) -> None:
    with quick.connect() as client:
        stream = client.request("/v1/invoke/echo", None, [("content-length", "10")])
        client.h2.send_data(stream, b"1")
        client.flush()
        status, body = client.response(stream)
        assert (status, b"Stalled" in body) == (408, True)
        assert quick.is_well()


def test_a_window_that_stays_closed_ends_the_stream(quick: Served) -> None:
    with quick.connect({SettingCodes.INITIAL_WINDOW_SIZE: 0}) as client:
        stream = client.request("/v1/invoke/echo", b"x" * 1000)
        reset = client.wait(h2.events.StreamReset)
        assert reset is not None
        assert reset.stream_id == stream
    assert quick.is_well()


def test_a_window_of_single_bytes_is_too_slow(quick: Served) -> None:
    with quick.connect({SettingCodes.INITIAL_WINDOW_SIZE: 0}) as client:
        stream = client.request("/v1/invoke/echo", b"x" * 10_000)
        event: h2.events.Event | None = client.wait(h2.events.Event)
        while event is not None and not isinstance(event, h2.events.StreamReset):
            assert not isinstance(event, h2.events.StreamEnded)
            with contextlib.suppress(h2.exceptions.StreamClosedError):
                client.h2.increment_flow_control_window(1, stream)
            client.flush()
            event = client.wait(h2.events.Event)  # None: idle since the reset, which was lost
    assert quick.is_well()


def test_a_closed_window_opens_again(served: Served) -> None:
    body = random.Random(7).randbytes(100_000)
    with served.connect({SettingCodes.INITIAL_WINDOW_SIZE: 0}) as client:
        stream = client.request("/v1/invoke/echo", None)
        client.send_body(stream, body)
        assert client.wait(h2.events.ResponseReceived) is not None
        client.h2.update_settings({SettingCodes.INITIAL_WINDOW_SIZE: 50_000})
        client.flush()
        assert client.response(stream)[1] == body


def with_small_buffer(*address: Any) -> socket.socket:
    """Listen with connections of which the kernel buffers little."""
    listening = bind(*address)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 16 * 1024)
    return listening


def slow_tls(port: int, chain: str) -> ssl.SSLSocket:
    """Connect by HTTP/2 over TLS, as a client that reads little at a time."""
    trusting = ssl.create_default_context(cafile=chain)
    trusting.set_alpn_protocols(["h2"])
    plain = socket.socket()
    plain.settimeout(20)
    plain.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 16 * 1024)
    plain.connect(("127.0.0.1", port))
    return trusting.wrap_socket(plain, server_hostname="127.0.0.1")


def test_over_tls_a_slow_reader_is_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "bind", with_small_buffer)
    chain, key = certificate(tmp_path)
    settings = msgspec.structs.replace(HTTP2, tls_cert=chain, tls_key=key)
    body = random.Random(7).randbytes(400_000)  # between the limit of reading and that of TLS
    with (
        serving(settings) as served,
        Http2Client(
            served.port,
            {SettingCodes.INITIAL_WINDOW_SIZE: 0},
            slow_tls(served.port, chain),
        ) as client,
    ):
        client.h2.increment_flow_control_window(1 << 20)
        stream = client.request("/v1/invoke/echo", None)
        client.send_body(stream, body)
        client.wait(h2.events.ResponseReceived)
        client.h2.update_settings({SettingCodes.INITIAL_WINDOW_SIZE: 1 << 20})
        client.flush()
        first = client.wait(h2.events.DataReceived)
        assert first is not None
        client.h2.ping(b"12345678")  # is read while the rest of the response waits
        client.flush()
        assert first.data + client.response(stream)[1] == body
        assert client.response(client.request("/v1/invoke/echo", b"")) == (200, b"")


@given(st.lists(st.tuples(st.sampled_from([0, 1, 3, 4, 6, 8, 9, 77]), st.integers(0, 700))),
       st.lists(st.integers(1, 40)))  # fmt: skip
def test_frames_are_counted_however_they_arrive(
    frames: list[tuple[int, int]], cuts: list[int]
) -> None:
    expected = 0
    data = FrameScanner.PREFACE
    for kind, size in frames:
        data += size.to_bytes(3, "big") + bytes([kind, 0, 0, 0, 0, 1]) + bytes(size)
        if kind == 4:
            expected += 1 + size // 6
        elif kind != 0 or size < limits.SMALL_DATA_BYTES:
            expected += 1
    scanner = FrameScanner()
    found = at = 0
    for cut in cuts:
        found += scanner.cost(data[at : at + cut])
        at += cut
    assert found + scanner.cost(data[at:]) == expected


def test_a_budget_is_refilled_up_to_its_limit() -> None:
    budget = FrameBudget(10, 2, now=0)
    assert all(budget.take(0) for _ in range(10))
    assert not budget.take(0)
    assert budget.take(1)
    assert not budget.take(1)
    budget.add(100)
    assert budget.take(1, 10)
    assert not budget.take(1)
