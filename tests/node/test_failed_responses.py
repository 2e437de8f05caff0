"""Responses that cannot be written: what they held is given back at once."""

from __future__ import annotations

import gc
import http.client
import json
from collections.abc import Iterator
from contextlib import closing

import pytest

from dandelion.documents import python_function
from dandelion.frontend.server import BackgroundServer
from dandelion.node import Node, Settings
from dandelion.testing import wait_until

MIB = 1 << 20
BODY = {"inputs": [{"name": "a", "datatype": "BYTES", "shape": [1], "data": [str(20 * MIB)]}]}
BIG = python_function(
    "def big(a):\n    return {'b': bytes(int(a.text()))}\n",
    entry="big",
    inputs=("a",),
    outputs=("b",),
)


@pytest.fixture
def node() -> Iterator[Node]:
    settings = Settings(backends=("process",), arena_bytes=64 * MIB, protocols=("kserve",))
    with Node(settings) as opened:
        opened.register(BIG)
        yield opened


def test_memory_of_a_result_without_room_as_json_is_free_at_once(node: Node) -> None:
    with BackgroundServer(node) as server:
        connection = http.client.HTTPConnection(server.url.removeprefix("http://"), timeout=30)
        gc.collect()
        gc.disable()  # cycles of objects would be found only in quiet times
        try:
            with closing(connection):
                for _ in range(2):
                    connection.request("POST", "/v2/models/big/infer", json.dumps(BODY))
                    response = connection.getresponse()
                    assert (response.status, b"arena" in response.read()) == (507, True)
                    wait_until(lambda: node.capacity().arena.used_bytes < 10 * MIB)
        finally:
            gc.enable()
