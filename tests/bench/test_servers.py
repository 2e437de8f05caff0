"""Servers in processes of their own: they listen, tell why not, and never stay."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import urllib.request

import pytest
from dandelion.bench.processes import ServerFailed, ServerProcess
from dandelion.bench.systems.asgi import asgi_server
from dandelion.bench.systems.nodes import node_server

from dandelion.documents import CodeDocument, FunctionDocument, RegistrationDocument
from dandelion.search_path import environment
from dandelion.testing import wait_until
from tests.processes import children, lives

OCTETS = {"content-type": "application/octet-stream", "accept": "application/octet-stream"}
SETTINGS = {"backends": ("null",), "arena_bytes": 16 << 20}
LISTEN = "import socket, time; s = socket.create_server(('127.0.0.1', {port}), reuse_port=True); "


def post(port: int, path: str, body: bytes) -> bytes:
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", data=body, headers=OCTETS)
    with urllib.request.urlopen(request, timeout=20) as answer:
        read: bytes = answer.read()
    return read


def ends(pid: int) -> bool:
    """Wait until a process has ended."""
    return wait_until(lambda: not lives(pid))


def python(program: str) -> list[str]:
    return [sys.executable, "-c", program]


def test_the_baseline_answers_what_it_gets() -> None:
    with asgi_server() as server:
        assert post(server.port, "/anything", b"abc") == b"abc"
        assert server.name == "raw ASGI"
        assert lives(server.pid)
    assert not lives(server.pid)


def test_a_node_has_everything_registered_when_it_listens() -> None:
    function = FunctionDocument("F", ("a",), ("b",), code=(CodeDocument("null"),))
    text = "function F(a) => (b); composition C(x) => (y) { F(a = all x) => (y = b); }"
    documents = [
        RegistrationDocument(functions=(function,)),
        RegistrationDocument(compositions=(text,)),
    ]
    with node_server(SETTINGS, documents) as server:
        assert post(server.port, "/v1/invoke/F", b"abc") == b"abc"
        assert post(server.port, "/v1/invoke/C", b"abc") == b"abc"
    assert not lives(server.pid)


def test_a_node_that_does_not_come_up_says_why() -> None:
    with pytest.raises(ServerFailed, match="no_such_setting"):
        node_server({**SETTINGS, "no_such_setting": 1})


@pytest.mark.parametrize(
    ("program", "why"),
    [
        ("raise SystemExit('nothing to serve')", "nothing to serve"),
        ("print('good morning', flush=True); import time; time.sleep(60)", "good morning"),
        ("print('{}', flush=True); import time; time.sleep(60)", "has no port"),
    ],
)
def test_a_program_that_is_no_server(program: str, why: str) -> None:
    with pytest.raises(ServerFailed, match=why):
        ServerProcess("nothing", python(program))


def test_a_program_that_never_listens_is_given_up_and_ended() -> None:
    before = children()
    with pytest.raises(ServerFailed, match="does not listen"):
        ServerProcess("mute", python("import time; time.sleep(60)"), wait_s=0.4)
    assert not any(map(lives, children() - before))


def test_a_program_may_be_told_its_port_instead_of_printing_it() -> None:
    with socket.socket() as held:  # so that no other program gets the port
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        held.bind(("127.0.0.1", 0))
        port = held.getsockname()[1]
        program = LISTEN.format(port=port) + "time.sleep(60)"
        with ServerProcess("told", python(program), port=port) as server:
            assert server.port == port
            socket.create_connection(("127.0.0.1", port)).close()


def test_it_reads_its_input_and_its_environment() -> None:
    said = (
        LISTEN.format(port=0) + "import os, sys; print(s.getsockname()[1], flush=True); "
        "print(sys.stdin.read() + os.environ['WORD'], flush=True); time.sleep(60)"
    )
    with ServerProcess(
        "reader", python(said), standard_input=b"in", environment={"WORD": "side"}
    ) as server:
        wait_until(lambda: server.output().count(b"\n") == 2)
        server.stop()
        assert server.output().split(b"\n")[1] == b"inside"


def test_whatever_it_has_started_ends_with_it() -> None:
    program = (
        LISTEN.format(port=0)
        + "import json, subprocess; child = subprocess.Popen(['sleep', '60']); "
        "print(json.dumps({'port': s.getsockname()[1], 'child': child.pid}), flush=True); "
        "time.sleep(60)"
    )
    with ServerProcess("parent", python(program)) as server:
        child = json.loads(server.output())["child"]
        assert lives(child)
    assert ends(child)
    assert ends(server.pid)


def test_it_does_not_outlive_who_started_it() -> None:
    program = (
        "import os, time; from dandelion.bench.systems.asgi import asgi_server; "
        "print(asgi_server().pid, flush=True); time.sleep(60)"
    )
    with subprocess.Popen(
        python(program), stdout=subprocess.PIPE, text=True, env=environment()
    ) as starter:
        assert starter.stdout is not None
        pid = int(starter.stdout.readline())
        assert lives(pid)
        os.kill(starter.pid, signal.SIGKILL)
    assert ends(pid)
