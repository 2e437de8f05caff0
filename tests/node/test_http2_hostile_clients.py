"""HTTP/2 clients that mean harm."""

from __future__ import annotations

import contextlib
import logging
import random
import socket
from collections.abc import Iterator

import h2.events
import h2.exceptions
import msgspec
import pytest
from h2.errors import ErrorCodes
from h2.settings import SettingCodes
from hpack import Encoder
from hyperframe.frame import (
    ContinuationFrame,
    DataFrame,
    Frame,
    HeadersFrame,
    PingFrame,
    PriorityFrame,
    RstStreamFrame,
    SettingsFrame,
    WindowUpdateFrame,
)

from dandelion.frontend import http2_limits as limits
from dandelion.frontend.http2_limits import FrameScanner
from tests.node.http2_server import HTTP2, Served, pseudo, serving

from .http2_client import Http2Client

CALM = ErrorCodes.ENHANCE_YOUR_CALM


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    with serving() as made:
        yield made


@pytest.fixture
def client(served: Served) -> Iterator[Http2Client]:
    with served.connect() as made:
        yield made


def head(encoder: Encoder, stream: int, path: str, *, end: bool) -> HeadersFrame:
    frame = HeadersFrame(stream, encoder.encode(pseudo(path)))
    frame.flags.add("END_HEADERS")
    if end:
        frame.flags.add("END_STREAM")
    return frame


FLOODS: dict[str, Frame] = {
    "ping": PingFrame(0, b"12345678"),
    "settings": SettingsFrame(0, {4: 65_535}),
    "priority": PriorityFrame(7, depends_on=1, stream_weight=5),
    "window": WindowUpdateFrame(0, 1),
    "unknown": DataFrame(1, b""),
}


@pytest.mark.parametrize("name", FLOODS)
def test_floods_of_frames_end_the_connection(served: Served, name: str) -> None:
    frame = FLOODS[name]
    with served.connect() as client:
        if isinstance(frame, DataFrame):
            client.request("/v1/invoke/echo", None)
        data = frame.serialize() * 100
        for _ in range(2 * limits.FRAMES_BURST // 100):
            client.send_raw(data)
        code, reason = client.ending()
        assert (code, b"frames" in reason) == (CALM, True)
    assert served.is_well()


def late_frames(stream: int, count: int) -> list[Frame]:
    return [DataFrame(stream, b"x" * limits.SMALL_DATA_BYTES) for _ in range(count)]


WINDOW_FRAMES = limits.STREAM_WINDOW_BYTES // limits.SMALL_DATA_BYTES


def test_data_for_an_answered_stream_ends_the_connection(served: Served) -> None:
    with served.connect() as client:
        stream = client.request("/v1/invoke/nothing", None)
        assert client.wait(h2.events.StreamReset) is not None
        for _ in range(10):
            client.send_frames(late_frames(stream, limits.FRAMES_BURST))
        assert client.ending() == (CALM, b"too many frames for closed streams")
    assert served.is_well()


def test_data_for_a_stream_that_the_client_reset_ends_the_connection(served: Served) -> None:
    with served.connect() as client:
        stream = client.request("/v1/invoke/echo", None)
        client.send_frames([RstStreamFrame(stream, ErrorCodes.CANCEL)])
        for _ in range(10):
            client.send_frames(late_frames(stream, limits.FRAMES_BURST))
        assert client.ending() == (CALM, b"too many frames for closed streams")
    assert served.is_well()


def test_bodies_that_were_under_way_when_their_streams_ended_are_no_flood(served: Served) -> None:
    with served.connect() as client:
        for _ in range(3 * limits.FRAMES_BURST // WINDOW_FRAMES):
            streams = [client.request("/v1/invoke/nothing", None) for _ in range(2)]
            for _ in streams:
                assert client.wait(h2.events.StreamReset) is not None
            for stream in streams:
                client.send_frames(late_frames(stream, WINDOW_FRAMES))
        client.h2.ping(b"12345678")
        client.flush()
        assert client.wait(h2.events.PingAckReceived) is not None


@pytest.mark.parametrize(
    ("data_bytes", "padding_bytes", "cost"),
    [(0, 0, 1), (255, 0, 1), (256, 0, 0), (0, 255, 1), (255, 255, 1), (256, 255, 0)],
)
@pytest.mark.parametrize("piece_bytes", [1, 7, 10_000])
def test_padding_is_no_data(
    data_bytes: int, padding_bytes: int, cost: int, piece_bytes: int
) -> None:
    frame = DataFrame(1, b"x" * data_bytes, pad_length=padding_bytes)
    if padding_bytes:
        frame.flags.add("PADDED")
    data = FrameScanner.PREFACE + frame.serialize() * 10
    scanner = FrameScanner()
    pieces = [data[at : at + piece_bytes] for at in range(0, len(data), piece_bytes)]
    assert sum(scanner.cost(piece) for piece in pieces) == 10 * cost


def test_ordinary_use_is_no_flood(served: Served) -> None:
    with served.connect() as client:
        for _ in range(limits.FRAMES_BURST // 2):
            assert client.response(client.request("/v1/invoke/echo", b"x")) == (200, b"x")
            client.h2.ping(b"12345678")
        large = b"x" * 1_000_000
        for _ in range(3):
            stream = client.request("/v1/invoke/echo", None)
            for at in range(0, len(large), 16_000):
                piece = large[at : at + 16_000]
                while client.h2.local_flow_control_window(stream) < len(piece):
                    client.wait(h2.events.WindowUpdated)
                client.h2.send_data(stream, piece, end_stream=at + 16_000 >= len(large))
                client.flush()
            assert client.response(stream)[1] == large


def test_rapid_resets_end_the_connection(served: Served) -> None:
    """CVE-2023-44487: streams that are opened and reset at once."""
    encoder = Encoder()
    with served.connect() as client:
        for at in range(2 * limits.RESETS_BURST):
            stream = 2 * at + 1
            frames: list[Frame] = [head(encoder, stream, "/v1/invoke/wait", end=True),
                                   RstStreamFrame(stream, ErrorCodes.CANCEL)]  # fmt: skip
            client.send_frames([*frames, PingFrame(0, b"12345678")])
            client.wait(h2.events.PingAckReceived)  # so that frames alone are not too many
        assert client.ending() == (CALM, b"too many streams were reset")
    assert served.is_well()


def test_more_streams_than_allowed_end_the_connection(served: Served) -> None:
    encoder = Encoder()
    with served.connect() as client:
        frames: list[Frame] = [
            head(encoder, 2 * at + 1, "/v1/invoke/echo", end=False)
            for at in range(limits.STREAMS + 1)
        ]
        client.send_frames(frames)
        assert client.ending()[0] == ErrorCodes.PROTOCOL_ERROR
    assert served.is_well()


def test_a_head_without_end_ends_the_connection(served: Served) -> None:
    """A flood of CONTINUATION."""
    with served.connect() as client:
        begin = HeadersFrame(1, Encoder().encode(pseudo("/")))
        more = ContinuationFrame(1, Encoder().encode([("x", "y" * 100)]))
        client.send_frames([begin])
        for _ in range(200):
            client.send_frames([more])
        assert client.ending()[0] != 0
    assert served.is_well()


def test_a_bomb_of_headers_ends_the_connection(served: Served) -> None:
    """One entry of the table, named many times: few bytes, a large head."""
    encoder = Encoder()
    large = ("x", "y" * 3000)
    block = encoder.encode([*pseudo("/"), large])
    block += encoder.encode([large]) * 5000
    assert len(block) < 16_000
    frame = HeadersFrame(1, block)
    frame.flags |= {"END_HEADERS", "END_STREAM"}
    with served.connect() as client:
        client.send_frames([frame])
        assert client.ending()[0] != 0
    assert served.is_well()


@pytest.mark.parametrize("size", [limits.FRAME_BYTES + 1, 2**24 - 1])
def test_a_frame_that_is_too_large_ends_the_connection_at_its_head(
    served: Served, size: int
) -> None:
    with served.connect() as client:
        stream = client.request("/v1/invoke/echo", None)
        client.send_raw(size.to_bytes(3, "big") + DataFrame(stream, b"").serialize()[3:])
        assert client.ending()[0] == ErrorCodes.FRAME_SIZE_ERROR
    assert served.is_well()


def test_the_largest_frame_is_served(served: Served) -> None:
    with served.connect() as client:
        body = b"x" * limits.FRAME_BYTES
        stream = client.request("/v1/invoke/echo", None)
        data = DataFrame(stream, body)
        data.flags.add("END_STREAM")
        client.send_frames([data])
        assert client.response(stream) == (200, body)


@pytest.mark.parametrize("trailers", [False, True])
def test_a_body_that_a_head_ends_early_is_an_error(served: Served, trailers: bool) -> None:
    with served.connect() as client:
        fields = [(":method", "DELETE"), *pseudo("/v1/functions/bug")[1:], ("content-length", "10")]
        client.h2.send_headers(1, fields, end_stream=not trailers)
        if trailers:
            client.h2.send_data(1, b"1")
            client.h2.send_headers(1, [("checksum", "7")], end_stream=True)
        client.flush()
        ending = client.wait(h2.events.StreamReset)
        assert ending is not None
        assert ending.error_code == ErrorCodes.PROTOCOL_ERROR
        # It was not performed.
        assert client.response(client.request("/v1/functions/bug", method="GET"))[0] == 200


@pytest.mark.parametrize(
    "extra", [[], [(":protocol", "websocket"), (":scheme", "http"), (":path", "/healthz")]]
)
def test_tunnels_are_not_served(served: Served, extra: list[tuple[str, str]]) -> None:
    with served.connect() as client:
        fields = [(":method", "CONNECT"), (":authority", "localhost"), *extra]
        client.h2.config.validate_outbound_headers = False
        client.h2.send_headers(1, fields)
        client.flush()
        assert client.response(1)[0] == 501
        assert client.response(client.request("/v1/invoke/echo", b"x")) == (200, b"x")


def test_answers_that_are_not_read_do_not_pile_up(served: Served) -> None:
    """The client sends pings and reads nothing: the node stops to read."""
    with socket.create_connection(("127.0.0.1", served.port), timeout=5) as raw:
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        raw.sendall(FrameScanner.PREFACE + SettingsFrame(0).serialize())
        with contextlib.suppress(OSError):
            for _ in range(100):
                raw.sendall(PingFrame(0, b"12345678").serialize() * 100)
    assert served.is_well()


def test_rubbish_ends_its_connection_alone(
    served: Served, caplog: pytest.LogCaptureFixture
) -> None:
    rng = random.Random(1)
    encoder = Encoder()
    for _ in range(60):
        good = [head(encoder, 1, "/v1/invoke/echo", end=False), DataFrame(1, b"x" * 50)]
        data = bytearray(b"".join(f.serialize() for f in [SettingsFrame(0), *good]))
        for _ in range(rng.randrange(1, 8)):
            data[rng.randrange(len(data))] = rng.randrange(256)
        with (
            socket.create_connection(("127.0.0.1", served.port), timeout=20) as raw,
            contextlib.suppress(ConnectionError),
        ):
            raw.sendall(FrameScanner.PREFACE + data)
            with contextlib.suppress(OSError):  # the node has reset it already
                raw.shutdown(socket.SHUT_WR)
            while raw.recv(65536):
                pass
    assert served.is_well()
    assert [r for r in caplog.records if r.levelno >= logging.ERROR] == []


def test_a_large_table_of_the_client_is_not_used(served: Served) -> None:
    with served.connect({SettingCodes.HEADER_TABLE_SIZE: 2**31}) as client:
        for _ in range(300):
            assert client.response(client.request("/v1/invoke/echo", b"x"))[0] == 200
        table = client.h2.decoder.header_table
        assert table._current_size <= limits.TABLE_BYTES


def test_a_surplus_connection_gets_one_answer() -> None:
    settings = msgspec.structs.replace(HTTP2, max_connections=2, max_connections_per_peer=2)
    with serving(settings) as made, contextlib.ExitStack() as stack:
        for _ in range(2):
            client = stack.enter_context(made.connect())
            client.request("/v1/invoke/wait", b"x")
            client.h2.ping(b"12345678")
            client.flush()
            assert client.wait(h2.events.PingAckReceived) is not None
        with made.connect() as client:
            status, body = client.response(client.request("/v1/invoke/echo", b"x"))
            assert (status, b"Crowded" in body) == (503, True)
            assert client.wait(h2.events.ConnectionTerminated) is not None
        with made.connect() as client:
            assert client.response(client.request("/healthz", method="GET"))[0] == 200
