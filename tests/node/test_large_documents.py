"""Large documents over HTTP: they are converted elsewhere, with the same results as small ones."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import threading
import time
from collections.abc import Iterator

import msgspec
import numpy as np
import pytest

from dandelion.catalog import LibraryRecord
from dandelion.documents import RegistrationDocument
from dandelion.frontend.server import BackgroundServer
from dandelion.node import Node
from tests.node.large_documents import (
    DOCUMENT,
    JSON,
    LARGE,
    PACK,
    SETTINGS,
    Server,
    connection,
    filler,
    given_server,
    is_converter,
    nothing_left,
    post,
)
from tests.processes import children

server = pytest.fixture(scope="module", params=["in the node", "processes"])(given_server)

STALL_S = 1.0
"""A generous multiple of what a health check may take beside a large document."""


@pytest.fixture(scope="module")
def node(server: Server) -> Node:
    return server.node


@contextlib.contextmanager
def started_converters() -> Iterator[set[int]]:
    """Give the converters that were started meanwhile, once it is over."""
    before = {p for p in children() if is_converter(p)}
    started: set[int] = set()
    yield started
    started |= {p for p in children() if is_converter(p)} - before


@pytest.mark.parametrize("kind", [JSON, PACK])
def test_items_come_as_they_were_sent(server: Server, kind: str) -> None:
    blob = os.urandom(LARGE)
    data: object = base64.b64encode(blob).decode() if kind == JSON else blob
    left = [
        {"name": "x", "key": 7, "data": data},
        {"name": "y", "text": "käse"},
        *({"name": f"n{i}", "text": str(i)} for i in range(5000)),
    ]
    document = {"sets": {"left": left, "right": None}}
    encode = msgspec.json.encode if kind == JSON else msgspec.msgpack.encode
    status, reply = post(server, "/v1/invoke/pair", encode(document), kind, PACK)
    assert status == 200
    assert reply["sets"]["right"] is None
    *others, keyed = reply["sets"]["left"]  # they are sorted by key
    assert (keyed["name"], keyed["key"], keyed["data"]) == ("x", 7, blob)
    data_of = {item["name"]: item["data"] for item in others}
    assert data_of == {"y": "käse".encode(), **{f"n{i}": str(i).encode() for i in range(5000)}}


def test_numbers_become_an_array_and_come_back(server: Server) -> None:
    numbers = [i / 4 for i in range(200_000)]
    status, reply = post(
        server, "/v1/invoke/numbers", json.dumps({"sets": {"n": numbers}}).encode()
    )
    assert status == 200
    assert reply["sets"]["n"][0]["numbers"] == numbers
    assert reply["types"]["n"]["dtype"] == "float64"


def test_a_large_result_is_written_as_json(server: Server) -> None:
    array = np.arange(300_000, dtype=np.float64)
    kind = "application/octet-stream"
    status, reply = post(server, "/v1/invoke/numbers", array.tobytes(), kind, JSON)
    assert status == 200
    assert reply["sets"]["n"][0]["numbers"] == array.tolist()


@pytest.mark.parametrize(
    ("body", "status", "where"),
    [
        (b'{"sets": {"a": "' + b"z" * LARGE, 400, "body"),
        (b'{"sets": {"a": {"dta": "' + b"z" * LARGE + b'"}}}', 400, "sets.a.dta"),
        (b'{"sets": {"a": {"data": "' + b"!" * LARGE + b'"}}}', 400, "sets.a.data"),
        (b'{"sets": {"b": "' + b"z" * LARGE + b'"}}', 400, "sets.b"),
        (b'{"sets": {"a": ' + b"[" * LARGE + b"]" * LARGE + b"}}", 400, "body"),
        (b'{"sets": {"a": [' + b'"",' * 200_000 + b'""]}}', 413, "sets.a"),
    ],
)
def test_errors_name_their_place(
    server: Server, node: Node, body: bytes, status: int, where: str
) -> None:
    with nothing_left(node):
        found, problem = post(server, "/v1/invoke/echo", body)
        assert (found, problem["error"]["fields"]["where"]) == (status, where)


@pytest.mark.parametrize("kind", [JSON, PACK])
def test_more_items_than_the_limit_are_refused(server: Server, kind: str) -> None:
    encode = msgspec.json.encode if kind == JSON else msgspec.msgpack.encode
    status, problem = post(server, "/v1/invoke/echo", encode({"sets": {"a": ["x"] * 20_001}}), kind)
    assert status == 413
    fields = problem["error"]["fields"]
    assert (fields["count"], fields["limit"], fields["where"]) == (20_001, 20_000, "sets.a")
    status, _ = post(server, "/v1/invoke/echo", encode({"sets": {"a": ["x"] * 20_000}}), kind)
    assert status == 200


def test_more_parts_than_the_limit_are_refused(server: Server) -> None:
    part = b'--X\r\nContent-Disposition: form-data; name="a"\r\n\r\nz\r\n'
    kind = "multipart/form-data; boundary=X"
    status, problem = post(server, "/v1/invoke/echo", part * 20_001 + b"--X--\r\n", kind, JSON)
    assert (status, problem["error"]["fields"]["limit"]) == (413, 20_000)
    status, reply = post(server, "/v1/invoke/echo", part * 20_000 + b"--X--\r\n", kind, JSON)
    assert (status, len(reply["sets"]["a"])) == (200, 20_000)


@pytest.mark.parametrize("kind", [JSON, PACK])
def test_large_documents_register(server: Server, node: Node, kind: str) -> None:
    weights, library = os.urandom(LARGE), os.urandom(3 * LARGE)

    def content(data: bytes) -> dict[str, object]:
        return {"data": base64.b64encode(data).decode() if kind == JSON else data}

    document = {
        "functions": [
            {
                "name": "fixed",
                "inputs": ["a", "w"],
                "outputs": ["a", "w"],
                "static": {"w": {"w0": content(weights), "w1": {"text": "small"}}},
                "code": [{"format": "null", "main": "code"}],
            }
        ],
        "libraries": {f"large-{kind}": content(library), f"text-{kind}": filler()},
        "compositions": ["function fixed(a, w) => (a, w);"],
    }
    encode = msgspec.json.encode if kind == JSON else msgspec.msgpack.encode
    status, reply = post(server, "/v1/register", encode(document), kind, JSON)
    assert status == 200, reply
    assert {r["name"] for r in reply["registered"]} >= {"fixed", f"large-{kind}"}
    result = node.invoke("fixed", a=b"x")
    assert [item.bytes() for item in result.w] == [weights, b"small"]
    for name, data in ((f"large-{kind}", library), (f"text-{kind}", filler().encode())):
        record = node.catalog.find_library(name)
        assert isinstance(record, LibraryRecord)
        assert bytes(node.catalog.blob(record.digest)) == data


@pytest.mark.parametrize(
    ("count", "size", "is_converted"),
    [(1, 150_000, False), (1, LARGE, True), (5000, 10, True)],
)
@pytest.mark.parametrize("kind", [JSON, PACK])
def test_what_is_read_quickly_is_not_converted(
    kind: str, count: int, size: int, is_converted: bool
) -> None:
    data: object = bytes(size) if kind == PACK else base64.b64encode(bytes(size)).decode()
    libraries = {f"l{i}": {"data": data} for i in range(count)}
    encode = msgspec.json.encode if kind == JSON else msgspec.msgpack.encode
    with Node(SETTINGS) as other, BackgroundServer(other) as server:
        with started_converters() as started:
            body = encode({"libraries": libraries})
            assert post(server, "/v1/register", body, kind, JSON)[0] == 200
        assert bool(started) is is_converted


@pytest.mark.parametrize(("length", "is_converted"), [(3, False), (100, True)])
def test_what_is_drawn_quickly_is_not_converted(length: int, is_converted: bool) -> None:
    steps = "".join(f"echo (a = all s{i}) => (s{i + 1} = a);" for i in range(length))
    text = f"function echo (a) => (a); composition chain (s0) => (s{length}) {{{steps}}}"
    with Node(SETTINGS) as other, BackgroundServer(other) as server:
        other.register(DOCUMENT)
        other.register(RegistrationDocument(compositions=(text,)))
        with started_converters() as started, contextlib.closing(connection(server)) as c:
            c.request("GET", "/v1/compositions/chain/graph")
            reply = c.getresponse()
            assert (reply.status, reply.read().lstrip()[:4]) == (200, b"<svg")
        assert bool(started) is is_converted


def test_declarations_have_a_limit_of_their_own(server: Server) -> None:
    document = {"functions": [{"name": f"f{i}", "inputs": ["a"] * 20} for i in range(200_000)]}
    status, problem = post(server, "/v1/register", msgspec.json.encode(document))
    assert (status, problem["type"]) == (413, "urn:dandelion:error:TooLarge")


def test_a_broken_document_names_the_field(server: Server) -> None:
    document = {"libraries": {"a": filler()}, "functions": [{"nme": "f"}]}
    status, problem = post(server, "/v1/register", msgspec.json.encode(document))
    assert status == 400
    assert problem["error"]["fields"]["where"].startswith("functions[")


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/invoke/echo", b'{"sets":{"a":[' + b'"abcd",' * 2_000_000 + b'""]}}'),
        ("/v1/invoke/numbers", b'{"sets":{"n":[' + b"1.25," * 2_000_000 + b"1]}}"),
        (
            "/v1/register",
            b'{"functions":[' + b'{"name":"x","inputs":["a","b"]},' * 500_000 + b'{"name":"y"}]}',
        ),
    ],
)
def test_health_checks_are_answered_beside(server: Server, path: str, body: bytes) -> None:
    worst = 0.0
    over = threading.Event()

    def probe() -> None:
        nonlocal worst
        with contextlib.closing(connection(server)) as c:
            while not over.is_set():
                began = time.perf_counter()
                c.request("GET", "/healthz")
                assert c.getresponse().read() == b'{"status":"ok"}'
                worst = max(worst, time.perf_counter() - began)

    probing = threading.Thread(target=probe)
    began = time.perf_counter()
    probing.start()
    try:
        post(server, path, body, JSON, PACK)
    finally:
        over.set()
        probing.join()
    assert worst < max(STALL_S, (time.perf_counter() - began) / 2)
