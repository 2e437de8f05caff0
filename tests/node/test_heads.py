"""Heads that were parsed lately: a request with a known one is read as if it was parsed."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from uvicorn.server import ServerState

from dandelion.frontend import heads as module
from dandelion.frontend.acceptor import Newcomer
from dandelion.frontend.admission import ConnectionTable, Limits
from dandelion.frontend.asgi import Receive, Request, Response, Scope, Send
from dandelion.frontend.body import Body
from dandelion.frontend.heads import KNOWN_BYTES, KnownHeads
from dandelion.frontend.protocol import Protocol
from dandelion.tokens import TokenRecord
from dandelion.tokens.file import read_tokens, write_tokens

from .guarded import guarded, token

TURNS = 50
LIMITS = Limits(100, 100, 10.0, 10.0, 10.0, 1)


class Blind(KnownHeads):
    """Knows no head, so every request is parsed."""

    def find(self, data: bytes) -> None:
        return None


class Written(asyncio.Transport):
    """A transport that keeps what is written."""

    def __init__(self) -> None:
        super().__init__({"peername": ("192.0.2.1", 5), "sockname": ("192.0.2.2", 80)})
        self.output = bytearray()
        self.closed = False

    def write(self, data: Any) -> None:
        self.output += data

    def is_closing(self) -> bool:
        return self.closed

    def close(self) -> None:
        self.closed = True

    def write_eof(self) -> None:
        self.closed = True

    def can_write_eof(self) -> bool:
        return True

    def get_write_buffer_size(self) -> int:
        return 0

    def pause_reading(self) -> None:
        pass

    def resume_reading(self) -> None:
        pass


async def shown(scope: Scope, receive: Receive, send: Send) -> None:
    """Respond with everything that the request is; an odd length of the body awaits it."""
    request = Request(scope, receive)
    body = Body(request, cast(Any, None), 1 << 20)
    data = await body.read() if len(request.path) % 2 else (body.whole() or b"none")
    parts = [scope[name] for name in ("method", "path", "raw_path", "query_string", "headers")]
    parts += [dict(request.headers), scope["http_version"], scope["client"], bytes(data)]
    await Response([repr(parts).encode()]).send(send, scope["extensions"])


async def output_of(pieces: list[bytes], heads: KnownHeads) -> bytes:
    """Send pieces of input to a connection; give all its output."""
    table = ConnectionTable(LIMITS)
    acceptor = cast(Any, SimpleNamespace(table=table, tls=None))
    newcomer = Newcomer(acceptor, cast(Any, None), "192.0.2.1")
    assert table.admit(newcomer, 0.0)
    config = cast(Any, SimpleNamespace(loaded=True, loaded_app=shown))
    state = ServerState()
    protocol = Protocol(config, state, heads, newcomer=newcomer)
    transport = Written()
    protocol.connection_made(transport)
    for piece in pieces:
        if not transport.closed:
            protocol.data_received(piece)
        for _ in range(TURNS):  # a request whose body is incomplete waits for the next piece
            if not (state.tasks or protocol._beginning):
                break
            await asyncio.sleep(0)
    protocol.connection_lost(None)
    while state.tasks:
        await asyncio.sleep(0)
    return bytes(transport.output)


def request(target: str, *lines: str, body: str = "", method: str = "POST") -> bytes:
    head = [f"{method} {target} HTTP/1.1", "Host: a", *lines]
    if body:
        head.append(f"Content-Length: {len(body)}")
    return ("\r\n".join(head) + "\r\n\r\n" + body).encode()


REQUESTS = [
    request("/a", body="12345"),
    request("/a", body="abcde"),
    request("/ab", body="POST /a HTTP/1.1\r\nHost: a\r\n\r\n"),
    request("/a", method="GET"),
    request("/a%20b?c=d&e", "X-One: 1", "x-one: 2", method="GET"),
    request("/a", "Connection: close", body="1"),
    request("/a", "Connection: Keep-Alive", body="1"),
    request("/a", "Connection: Upgrade", "Upgrade: h2c", body="12"),
    request("/a", "Expect: 100-continue", body="1"),
    request("/a", "Transfer-Encoding: chunked") + b"3\r\nabc\r\n0\r\n\r\n",
    request("/a", "Content-Length: 0"),
    request("/a", "Content-Length: 5", "Content-Length: 6") + b"123456",
    request("/" + "x" * KNOWN_BYTES, body="1"),
    b"\r\n" + request("/ab", body="xyz"),
    b"GET /a HTTP/1.0\r\n\r\n",
    b"GET /a HTTP/1.1\r\nHost: a\r\nbroken\r\n\r\n",
    b"no request\r\n\r\n",
]


@st.composite
def streams(draw: st.DrawFn) -> list[bytes]:
    """Requests one after the other, whole, joined with the next one, or cut somewhere."""
    pieces: list[bytes] = []
    for data in draw(st.lists(st.sampled_from(REQUESTS), min_size=1, max_size=8)):
        cut = draw(st.one_of(st.none(), st.integers(0, len(data))))
        if pieces and draw(st.booleans()) and draw(st.booleans()):
            pieces[-1] += data
        else:
            pieces += [data] if cut is None else [part for part in (data[:cut], data[cut:]) if part]
    return pieces


@settings(max_examples=150, deadline=None)
@given(st.lists(streams(), min_size=2, max_size=3))
def test_a_connection_does_not_depend_on_which_heads_are_known(
    connections: list[list[bytes]],
) -> None:
    async def run() -> None:
        known = KnownHeads()
        for pieces in connections:
            assert await output_of(pieces, known) == await output_of(pieces, Blind())

    asyncio.run(run())


def test_a_head_that_comes_again_is_known() -> None:
    known = KnownHeads()
    first, second = REQUESTS[:2]
    assert known.find(first) is None
    output = asyncio.run(output_of([first, second], known))
    assert b"b'12345'" in output
    assert b"b'abcde'" in output
    scope, end = known.find(second) or pytest.fail("it is not known")
    assert (scope["path"], second[end:]) == ("/a", b"abcde")
    assert known.find(second + b"x") is None
    assert known.find(second[:-1]) is None


@pytest.mark.parametrize("number", [5, 7, 8, 9, 11, 12, 14, 15, 16])
def test_heads_that_decide_about_the_connection_are_not_kept(number: int) -> None:
    known = KnownHeads()
    asyncio.run(output_of([REQUESTS[number]], known))
    assert known.find(REQUESTS[number]) is None


@pytest.mark.parametrize("header", ["traceparent: 00-1", "Idempotency-Key: k"])
def test_heads_of_one_request_are_not_kept(header: str) -> None:
    known = KnownHeads()
    once = request("/a", header, body="1")
    asyncio.run(output_of([once], known))
    assert known.find(once) is None


def test_the_number_of_heads_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "KNOWN_HEADS", 3)
    known = KnownHeads()
    requests = [request(f"/a{i}", method="GET") for i in range(8)]
    asyncio.run(output_of(requests, known))
    assert sum(known.find(one) is not None for one in requests) in range(1, 4)


def test_the_token_of_a_known_head_is_checked_each_time(tmp_path: Path) -> None:
    with guarded(tmp_path, 1) as served:
        assert [served.ask("GET", "/v1/functions", "acme").status for _ in range(3)] == [200] * 3
        left: list[TokenRecord] = [r for r in read_tokens(served.tokens) if r.name != "acme"]
        assert token("acme")
        write_tokens(served.tokens, left)
        end = asyncio.run(_until_refused(served))
        assert end == 401


async def _until_refused(served: Any) -> int:
    for _ in range(2000):  # the file is looked at several times a second
        status = int(served.ask("GET", "/v1/functions", "acme").status)
        if status != 200:
            return status
        await asyncio.sleep(0.02)
    return 200
