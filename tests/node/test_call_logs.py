"""Logs of calls: what functions wrote, bounded, by tenant, over every interface."""

from __future__ import annotations

import contextlib
import http.client
import json
import re
import time
import unicodedata
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dandelion.call_logs import CALL_LINES, LINE_LIMIT, LogLine, PrintedLine, printed_lines, shown
from dandelion.cli.logs import text_of
from dandelion.cli.main import main
from dandelion.documents import RegistrationDocument
from dandelion.errors import DandelionError, Raised, root_of
from dandelion.frontend.client import FOLLOW_S, Client
from dandelion.frontend.server import BackgroundServer
from dandelion.frontend.stream_places import StreamPlaces
from dandelion.node import Node, Settings
from dandelion.node.call_logs import TENANTS, CallLogs
from dandelion.testing import wait_until
from tests.node.frontend_processes import Processes
from tests.node.guarded import guarded
from tests.node.served import function

WRITER = """
import logging, os, sys
def f(x):
    text = x.text()
    exec(text)
    return b""
"""
SETTINGS = Settings(backends=("process",), engines={"process": 1}, arena_bytes=16 << 20)
DOCUMENT = RegistrationDocument(
    functions=(
        function("f", ("x",), ("y",), "python", WRITER),
        function("quiet", ("x",), ("y",), "python", WRITER.replace("f(x)", "quiet(x)")),
    )
)


@pytest.fixture(scope="module")
def node() -> Iterator[Node]:
    with Node(SETTINGS) as node:
        node.register(DOCUMENT)
        assert node.wait_ready()
        yield node


def run(node: Node, text: str, name: str = "f") -> tuple[LogLine, ...]:
    """Run a text in a function; give the lines that it wrote, also if it failed."""
    before = node.logs().last
    with contextlib.suppress(DandelionError):
        node.invoke(name, x=text)
    return node.logs(after=before).lines


def test_streams_and_levels_are_told_apart(node: Node) -> None:
    lines = run(
        node,
        "print('one'); print('two', file=sys.stderr)\n"
        "logging.warning('three %d', 3); logging.getLogger('lib').error('four')\n"
        "logging.info('not shown'); print('five')\n"
        "logging.getLogger().setLevel('DEBUG'); logging.debug('six')\n"
        "os.write(1, b'seven\\n')",
    )
    assert [(line.stream, line.level, line.text) for line in lines] == [
        ("stdout", "", "one"),
        ("stderr", "", "two"),
        ("logging", "warning", "WARNING:root:three 3"),
        ("logging", "error", "ERROR:lib:four"),
        ("stdout", "", "five"),
        ("logging", "debug", "DEBUG:root:six"),
        ("stdout", "", "seven"),
    ]
    (first, *_) = lines
    assert (first.function, first.application, first.instance, first.attempt) == ("f", "f", 0, 1)
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", first.time)
    assert {line.invocation for line in lines} == {first.invocation}


def test_pieces_of_a_line_belong_together(node: Node) -> None:
    lines = run(
        node,
        "sys.stderr.write('a'); sys.stderr.write('b\\r\\n'); print('c', end=''); print('d')\n"
        "sys.stdout.buffer.write(b'raw\\xff\\n'); logging.warning('e\\nf')\n"
        "print(sys.stdout.isatty(), sys.stdout.seekable(), sys.stderr.isatty())",
    )
    assert [(line.stream, line.text) for line in lines] == [
        ("stderr", "ab"),
        ("stdout", "cd"),
        ("stdout", "raw\ufffd"),
        ("logging", "WARNING:root:e"),
        ("logging", "f"),
        ("stdout", "False False False"),
    ]


def test_calls_that_fail_have_lines_and_their_errors_too(node: Node) -> None:
    before = node.logs().last
    with pytest.raises(DandelionError) as failed:
        node.invoke("f", x="print('before'); logging.error('bad'); raise ValueError('no')")
    raised = root_of(failed.value)
    assert isinstance(raised, Raised)
    assert raised.stderr == "before\nERROR:root:bad\n"
    lines = node.logs(after=before).lines
    assert [line.text for line in lines] == ["before", "ERROR:root:bad"]
    assert lines[0].invocation == failed.value.invocation
    assert [line.text for line in run(node, "print('x'); os._exit(3)")] == ["x"]


@pytest.mark.parametrize(
    "text",
    [
        "print('x' * 10_000_000)",
        "print('y\\n' * 1_000_000)",
        "os.write(2, b'\\0' * 60_000)",
        "os.write(2, bytes(range(256)) * 200)",
        "os.write(1, b'\\0w' * 20_000)",
        "[logging.error('z' * 100) for _ in range(5000)]",
    ],
)
def test_hostile_output_is_bounded(node: Node, text: str) -> None:
    lines = run(node, text)
    assert len(lines) <= CALL_LINES
    assert sum(len(line.text) for line in lines) <= 17_000
    assert all(len(line.text) <= LINE_LIMIT + 20 for line in lines)
    assert {line.stream for line in lines} <= {"stdout", "stderr", "logging"}
    assert [line.text for line in run(node, "print('next')")] == ["next"], "the next call works"


def test_lines_are_chosen(node: Node) -> None:
    run(node, "print('other')", "quiet")
    (line,) = run(node, "print('mine')")
    assert [x.text for x in node.logs(invocation=line.invocation).lines] == ["mine"]
    assert "mine" not in [x.text for x in node.logs(function="quiet").lines]
    assert node.logs(limit=1).lines[0].text == "mine"
    assert node.logs(tenant="another").lines == ()
    assert node.logs(after=node.logs().last).lines == ()


# --- over HTTP ------------------------------------------------------------------------------------


@pytest.mark.parametrize("frontends", [1, 2])
def test_over_http_clients_and_the_command(
    frontends: int, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    with contextlib.ExitStack() as stack:
        if frontends == 1:
            node = stack.enter_context(Node(SETTINGS))
            url = stack.enter_context(BackgroundServer(node)).url
        else:
            processes = stack.enter_context(Processes(SETTINGS, [], frontends))
            node, url = processes.node, f"http://127.0.0.1:{processes.port}"
        node.register(DOCUMENT)
        client = stack.enter_context(Client(url))
        client.invoke("f", x=r"print('one\x1b[2J\u202e'); print('two')")
        page = client.logs()
        assert page == node.logs()
        assert client.logs(function="quiet").lines == ()
        following = client.follow_logs(function="f")
        assert [next(following).text for _ in range(2)][1] == "two"
        client.invoke("f", x="print('three')")
        assert next(following).text == "three"
        assert main(["logs", "--url", url]) == 0
        shown_lines = capsysbinary.readouterr().out.decode().splitlines()
        assert shown_lines[0].endswith(r"f[0] stdout: one\x1b[2J\u202e")
        assert main(["logs", "--url", url, "--json", "--invocation", "none"]) == 0
        assert capsysbinary.readouterr().out == b""
        _follow(client, int(url.rpartition(":")[2]))


def test_lines_are_followed_over_a_restart_of_the_server() -> None:
    with Node(SETTINGS) as node, contextlib.ExitStack() as served:
        node.register(DOCUMENT)
        server = served.enter_context(BackgroundServer(node))
        with Client(server.url) as client:
            client.invoke("f", x="print('one')")
            following = client.follow_logs()
            assert next(following).text == "one"
            with ThreadPoolExecutor(1) as thread:
                served.close()
                found = thread.submit(next, following)
                time.sleep(2 * FOLLOW_S)  # it asks in vain
                port = int(server.url.rpartition(":")[2])
                served.enter_context(BackgroundServer(node, port=port))
                node.invoke("f", x="print('two')")
                assert found.result(20).text == "two"


def _follow(client: Client, port: int) -> None:
    with contextlib.closing(http.client.HTTPConnection("127.0.0.1", port, timeout=20)) as held:
        held.request("GET", f"/v1/logs?follow=true&after={client.logs().last}")
        answer = held.getresponse()
        assert answer.headers["content-type"] == "application/x-ndjson"
        assert answer.readline() == b"\n"
        client.invoke("f", x="print('four')")
        assert json.loads(answer.readline())["text"] == "four"


def test_followers_end_with_their_clients_and_with_the_server() -> None:
    from dandelion.frontend import logs_routes

    made = []
    real = logs_routes.LogsRoute.__init__

    def noting(self: logs_routes.LogsRoute, node: Node) -> None:
        real(self, node)
        made.append(self)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(logs_routes.LogsRoute, "__init__", noting)
        with contextlib.ExitStack() as stack:
            node = stack.enter_context(Node(Settings(backends=("null",))))
            server = stack.enter_context(BackgroundServer(node, drain_s=100))
            port = int(server.url.rpartition(":")[2])
            (route,) = made
            route._places = StreamPlaces("followers of logs", 3)
            held = [http.client.HTTPConnection("127.0.0.1", port, timeout=20) for _ in range(3)]
            answers = []
            for connection in held[:2]:
                stack.callback(connection.close)
                connection.request("GET", "/v1/logs?follow=true")
                answers.append(connection.getresponse())
            wait_until(lambda: route._places._free == 1)
            held[2].request("GET", "/v1/logs?follow=true")
            refused = held[2].getresponse()
            assert (refused.status, b"followers" in refused.read()) == (429, True)
            held[2].close()
            answers[0].close()
            held[0].close()
            wait_until(lambda: route._places._free == 2)
            server.close()  # does not wait for the other one
            assert route._places._free == 3


@pytest.mark.parametrize("query", ["follow=1", "after=-1", "limit=x", "fnction=f"])
def test_wrong_queries(query: str) -> None:
    with Node(Settings(backends=("null",))) as node, BackgroundServer(node) as server:
        port = int(server.url.rpartition(":")[2])
        with contextlib.closing(http.client.HTTPConnection("127.0.0.1", port)) as connection:
            connection.request("GET", f"/v1/logs?{query}")
            assert connection.getresponse().status == 400


def test_tenants_see_their_own_lines_only(tmp_path: Path) -> None:
    with guarded(tmp_path, 1, backends=("process",), engines={"process": 1}) as served:
        for tenant in ("acme", "beta"):
            served.node.register(DOCUMENT, tenant=tenant)
            served.node.invoke("f", x=f"print('of {tenant}')", tenant=tenant)
        answer = served.ask("GET", "/v1/logs", "only-read")
        assert [json.loads(x)["text"] for x in answer.body.splitlines()] == ["of acme"]
        other = served.ask("GET", "/v1/logs", "beta")
        assert [json.loads(x)["text"] for x in other.body.splitlines()] == ["of beta"]
        assert served.ask("GET", "/v1/logs", "only-invoke").status == 403
        assert served.ask("GET", "/v1/logs").status == 401


# --- the ring and the text ----------------------------------------------------------------------


class _Call:
    """What `CallLogs` uses of a call."""

    def __init__(self, tenant: str, text: str) -> None:
        class Named:
            name = tenant
            id = "i"
            number = 0

        class Flow:
            tenant = Named()
            spec = Named()

        class Run:
            application = Named()
            number = 0

        self.flow, self.run, self.invocation, self.attempt = Flow(), Run(), Named(), 1
        self.printed = (PrintedLine("stdout", text),)


def test_rings_are_bounded_and_a_tenant_loses_its_own_lines() -> None:
    logs = CallLogs(1000)
    for number in range(50):
        logs.add(_Call("loud", f"{number}"))  # type: ignore[arg-type]
    logs.add(_Call("quiet", "kept"))  # type: ignore[arg-type]
    for number in range(50):
        logs.add(_Call("loud", f"{number}"))  # type: ignore[arg-type]
    assert [line.text for line in logs.page("loud").lines] == ["46", "47", "48", "49"]
    assert [line.text for line in logs.page("quiet").lines] == ["kept"]
    logs.add(_Call("loud", "x" * 1000))  # type: ignore[arg-type]
    assert len(logs.page("loud").lines) == 4, "too large to keep"


def test_all_rings_together_are_bounded() -> None:
    logs = CallLogs(1000)
    for tenant in range(10 * TENANTS):
        for _ in range(4):
            logs.add(_Call(f"t{tenant}", "line"))  # type: ignore[arg-type]
    kept = [len(logs.page(f"t{tenant}").lines) for tenant in range(10 * TENANTS)]
    assert sum(kept) * 204 <= TENANTS * 1000
    assert kept[-1] > 0
    assert len(logs._rings) <= TENANTS * 1000 // 204


def test_the_last_lines_are_kept_whichever_tenant_has_the_most() -> None:
    logs = CallLogs(1000)
    half = "x" * 300  # with what is counted for a line, half of the memory of a tenant
    for number in range(4 * TENANTS):
        for tenant in range(2 * TENANTS):
            logs.add(_Call(f"t{tenant}", f"{number:03}{half[3:]}"))  # type: ignore[arg-type]
            (*_, line) = logs.page(f"t{tenant}").lines
            assert line.text.startswith(f"{number:03}")
            assert logs._size_bytes == sum(ring.size_bytes for ring in logs._rings.values())
    assert logs._size_bytes == TENANTS * 1000


def test_what_was_read_last_stays_valid_after_a_restart(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [10**18]
    monkeypatch.setattr("dandelion.node.call_logs.time.time_ns", lambda: clock[0])
    before = CallLogs(1000)
    for number in range(100):
        before.add(_Call("t", f"{number}"))  # type: ignore[arg-type]
    last = before.page("t").last
    clock[0] += 10**9
    restarted = CallLogs(1000)
    restarted.add(_Call("t", "new"))  # type: ignore[arg-type]
    page = restarted.page("t", after=last)
    assert [line.text for line in page.lines] == ["new"]
    clock[0] = 0
    restarted.add(_Call("t", "newer"))  # type: ignore[arg-type]
    assert [line.text for line in restarted.page("t", after=page.last).lines] == ["newer"]


def test_numbers_of_lines_do_not_tell_how_much_others_wrote(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("dandelion.node.call_logs.time.time_ns", lambda: 10**18)
    logs = CallLogs(1000)
    logs.add(_Call("t", "one"))  # type: ignore[arg-type]
    first = logs.page("t").last
    for _ in range(100):
        logs.add(_Call("other", "x"))  # type: ignore[arg-type]
    logs.add(_Call("t", "two"))  # type: ignore[arg-type]
    assert logs.page("t").last == first + 1


def test_nothing_is_kept_without_memory_for_it() -> None:
    logs = CallLogs(0)
    logs.add(_Call("t", "x"))  # type: ignore[arg-type]
    assert logs.page("t").lines == ()


@given(st.text())
def test_shown_text_cannot_control_a_terminal(text: str) -> None:
    spaces = "\t\u200c\u200d"
    assert all(
        c.isprintable() or c in spaces or unicodedata.category(c) == "Zs" for c in shown(text)
    )
    line = LogLine("t", "i", "f", "f", 0, "stdout", text)
    assert "\n" not in text_of(line)


@given(st.text("ab\r\n"))
def test_lines_have_no_breaks(text: str) -> None:
    lines = printed_lines(text, "stdout")
    assert all("\n" not in line.text and line.text for line in lines)


@given(st.binary(max_size=300))
def test_any_bytes_of_a_sandbox_are_lines(written: bytes) -> None:
    import importlib

    outcome = importlib.import_module("dandelion.backends.process.outcome")
    lines = outcome.lines_of(written)
    assert len(lines) <= CALL_LINES
    assert isinstance(outcome.printed(written), str)
