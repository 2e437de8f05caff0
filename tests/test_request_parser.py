"""The parser of requests releases its connection, also after a request that it refuses."""

from __future__ import annotations

import gc
import weakref

import pytest

from dandelion.errors import DandelionError
from dandelion.frontend.asgi import Message
from dandelion.frontend.cycle import Cycle
from dandelion.frontend.request_parser import RequestParser


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
