"""Malformed requests over HTTP/2: each ends its own stream, and nothing else."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import h2.events
import pytest
from h2.errors import ErrorCodes
from hyperframe.frame import (
    ContinuationFrame,
    DataFrame,
    Frame,
    HeadersFrame,
    PushPromiseFrame,
    WindowUpdateFrame,
)

from dandelion.frontend import http2_limits as limits
from tests.node.http2_server import Served, pseudo, serving

from .http2_client import Headers, Http2Client

ECHO = pseudo("/v1/invoke/echo")
METHOD, SCHEME, AUTHORITY, PATH = ECHO


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    with serving() as made:
        yield made


@pytest.fixture
def client(served: Served) -> Iterator[Http2Client]:
    with served.connect() as made:
        made.h2.config.validate_outbound_headers = False
        made.h2.config.normalize_outbound_headers = False
        yield made


def send_head(
    client: Http2Client, fields: Headers, monkeypatch: pytest.MonkeyPatch, *, end: bool = True
) -> int:
    """Open a stream with a head that h2 would not send."""
    stream = client.h2.get_next_available_stream_id()
    encode = client.h2.encoder.encode
    with monkeypatch.context() as patch:
        patch.setattr(client.h2.encoder, "encode", lambda _: encode(fields))
        client.h2.send_headers(stream, ECHO, end_stream=end)
    client.flush()
    return stream


def reset_code(client: Http2Client, stream: int) -> int | None:
    """Receive the end of a stream; None if it has a response, or if the connection ends."""
    event = client.wait(h2.events.Event, lambda e: getattr(e, "stream_id", None) == stream)
    return int(event.error_code) if isinstance(event, h2.events.StreamReset) else None


HEADS: dict[str, Sequence[tuple[str, str]]] = {
    "upper case": [*ECHO, ("Accept", "*/*")],
    "space in a name": [*ECHO, ("a b", "c")],
    "control character in a name": [*ECHO, ("a\n", "c")],
    "colon in a name": [*ECHO, ("a:b", "c")],
    "name beyond ASCII": [*ECHO, ("\xe9", "c")],
    "empty name": [*ECHO, ("", "c")],
    "NUL in a value": [*ECHO, ("a", "b\0c")],
    "new line in a value": [*ECHO, ("a", "b\r\nhost: other")],
    "space before a value": [*ECHO, ("a", " b")],
    "space after a value": [*ECHO, ("a", "b\t")],
    "connection": [*ECHO, ("connection", "close")],
    "keep-alive": [*ECHO, ("keep-alive", "timeout=5")],
    "proxy-connection": [*ECHO, ("proxy-connection", "close")],
    "transfer-encoding": [*ECHO, ("transfer-encoding", "chunked")],
    "upgrade": [*ECHO, ("upgrade", "websocket")],
    "te": [*ECHO, ("te", "gzip")],
    "no method": [SCHEME, AUTHORITY, PATH],
    "no scheme": [METHOD, AUTHORITY, PATH],
    "no path": [METHOD, SCHEME, AUTHORITY],
    "empty path": [METHOD, SCHEME, AUTHORITY, (":path", "")],
    "no authority and no host": [METHOD, SCHEME, PATH],
    "another host": [*ECHO, ("host", "other.example")],
    "two hosts": [*ECHO, ("host", "localhost"), ("host", "localhost")],
    "two methods": [*ECHO, (":method", "GET")],
    "two paths": [*ECHO, (":path", "/healthz")],
    "two authorities": [*ECHO, (":authority", "localhost")],
    "pseudo-header after a header": [METHOD, SCHEME, AUTHORITY, ("a", "b"), PATH],
    "unknown pseudo-header": [*ECHO, (":unknown", "1")],
    "status": [*ECHO, (":status", "200")],
    "informational status": [(":status", "100"), *ECHO],
    "protocol without CONNECT": [*ECHO, (":protocol", "websocket")],
    "path in CONNECT": [(":method", "CONNECT"), AUTHORITY, PATH],
    "length that is no number": [*ECHO, ("content-length", "+0")],
    "negative length": [*ECHO, ("content-length", "-1")],
    "length with too many digits": [*ECHO, ("content-length", "0" * 5000)],
    "two lengths": [*ECHO, ("content-length", "0"), ("content-length", "1")],
    "list of lengths": [*ECHO, ("content-length", "0, 0")],
    "length without a body": [*ECHO, ("content-length", "10")],
}


@pytest.mark.parametrize("end", [True, False], ids=["ended", "open"])
@pytest.mark.parametrize("name", HEADS)
def test_a_malformed_head_ends_its_stream_alone(
    served: Served, client: Http2Client, monkeypatch: pytest.MonkeyPatch, name: str, end: bool
) -> None:
    good = client.request("/v1/invoke/wait", b"good")
    assert served.gate.entered()
    bad = send_head(client, HEADS[name], monkeypatch, end=end)
    if name == "length without a body" and not end:
        client.h2.end_stream(bad)
        client.flush()
    assert reset_code(client, bad) == ErrorCodes.PROTOCOL_ERROR
    served.gate.open(1)
    assert client.response(good) == (200, b"good")
    assert client.response(client.request("/v1/invoke/echo", b"x")) == (200, b"x")


TRAILERS: dict[str, Sequence[tuple[str, str]]] = {
    "upper case": [("Checksum", "7")],
    "pseudo-header": [(":path", "/healthz")],
    "connection": [("connection", "close")],
    "new line in a value": [("a", "b\r\nc")],
    "length that is no number": [("content-length", "x")],
}


@pytest.mark.parametrize("name", TRAILERS)
def test_malformed_trailers_end_their_stream_alone(client: Http2Client, name: str) -> None:
    stream = client.request("/v1/invoke/echo", None)
    client.h2.send_data(stream, b"body")
    client.h2.send_headers(stream, list(TRAILERS[name]), end_stream=True)
    client.flush()
    assert reset_code(client, stream) == ErrorCodes.PROTOCOL_ERROR
    assert client.response(client.request("/v1/invoke/echo", b"x")) == (200, b"x")


def test_trailers_that_do_not_end_their_stream_are_malformed(client: Http2Client) -> None:
    stream = client.request("/v1/invoke/echo", None)
    frame = HeadersFrame(stream, client.h2.encoder.encode([("checksum", "7")]))
    frame.flags.add("END_HEADERS")
    client.send_frames([frame])
    assert reset_code(client, stream) == ErrorCodes.PROTOCOL_ERROR
    assert client.response(client.request("/v1/invoke/echo", b"x")) == (200, b"x")


@pytest.mark.parametrize("size", [0, 9, 11])
def test_a_body_of_another_length_ends_its_stream_alone(client: Http2Client, size: int) -> None:
    stream = client.request("/v1/invoke/echo", None, [("content-length", "10")])
    data = DataFrame(stream, b"x" * size)
    data.flags.add("END_STREAM")
    client.send_frames([data])
    assert reset_code(client, stream) == ErrorCodes.PROTOCOL_ERROR
    assert client.response(client.request("/v1/invoke/echo", b"x")) == (200, b"x")


def test_bodies_that_are_too_long_use_up_no_window(client: Http2Client) -> None:
    large = b"x" * limits.FRAME_BYTES
    for _ in range(2 * limits.CONNECTION_WINDOW_BYTES // len(large)):
        stream = client.request("/v1/invoke/echo", None, [("content-length", "10")])
        client.h2.send_data(stream, large)
        client.flush()
        assert reset_code(client, stream) == ErrorCodes.PROTOCOL_ERROR
    assert client.response(client.request("/v1/invoke/echo", large)) == (200, large)


def test_what_follows_a_malformed_head_is_ignored(
    client: Http2Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client may have sent more before it knows of the error."""
    for fields in (HEADS["upper case"], HEADS["informational status"]):
        bad = send_head(client, fields, monkeypatch, end=False)
        client.h2.send_data(bad, b"x" * limits.FRAME_BYTES)
        client.h2.increment_flow_control_window(1, bad)
        client.h2.send_headers(bad, [("checksum", "7")], end_stream=True)
        client.flush()
        assert reset_code(client, bad) == ErrorCodes.PROTOCOL_ERROR
        assert client.response(client.request("/v1/invoke/echo", b"x")) == (200, b"x")


def test_requests_in_the_same_piece_are_performed(client: Http2Client) -> None:
    """Frames before and after a malformed request, in one write."""
    streams = []
    for fields in (ECHO, HEADS["upper case"], ECHO, HEADS["no path"], ECHO):
        stream = client.h2.get_next_available_stream_id()
        client.h2.send_headers(stream, fields)
        client.h2.send_data(stream, b"x", end_stream=True)
        streams.append(stream)
    client.flush()
    found = [client.response(stream)[0] for stream in streams]
    assert found == [200, 0, 200, 0, 200]


@pytest.mark.parametrize("name", ["upper case", "length without a body"])
def test_too_many_malformed_requests_end_the_connection(
    served: Served, client: Http2Client, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """CVE-2025-8671: a client makes the server reset its streams."""
    for _ in range(2 * limits.RESETS_BURST):
        reset_code(client, send_head(client, HEADS[name], monkeypatch))
        if client.is_closed:
            break
    assert client.ending() == (ErrorCodes.ENHANCE_YOUR_CALM, b"too many streams were reset")
    assert served.is_well()


@pytest.mark.parametrize("as_trailers", [False, True])
def test_a_head_that_cannot_be_decoded_ends_the_connection(
    served: Served, client: Http2Client, as_trailers: bool
) -> None:
    """Both sides would have different tables of the header compression."""
    stream = client.request("/v1/invoke/echo", None) if as_trailers else 1
    frame = HeadersFrame(stream, b"\xff\xff\xff\xff\x0f")
    frame.flags |= {"END_HEADERS", "END_STREAM"}
    client.send_frames([frame])
    assert client.ending()[0] == ErrorCodes.PROTOCOL_ERROR
    assert served.is_well()


@pytest.mark.parametrize("stream", [0, 2])
def test_a_stream_that_clients_cannot_open_ends_the_connection(
    client: Http2Client, stream: int
) -> None:
    frame = HeadersFrame(1, client.h2.encoder.encode(HEADS["upper case"]))
    frame.flags |= {"END_HEADERS", "END_STREAM"}
    raw = bytearray(frame.serialize())
    raw[5:9] = stream.to_bytes(4, "big")
    client.send_raw(bytes(raw))
    assert client.ending()[0] == ErrorCodes.PROTOCOL_ERROR


FATAL: dict[str, tuple[Frame, ErrorCodes]] = {
    "window": (WindowUpdateFrame(0, 2**31 - 1), ErrorCodes.FLOW_CONTROL_ERROR),
    "data without a head": (DataFrame(99, b"x"), ErrorCodes.PROTOCOL_ERROR),
    "continuation without a head": (ContinuationFrame(99, b"x"), ErrorCodes.PROTOCOL_ERROR),
    "push": (PushPromiseFrame(1, 2), ErrorCodes.PROTOCOL_ERROR),
}


@pytest.mark.parametrize("name", FATAL)
def test_other_errors_end_the_connection(served: Served, client: Http2Client, name: str) -> None:
    frame, code = FATAL[name]
    client.request("/v1/invoke/echo", None)
    client.send_frames([frame])
    assert client.ending()[0] == code
    assert served.is_well()
