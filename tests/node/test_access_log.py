"""The access log: a line for each request, which no client can forge and no request waits for."""

from __future__ import annotations

import contextlib
import errno
import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dandelion.errors import InvalidInput
from dandelion.frontend import access_log
from dandelion.frontend.access_log import AccessLog, RequestRecord
from dandelion.frontend.server import BackgroundServer
from dandelion.node import Node, Settings
from dandelion.testing import wait_until
from tests.node.frontend_processes import Processes
from tests.node.guarded import guarded
from tests.node.served import DOCUMENT, SETTINGS, GateDriver

ROOT = Path(__file__).resolve().parent.parent.parent
PARENT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
BODY = b'{"sets": {"a": "x"}}'
JSON = {"Content-Type": "application/json"}


def lines_of(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_bytes().splitlines()]


def settings_with(file: Path | str, **further: Any) -> Settings:
    names = ("backends", "arena_bytes", "body_limit_bytes", "max_waiting")
    kept = {name: getattr(SETTINGS, name) for name in names}
    return Settings(**kept, access_log=str(file), **further)


@contextlib.contextmanager
def served(
    file: Path, frontends: int, gate: GateDriver | None = None
) -> Iterator[tuple[Node, int]]:
    drivers = [gate or GateDriver()]
    if frontends > 1:
        with Processes(settings_with(file), drivers, frontends) as processes:
            processes.node.register(DOCUMENT)
            yield processes.node, processes.port
        return
    with Node(settings_with(file), drivers) as node, BackgroundServer(node) as server:
        node.register(DOCUMENT)
        yield node, int(server.url.rpartition(":")[2])


def ask(
    port: int, method: str, path: str, body: bytes | None = None, **headers: str
) -> tuple[int, dict[str, str], int]:
    with contextlib.closing(http.client.HTTPConnection("127.0.0.1", port)) as connection:
        connection.request(method, path, body, {k.replace("_", "-"): v for k, v in headers.items()})
        answer = connection.getresponse()
        return answer.status, dict(answer.getheaders()), len(answer.read())


@pytest.mark.parametrize("frontends", [1, 2])
def test_each_request_is_a_line(tmp_path: Path, frontends: int) -> None:
    file = tmp_path / "access.log"
    with served(file, frontends) as (_, port):
        invoked = ask(
            port,
            "POST",
            "/v1/invoke/echo?deadline_s=5",
            BODY,
            content_type="application/json",
            traceparent=PARENT,
            user_agent="test/1",
        )
        failed = ask(port, "POST", "/v1/invoke/fail", BODY, content_type="application/json")
        ask(port, "GET", "/v1/nothing")
        ask(port, "HEAD", "/healthz")
        wait_until(lambda: len(file.read_bytes().splitlines()) == 4)
    lines = {line["path"]: line for line in lines_of(file)}
    first, second = lines["/v1/invoke/echo"], lines["/v1/invoke/fail"]
    third, fourth = lines["/v1/nothing"], lines["/healthz"]
    assert first == {
        "time": first["time"],
        "method": "POST",
        "path": "/v1/invoke/echo",
        "status": 200,
        "bytes_in": len(BODY),
        "bytes_out": invoked[2],
        "duration_s": first["duration_s"],
        "tenant": "default",
        "token": "-",
        "peer": first["peer"],
        "invocation": invoked[1]["dandelion-invocation"],
        "trace_id": PARENT[3:35],
        "user_agent": "test/1",
    }
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", first["time"])
    assert 0 < first["duration_s"] < 60
    assert re.fullmatch(r"127\.0\.0\.1:\d+", first["peer"])
    assert (second["status"], second["bytes_out"]) == (422, failed[2])
    assert second["invocation"]
    assert third["status"] == 404
    assert "invocation" not in third
    assert (fourth["method"], fourth["status"], fourth["bytes_out"]) == ("HEAD", 200, 0)


def test_a_client_that_left_and_a_body_in_pieces(tmp_path: Path) -> None:
    file, gate = tmp_path / "access.log", GateDriver()
    with served(file, 1, gate) as (_, port):
        with socket.create_connection(("127.0.0.1", port)) as connection:
            head = f"POST /v1/invoke/wait HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n"
            head += f"Content-Type: application/json\r\nContent-Length: {len(BODY)}\r\n\r\n"
            connection.sendall(head.encode() + BODY[:5])
            connection.sendall(BODY[5:])
            assert gate.gate.entered()
        wait_until(lambda: file.read_bytes())
    (line,) = lines_of(file)
    assert (line["status"], line["bytes_in"], line["bytes_out"]) == (499, len(BODY), 0)


def test_tenant_and_token_are_those_of_the_caller(tmp_path: Path) -> None:
    file = tmp_path / "access.log"
    with guarded(tmp_path, 1, access_log=str(file)) as served:
        served.ask("GET", "/v1/functions", "only-read")
        served.ask("GET", "/v1/functions")
        wait_until(lambda: len(file.read_bytes().splitlines()) == 2)
    known, unknown = lines_of(file)
    assert known["status"] == 200
    assert known["token"] == "only-read"
    assert known["tenant"] == "acme"
    assert unknown["status"] == 401
    assert not {"token", "tenant"} & unknown.keys()


HOSTILE = [
    "/v1/%0A%7B%22status%22%3A200%7D",
    "/%1b[31m%7f%c2%9b",
    "/%ff%fe",
    "/%e2%80%a8%22%5c",
    "/" + "x" * 5000,
]


@pytest.mark.parametrize("path", HOSTILE)
def test_no_client_can_forge_a_line(tmp_path: Path, path: str) -> None:
    file = tmp_path / "access.log"
    agent = 'x","status":200,"y":"\x9b31m\xe9' + "z" * 1000
    with served(file, 1) as (_, port):
        status, _, _ = ask(port, "GET", path, user_agent=agent)
        wait_until(lambda: file.read_bytes())
    written = file.read_bytes()
    assert re.fullmatch(rb"[ -~]+\n", written)
    assert len(written) < 4 * (access_log.PATH_LIMIT + access_log.AGENT_LIMIT)
    (line,) = lines_of(file)
    assert line["status"] == status == 404
    assert line["user_agent"] == agent[: access_log.AGENT_LIMIT] + "..."


@given(st.text(max_size=40), st.text(max_size=10), st.binary(max_size=40))
def test_any_text_is_one_line_and_is_read_back(path: str, tenant: str, agent: bytes) -> None:
    log = AccessLog("/dev/null")
    try:
        record = RequestRecord(5, 3, "GET", path, 200, 1, 2, tenant, "", None, "", "", agent)
        line = log._line(record, 10**18)
    finally:
        log.close()
    assert re.fullmatch(rb"[ -~]+\n", line)
    read = json.loads(line)
    assert read["path"] == path
    assert read.get("tenant", "") == tenant
    assert read.get("user_agent", "") == agent.decode("latin-1")


# --- the file -------------------------------------------------------------------------------------


def a_record(path: str = "/x") -> RequestRecord:
    return RequestRecord(5, 3, "GET", path, 200, 0, 0, "", "", None, "", "", b"")


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(access_log, "GATHER_S", 0.0)


def test_a_queue_that_is_full_drops_and_counts(
    monkeypatch: pytest.MonkeyPatch, at_once: None, tmp_path: Path
) -> None:
    monkeypatch.setattr(access_log, "QUEUE_LINES", 3)
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    log = AccessLog(str(pipe))
    os.set_blocking(reader, True)
    written = threading.Event()
    real = os.write

    def held(file: int, data: bytes) -> int:
        written.wait(20)
        return real(file, data)

    monkeypatch.setattr(access_log.os, "write", held)
    log.add(a_record("/0"))
    wait_until(lambda: not log._queue)  # the thread has taken it, and waits
    for number in range(1, 6):
        log.add(a_record(f"/{number}"))
    assert log.dropped == 2
    written.set()
    log.close()
    lines = os.read(reader, 65536).splitlines()
    os.close(reader)
    assert [json.loads(line)["path"] for line in lines] == ["/0", "/1", "/2", "/3"]


def test_a_full_disk_is_counted_reported_once_and_ends(
    at_once: None, caplog: pytest.LogCaptureFixture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "log"
    log = AccessLog(str(file))
    real, room = os.write, [10]

    def short(descriptor: int, data: bytes) -> int:
        if not room[0]:
            raise OSError(errno.ENOSPC, "No space left on device")
        size = min(len(data), room[0])
        room[0] -= size
        return real(descriptor, data[:size])

    monkeypatch.setattr(access_log.os, "write", short)
    for count in (1, 2):
        log.add(a_record("/lost"))
        wait_until(lambda expected=count: log.dropped == expected)
    room[0] = 10_000
    log.add(a_record("/kept"))
    log.close()
    torn, kept = file.read_bytes().splitlines()
    assert len(torn) == 10
    assert json.loads(kept)["path"] == "/kept", "on a line of its own"
    assert len([r for r in caplog.records if "access log" in r.getMessage()]) == 1


def test_drops_are_in_the_metrics(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(access_log, "QUEUE_LINES", 0)
    with served(tmp_path / "log", 1) as (node, port):
        ask(port, "GET", "/healthz")
        wait_until(lambda: node.info().lines_dropped == 1)
        assert b"dandelion_access_log_dropped_total 1.0" in node.metrics()


def test_drops_of_processes_are_in_the_metrics(tmp_path: Path) -> None:
    if not os.path.exists("/dev/full"):
        pytest.skip("this system has no /dev/full")
    with served(Path("/dev/full"), 2) as (node, port):
        ask(port, "GET", "/healthz")
        wait_until(lambda: node.info().lines_dropped == 1)


def test_a_file_that_cannot_be_opened_is_refused(tmp_path: Path) -> None:
    with Node(settings_with(tmp_path / "none" / "log")) as node, pytest.raises(InvalidInput) as no:
        BackgroundServer(node)
    assert no.value.where == "access_log"
    with pytest.raises(InvalidInput):
        Processes(settings_with(tmp_path / "none" / "log"), [], 2)


@pytest.mark.parametrize("frontends", ["1", "2"])
def test_sighup_opens_the_file_again(tmp_path: Path, frontends: str) -> None:
    file, old = tmp_path / "access.log", tmp_path / "access.log.1"
    command = [sys.executable, "-m", "dandelion", "serve", "--json", "--port", "0"]
    command += ["--backends", "null", "--access-log", str(file), "--frontends", frontends]
    with subprocess.Popen(command, stdout=subprocess.PIPE, cwd=ROOT) as server:
        try:
            assert server.stdout is not None
            port = json.loads(server.stdout.readline())["port"]
            ask(port, "GET", "/first")
            wait_until(lambda: b"/first" in file.read_bytes())
            file.rename(old)
            server.send_signal(signal.SIGHUP)
            wait_until(file.exists)

            def seen() -> bool:
                ask(port, "GET", "/second")
                return b"/second" in file.read_bytes()

            wait_until(seen)
        finally:
            server.terminate()
    assert server.returncode == 0
    assert b"/first" not in file.read_bytes()


def test_standard_error_has_lines_like_other_logs() -> None:
    command = [sys.executable, "-m", "dandelion", "serve", "--json", "--port", "0"]
    command += ["--backends", "null", "--access-log", "-"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=ROOT
    ) as server:
        assert server.stdout is not None
        assert server.stderr is not None
        ask(json.loads(server.stdout.readline())["port"], "GET", "/somewhere")
        server.terminate()
        lines = [json.loads(line) for line in server.stderr.read().splitlines()]
    (found,) = [line for line in lines if line["logger"] == "dandelion.access"]
    assert (found["path"], found["status"]) == ("/somewhere", 404)
