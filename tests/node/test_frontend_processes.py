"""Frontends as processes: what only several processes can get wrong.

That they answer as the frontend in the node does is held by `test_frontend` and
`test_large_documents`, whose servers are both kinds.
"""

from __future__ import annotations

import contextlib
import errno
import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from dandelion.errors import InternalError
from dandelion.frontend_process import supervisor as supervisor_module
from dandelion.frontend_process.leases import SLAB_BYTES
from dandelion.frontend_process.wire import INLINE_BYTES
from dandelion.testing import wait_until
from tests.node.served_processes import JSON, LIMIT_S, RAW, SETTINGS, Served, invoke
from tests.processes import children_of, lives

from .frontend_processes import Processes
from .served import DOCUMENT, GateDriver

CLIENTS = 20
ROOT = Path(__file__).resolve().parent.parent.parent


@pytest.fixture(scope="module")
def started() -> Iterator[Served]:
    gate = GateDriver()
    with Processes(SETTINGS, [gate], 2) as processes:
        processes.node.register(DOCUMENT)
        assert processes.node.wait_ready()
        wait_until(lambda: processes.node.info().arena.contexts == 5)  # status, two slabs for each
        yield Served(processes, gate)
        gate.gate.open(100)


@pytest.fixture
def served(started: Served) -> Iterator[Served]:
    wait_until(started.rests)  # also after a test that failed
    with started.opened:
        yield started


def test_a_killed_frontend_loses_its_own_connections_alone(served: Served) -> None:
    first, _, other, waiting = served.connections()
    victim = served.pids()[0]
    answers: list[tuple[int, bytes]] = []
    large = b"y" * 100_000
    first.request("POST", "/v1/invoke/wait", b"z" * 2_000_000, RAW)
    assert served.gate.gate.entered(LIMIT_S)
    kept = threading.Thread(target=lambda: answers.append(invoke(waiting, "wait", large)))
    kept.start()
    wait_until(lambda: served.node.info().waiting == 1)

    os.kill(victim, signal.SIGKILL)

    with pytest.raises((http.client.HTTPException, OSError)):
        first.getresponse()
    assert served.gate.gate.was_cancelled(LIMIT_S)
    assert served.gate.gate.entered(LIMIT_S)  # it was the next one's turn
    assert invoke(other, "echo", b"still there") == (200, b"still there")
    served.gate.gate.open()
    kept.join(LIMIT_S)
    assert answers == [(200, large)]
    wait_until(lambda: len(served.pids()) == 2 and victim not in served.pids())
    for connection in served.connections():
        assert invoke(connection, "echo", b"again") == (200, b"again")
    wait_until(served.rests)


def test_frontends_killed_under_load_leave_nothing_behind(served: Served) -> None:
    stopping = threading.Event()
    right: list[int] = []
    wrong: list[object] = []

    def ask(size: int) -> None:
        body = os.urandom(size)
        while not stopping.is_set():
            with contextlib.closing(served.connect()) as connection:
                try:
                    for _ in range(5):
                        status, data = invoke(connection, "echo", body)
                        if (status, data) == (200, body):
                            right.append(size)
                        else:
                            wrong.append((status, data[:200]))
                except (http.client.HTTPException, OSError):
                    continue  # its frontend was killed

    sizes = (10, INLINE_BYTES + 1, SLAB_BYTES // 4, SLAB_BYTES, 1_000_000)
    threads = [threading.Thread(target=ask, args=(size,)) for size in sizes]
    for thread in threads:
        thread.start()
    for _ in range(3):
        wait_until(lambda: len(served.pids()) == 2)
        right.clear()
        wait_until(lambda: set(right) == set(sizes))
        os.kill(served.pids()[0], signal.SIGKILL)
    stopping.set()
    for thread in threads:
        thread.join(LIMIT_S)
    assert not wrong
    wait_until(lambda: len(served.pids()) == 2)
    wait_until(served.rests)


def test_memory_is_kept_while_a_process_may_write_to_it(served: Served) -> None:
    """Play a converter that outlives its frontend: it has the lifeline open."""
    (connection, *_) = served.connections()
    victim = served.pids()[0]
    connection.putrequest("POST", "/v1/invoke/echo")
    connection.putheader("Content-Length", "2000000")
    connection.endheaders(bytes(1_000_000))
    wait_until(lambda: served.node.info().arena.used_bytes > served.at_rest.used_bytes + 2_000_000)
    lifeline = Path(f"/proc/{victim}/cmdline").read_bytes().split(b"\0")[6].decode()
    held = os.open(f"/proc/{victim}/fd/{lifeline}", os.O_WRONLY)
    try:
        os.kill(victim, signal.SIGKILL)
        wait_until(lambda: len(served.pids()) == 2 and victim not in served.pids())
        assert served.connections()  # both serve again
        assert served.node.info().arena.used_bytes > served.at_rest.used_bytes + 2_000_000
    finally:
        os.close(held)
    wait_until(served.rests)


def test_converters_end_with_their_frontend(served: Served) -> None:
    (connection, *_) = served.connections()
    body = json.dumps({"sets": {"a": "z" * 3_000_000}}).encode()
    connection.request("POST", "/v1/invoke/echo", body, JSON)
    with connection.getresponse() as answer:
        assert answer.status == 200
        answer.read()
    victim = served.pids()[0]
    (converter,) = children_of(victim)
    os.kill(victim, signal.SIGKILL)
    wait_until(lambda: not lives(converter))
    wait_until(lambda: len(served.pids()) == 2 and victim not in served.pids())
    wait_until(served.rests)


def test_frontends_end_with_their_node(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "dandelion", "serve", "--port", "0", "--backends", "null"]
    command += ["--frontends", "2", "--json", "--catalog", f"sqlite:{tmp_path}"]
    document = {"functions": [{"name": "f", "inputs": ["a"], "code": [{"format": "null"}]}]}

    def started() -> tuple[subprocess.Popen[bytes], int, set[int]]:
        node = subprocess.Popen(
            command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
        assert node.stdout is not None
        port = json.loads(node.stdout.readline())["port"]
        return node, port, children_of(node.pid)

    node, port, frontends = started()
    with node:
        assert len(frontends) == 2
        with contextlib.closing(http.client.HTTPConnection("127.0.0.1", port)) as connection:
            connection.request("POST", "/v1/register", json.dumps(document), JSON)
            assert connection.getresponse().read()
        node.kill()
    wait_until(lambda: not any(map(lives, frontends)))
    node, port, frontends = started()
    with node:
        with contextlib.closing(http.client.HTTPConnection("127.0.0.1", port)) as connection:
            assert invoke(connection, "f", b"x")[0] == 200  # what was acknowledged is there
        node.send_signal(signal.SIGTERM)
        assert node.wait(LIMIT_S) == 0
    assert not any(map(lives, frontends))


@pytest.mark.parametrize("program", ["/bin/false", "/there is no such program"])
def test_processes_that_do_not_start_are_said_so(
    monkeypatch: pytest.MonkeyPatch, program: str
) -> None:
    monkeypatch.setattr(supervisor_module, "sys", SimpleNamespace(executable=program))
    with pytest.raises(InternalError, match="3 times"):
        Processes(SETTINGS, [], 2)


def test_a_frontend_comes_back_when_the_node_has_descriptors_again(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, files = served.pids(), open_files()
    failed: list[str] = []

    def fail(name: str) -> Callable[..., Any]:
        def refuse(*_: object) -> None:
            failed.append(name)
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

        return refuse

    with monkeypatch.context() as patched:
        patched.setattr(supervisor_module.os, "pidfd_open", fail("pidfd_open"))
        os.kill(before[0], signal.SIGKILL)
        wait_until(lambda: failed)
        patched.setattr(supervisor_module.os, "pipe", fail("pipe"))
        wait_until(lambda: "pipe" in failed)
    wait_until(lambda: set(served.pids()) - set(before) and len(served.pids()) == 2)
    wait_until(lambda: all(p.is_ready for p in served.processes.supervisor._places))
    assert len(failed) < 10  # it does not try without a pause
    wait_until(lambda: open_files() < files + len(failed))  # each failure had opened something


def test_a_frontend_whose_access_log_cannot_be_opened_says_so_and_comes_back(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "logs"
    folder.mkdir()
    settings = msgspec.structs.replace(SETTINGS, access_log=str(folder / "access.log"))
    with Processes(settings, [], 2) as processes:
        (folder / "access.log").unlink()
        folder.rmdir()
        written = []

        def is_said() -> bool:
            written.append(capfd.readouterr().err)
            return "the frontend cannot start" in "".join(written)

        place, _ = processes.supervisor._places
        os.kill(processes.supervisor.pids[0], signal.SIGKILL)
        wait_until(is_said)
        wait_until(lambda: listening(processes.port) == 1)
        tried = place.failures
        while place.failures == tried or place.process is not None:  # also during the next try
            assert is_healthy(processes.port)  # the other frontend gets all of them
        folder.mkdir()
        wait_until(lambda: place.is_ready)
        assert place.listener.getsockname()[1] == processes.port
        assert place.listener.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
        assert all(is_healthy(processes.port) for _ in range(CLIENTS))
    written.append(capfd.readouterr().err)
    assert "Traceback" not in "".join(written)


def is_healthy(port: int) -> bool:
    with contextlib.closing(http.client.HTTPConnection("127.0.0.1", port, LIMIT_S)) as connection:
        connection.request("GET", "/healthz")
        return connection.getresponse().status == 200


def listening(port: int) -> int:
    """Count the sockets that listen on a port of this machine."""
    with open("/proc/net/tcp") as table:
        return sum(line.split()[1:4:2] == [f"0100007F:{port:04X}", "0A"] for line in table)


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


def test_requests_under_way_end_before_the_frontends_do() -> None:
    gate = GateDriver()
    answers: list[tuple[int, bytes]] = []
    with Processes(SETTINGS, [gate], 2) as processes:
        processes.node.register(DOCUMENT)
        served = Served(processes, gate)
        with served.opened:
            threads = [
                threading.Thread(
                    target=lambda c=c: answers.append(invoke(c, "wait", bytes(50_000)))
                )
                for c in served.connections()[::2]
            ]
            for thread in threads:
                thread.start()
            wait_until(lambda: served.node.info().running == 2)
            processes.loop.call_soon_threadsafe(processes.left.set)
            wait_until(lambda: refuses(processes.port))
            gate.gate.open(2)
            for thread in threads:
                thread.join(LIMIT_S)
    assert answers == [(200, bytes(50_000))] * 2


def refuses(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=LIMIT_S).close()
    except ConnectionRefusedError:
        return True
    return False


def test_what_one_frontend_registers_all_know_at_once(served: Served) -> None:
    connections = served.connections()
    for version in range(1, 6):
        registering, asking = (connections[0], connections[3])[:: 1 if version % 2 else -1]
        inputs = [f"a{version}"]
        function = {"name": "grows", "inputs": inputs, "outputs": ["b"]}
        document = {"functions": [{**function, "code": [{"format": "null"}]}]}
        registering.request("POST", "/v1/register", json.dumps(document), JSON)
        assert json.loads(registering.getresponse().read())["registered"][0]["version"] == version
        body = json.dumps({"sets": {inputs[0]: "x"}}).encode()
        asking.request("POST", "/v1/invoke/grows", body, JSON)
        answer = asking.getresponse()
        assert (answer.status, answer.read()[:5]) == (200, b'{"id"')


def test_what_the_program_registers_reaches_the_frontends(served: Served) -> None:
    both = served.connections()[::2]
    assert served.node.remove(type(served.node.describe("echo")), "matrix")
    wait_until(lambda: all(invoke(c, "matrix", bytes(8))[0] == 404 for c in both))


def test_a_node_that_stands_still_is_told_of(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its frontends go on, and must not say that all is well."""

    def health() -> tuple[int, int]:
        found = []
        for path in ("/healthz", "/readyz"):
            connection.request("GET", path)
            with connection.getresponse() as answer:
                found.append(answer.status)
                answer.read()
        return found[0], found[1]

    (connection, *_) = served.connections()
    assert health() == (200, 200)
    writer = served.processes.supervisor._status
    with monkeypatch.context() as patch:
        patch.setattr(writer, "update", lambda: None)
        writer._words[2] = 1  # it was long ago
        assert health() == (503, 503)
    wait_until(lambda: health() == (200, 200))
