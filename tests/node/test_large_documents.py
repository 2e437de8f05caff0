"""Large documents over HTTP: they are converted elsewhere, with the same results as small ones."""

from __future__ import annotations

import base64
import contextlib
import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from dandelion.catalog import LibraryRecord
from dandelion.data import SetSpec
from dandelion.documents import RegistrationDocument
from dandelion.frontend.server import BackgroundServer
from dandelion.node import Node, Settings
from dandelion.testing import wait_until
from tests.processes import children, children_of, command_of, lives

from .frontend_processes import Processes
from .served import function

JSON, PACK = "application/json", "application/msgpack"
LARGE = 2_000_000
STALL_S = 1.0
"""A generous multiple of what a health check may take beside a large document."""

SETTINGS = Settings(
    backends=("null",), arena_bytes=256 << 20, body_limit_bytes=96 << 20, items_limit=20_000
)
NUMBERS = SetSpec("n", "float64", (-1,))
DOCUMENT = RegistrationDocument(
    functions=(
        function("echo", ("a",), ("a",)),
        function("pair", ("left", "right"), ("left", "right")),
        function("numbers", (NUMBERS,), (NUMBERS,)),
    )
)


@dataclass
class Server:
    """A server and its node.

    Attributes:
        process: that serves HTTP.
    """

    node: Node
    url: str
    process: int


@pytest.fixture(scope="module", params=["in the node", "processes"])
def server(request: pytest.FixtureRequest) -> Iterator[Server]:
    if request.param == "processes":
        with Processes(SETTINGS, [], 1) as processes:
            processes.node.register(DOCUMENT)
            (process,) = processes.supervisor.pids
            yield Server(processes.node, f"http://127.0.0.1:{processes.port}", process)
    else:
        with Node(SETTINGS) as node:
            node.register(DOCUMENT)
            with BackgroundServer(node) as server:
                yield Server(node, server.url, os.getpid())


@pytest.fixture(scope="module")
def node(server: Server) -> Node:
    return server.node


def connection(server: Server) -> http.client.HTTPConnection:
    return http.client.HTTPConnection(server.url.removeprefix("http://"), timeout=60)


def post(
    server: Server, path: str, body: bytes, kind: str = JSON, accept: str = ""
) -> tuple[int, Any]:
    with contextlib.closing(connection(server)) as c:
        c.request("POST", path, body, {"content-type": kind, "accept": accept or kind})
        reply = c.getresponse()
        data = reply.read()
    plain = msgspec.msgpack.decode(data) if data[:1] != b"{" else msgspec.json.decode(data)
    return reply.status, plain


def converter(server: Server) -> int:
    """Give the process id of the converter, which runs once a document was converted."""
    found = [p for p in children_of(server.process) if is_converter(p)]
    assert len(found) == 1
    return found[0]


def is_converter(process: int) -> bool:
    return b"dandelion.frontend.conversion" in (command_of(process) or b"")


@contextlib.contextmanager
def started_converters() -> Iterator[set[int]]:
    """Give the converters that were started meanwhile, once it is over."""
    before = {p for p in children() if is_converter(p)}
    started: set[int] = set()
    yield started
    started |= {p for p in children() if is_converter(p)} - before


@contextlib.contextmanager
def nothing_left(node: Node) -> Iterator[None]:
    """Holds that the arena's memory comes back."""
    before = node.info().arena.used_bytes
    yield
    wait_until(lambda: node.info().arena.used_bytes <= before)


# --- the same as small ones ---------------------------------------------------------------------


def filler(size: int = LARGE) -> str:
    return "z" * size


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


# --- registration -------------------------------------------------------------------------------


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


# --- the loop goes on -------------------------------------------------------------------------


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


# --- when things end ---------------------------------------------------------------------------


def slow_body() -> bytes:
    """Takes seconds to convert."""
    return b'{"sets":{"n":[' + b"1.25," * 8_000_000 + b"1]}}"


def begun(server: Server) -> tuple[socket.socket, int]:
    """Send a large document; give its connection and the child that converts it."""
    post(server, "/v1/invoke/echo", b'{"sets":{"a":"' + filler().encode() + b'"}}')
    process = converter(server)
    wait_until(lambda: not running(process))
    host, port = server.url.removeprefix("http://").split(":")
    client = socket.create_connection((host, int(port)))
    body = slow_body()
    head = f"POST /v1/invoke/numbers HTTP/1.1\r\nhost: {host}\r\ncontent-type: {JSON}\r\n"
    client.sendall(f"{head}content-length: {len(body)}\r\n\r\n".encode() + body)
    return client, wait_until(lambda: running(process))[0]


def running(process: int) -> list[int]:
    """List children that have not ended; they are reaped with the next document."""
    return [child for child in children_of(process) if lives(child)]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may look and surely leave namespaces")
def test_the_converter_has_a_network_of_its_own(server: Server) -> None:
    body = msgspec.json.encode({"sets": {"a": "x" * LARGE}})
    assert post(server, "/v1/invoke/echo", body)[0] == 200
    process = converter(server)
    if leave_namespaces_is_refused():
        pytest.skip("this machine refuses new namespaces")
    assert os.readlink(f"/proc/{process}/ns/net") != os.readlink("/proc/self/ns/net")
    assert "NoNewPrivs:\t1" in Path(f"/proc/{process}/status").read_text()


def leave_namespaces_is_refused() -> bool:
    probe = "from dandelion.confinement.lockdown import leave_namespaces; print(leave_namespaces())"
    done = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=True)
    return done.stdout.strip() == "none"


def test_a_client_that_leaves_ends_the_child(server: Server, node: Node) -> None:
    with nothing_left(node):
        client, child = begun(server)
        process = converter(server)
        client.close()
        wait_until(lambda: child not in running(process))


def test_a_child_that_dies_is_the_documents_fault(server: Server, node: Node) -> None:
    with nothing_left(node):
        client, child = begun(server)
        os.kill(child, signal.SIGKILL)
        with contextlib.closing(client):
            assert client.recv(1000).startswith(b"HTTP/1.1 413 ")


def test_a_converter_that_dies_is_started_again(server: Server) -> None:
    body = b'{"sets":{"a":"' + filler().encode() + b'"}}'
    post(server, "/v1/invoke/echo", body)
    first = converter(server)
    os.kill(first, signal.SIGKILL)
    wait_until(lambda: not children_of(first))
    assert post(server, "/v1/invoke/echo", body)[0] == 200
    assert converter(server) != first


def test_the_converter_ends_with_its_server() -> None:
    with Node(SETTINGS) as other:
        other.register(DOCUMENT)
        before = {p for p in children() if is_converter(p)}
        with BackgroundServer(other) as background:
            server = Server(other, background.url, os.getpid())
            post(server, "/v1/invoke/echo", b'{"sets":{"a":"' + filler().encode() + b'"}}')
            (process,) = {p for p in children() if is_converter(p)} - before
        assert not is_converter(process)
