"""The converter of large documents, its clients and its server: whichever of them ends."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from dandelion.frontend import conversion
from dandelion.frontend.server import BackgroundServer
from dandelion.node import Node
from dandelion.testing import wait_until
from tests.node.large_documents import (
    DOCUMENT,
    JSON,
    LARGE,
    SETTINGS,
    Server,
    filler,
    given_server,
    is_converter,
    nothing_left,
    post,
)
from tests.processes import children, children_of, lives

server = pytest.fixture(scope="module", params=["in the node", "processes"])(given_server)


@pytest.fixture(scope="module")
def node(server: Server) -> Node:
    return server.node


def converter(server: Server) -> int:
    """Give the process id of the converter, which runs once a document was converted."""
    found = [p for p in children_of(server.process) if is_converter(p)]
    assert len(found) == 1
    return found[0]


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


def test_a_child_that_is_abandoned_reports_nothing(node: Node) -> None:
    control, theirs = socket.socketpair()
    job, abandoned = socket.socketpair()
    job.close()
    arena = node.arena
    numbers = [theirs.fileno(), arena.fd, arena.size_bytes, os.getpid()]
    program = [sys.executable, "-P", "-m", conversion.__name__, *map(str, numbers)]
    with theirs:
        started = subprocess.Popen(program, stderr=subprocess.PIPE, pass_fds=numbers[:2])
    with control, abandoned:
        socket.send_fds(control, [b"x"], [abandoned.fileno()])
    assert started.communicate() == (None, b"")  # at the end of the child, too


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
