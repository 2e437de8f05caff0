"""The parser of requests: which heads are too long, and that it releases its connection."""

from __future__ import annotations

import gc
import weakref
from types import SimpleNamespace
from typing import Any, cast

import pytest

from dandelion.errors import DandelionError
from dandelion.frontend.asgi import Message
from dandelion.frontend.cycle import Cycle
from dandelion.frontend.problem import HeadTooLong
from dandelion.frontend.request_parser import HEAD_LIMIT_BYTES, PIECE_BYTES, RequestParser


class _Connection:
    cycle: Cycle | None = None

    def begin_request(self, head: Message, *, keep_alive: bool, expects_continue: bool) -> None:
        raise AssertionError("no head is valid")


@pytest.mark.parametrize("request_", [b"CONNECT a:1 HTTP/1.1\r\nHost: a\r\n\r\n", b"?\r\n\r\n"])
def test_a_refused_request_keeps_no_connection_in_memory(request_: bytes) -> None:
    """The collector of the frontend seldom looks at old objects."""
    connection = _Connection()
    parser = RequestParser(connection)
    gc.disable()
    try:
        refused = False
        try:
            parser.parse(request_)
        except DandelionError:
            refused = True
        parser.close()
        alive = weakref.ref(connection)
        del connection, parser
        assert refused
        assert alive() is None
    finally:
        gc.enable()


class _Requests:
    """Counts the heads, and discards the bodies."""

    cycle: Cycle | None = cast(Any, SimpleNamespace(feed=lambda body: None, end_body=lambda: None))

    def __init__(self) -> None:
        self.count = 0

    def begin_request(self, head: Message, *, keep_alive: bool, expects_continue: bool) -> None:
        self.count += 1


@pytest.mark.parametrize("end", [b"", b"Transfer-Encoding: chunked\r\n"])
def test_complete_heads_do_not_count_for_the_length_of_the_next_one(end: bytes) -> None:
    """All pieces end within a request."""
    one = b"POST /a HTTP/1.1\r\nHost: a\r\n" + end + b"\r\n" + (b"0\r\n\r\n" if end else b"")
    count = 8 * PIECE_BYTES // len(one)
    data = one * count
    requests = _Requests()
    parser = RequestParser(requests)
    size = PIECE_BYTES // len(one) * len(one) - 5
    for start in range(0, len(data), size):
        parser.parse(data[start : start + size])
    assert requests.count == count
    parser.close()


def test_a_long_head_behind_others_is_refused() -> None:
    parser = RequestParser(_Requests())
    parser.parse(b"GET / HTTP/1.1\r\n\r\n" * 100 + b"GET / HTTP/1.1\r\nx: ")
    pieces = (HEAD_LIMIT_BYTES + PIECE_BYTES) // 1000 + 1
    with pytest.raises(HeadTooLong):
        for _ in range(pieces):
            parser.parse(b"y" * 1000)
    parser.close()
