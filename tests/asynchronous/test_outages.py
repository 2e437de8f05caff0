"""Clients that wait for an asynchronous invocation while its node, or a proxy, gives no answer."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import logging
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest

from dandelion import Node
from dandelion.asynchronous.failures import NotEnded
from dandelion.asynchronous.handle import InvocationHandle
from dandelion.asynchronous.records import KeptState
from dandelion.data import Sets
from dandelion.frontend import outage
from dandelion.frontend.async_client import AsyncClient
from dandelion.frontend.client import Client
from dandelion.frontend.client_kept import ClientKept
from dandelion.frontend.client_requests import Steps
from dandelion.frontend.problem import ClientClosed, Unreachable
from dandelion.frontend.server import BackgroundServer
from dandelion.frontend.wait_places import WaitPlaces
from tests.asynchronous.async_nodes import LIMIT_S, node_of, settings_of
from tests.node.served import GateDriver


class Restarted:
    """A node with a store on disk that is stopped, and started again at the same address."""

    def __init__(self, folder: Path) -> None:
        self._catalog = f"sqlite:{folder}"
        self._stack = contextlib.ExitStack()
        self.driver = GateDriver()
        node = self._stack.enter_context(node_of(self.driver, catalog=self._catalog))
        self.server = self._stack.enter_context(BackgroundServer(node))
        self.url = self.server.url

    def stop(self) -> None:
        self._stack.close()

    def start(self) -> None:
        """Start it again; calls are let through."""
        self.driver = GateDriver()
        self.driver.gate.open(10)
        port = int(self.url.rpartition(":")[2].rstrip("/"))
        node = self._stack.enter_context(Node(settings_of(catalog=self._catalog), [self.driver]))
        self.server = self._stack.enter_context(BackgroundServer(node, port=port))


@pytest.fixture
def restarted(tmp_path: Path) -> Iterator[Restarted]:
    made = Restarted(tmp_path)
    yield made
    made.stop()


async def awaited(url: str) -> Sets:
    async with AsyncClient(url) as client:
        handle = await client.submit("wait", a=b"again")
        return await handle.result(LIMIT_S)


def blocked(url: str) -> Sets:
    with Client(url) as client:
        return client.submit("wait", a=b"again").result(LIMIT_S)


def shown(url: str) -> Sets:
    with Client(url) as client:
        handle = client.submit("wait", a=b"again")
        states = [event.state for event in handle.events() if event.kind == "state"]
        assert states[-1] is KeptState.SUCCEEDED
        return handle.result(0.0)


async def shown_awaited(url: str) -> Sets:
    async with AsyncClient(url) as client:
        handle = await client.submit("wait", a=b"again")
        states = [event.state async for event in handle.events() if event.kind == "state"]
        assert states[-1] is KeptState.SUCCEEDED
        return await handle.result(0.0)


@pytest.mark.parametrize(
    "ask",
    [
        blocked,
        shown,
        lambda url: asyncio.run(awaited(url)),
        lambda url: asyncio.run(shown_awaited(url)),
    ],
    ids=["blocking", "events", "asyncio", "asyncio events"],
)
def test_a_caller_waits_while_the_node_is_restarted(ask: object, restarted: Restarted) -> None:
    assert callable(ask)
    with ThreadPoolExecutor(1) as thread:
        found = thread.submit(ask, restarted.url)
        assert restarted.driver.gate.entered()
        restarted.stop()
        time.sleep(0.3)
        restarted.start()
        assert found.result(LIMIT_S).b.bytes() == b"again"


def test_a_node_that_was_never_reached_is_not_waited_for(restarted: Restarted) -> None:
    restarted.stop()
    with Client(restarted.url) as client:
        began = time.monotonic()
        with pytest.raises(Unreachable):
            client.submitted("0" * 32).result()
        with pytest.raises(Unreachable):
            next(client.submitted("0" * 32).events())
        assert time.monotonic() - began < outage.OUTAGE_S


def test_a_node_that_stays_away_is_given_up(
    restarted: Restarted, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(outage, "OUTAGE_S", 0.5)
    caplog.set_level(logging.WARNING, "dandelion")
    with Client(restarted.url) as client:
        handle = client.submit("wait", a=b"1")
        restarted.stop()
        with pytest.raises(Unreachable):
            handle.result()
        assert [r for r in caplog.messages if "trying again for 0.5 seconds" in r] != []
        with pytest.raises(Unreachable):
            handle.view()  # a single question is not asked again
        restarted.start()
        assert handle.result(LIMIT_S).b.bytes() == b"1"


def closed(url: str) -> Sets:
    with Client(url) as client:
        handle = client.submit("wait", a=b"1")
    return handle.result()


async def closed_awaited(url: str) -> Sets:
    async with AsyncClient(url) as client:
        handle = await client.submit("wait", a=b"1")
    return await handle.result()


@pytest.mark.parametrize(
    "ask", [closed, lambda url: asyncio.run(closed_awaited(url))], ids=["blocking", "asyncio"]
)
def test_a_closed_client_is_no_outage(
    ask: object,
    restarted: Restarted,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    assert callable(ask)
    monkeypatch.setattr(outage, "OUTAGE_S", 0.5)
    caplog.set_level(logging.WARNING, "dandelion")
    with pytest.raises(ClientClosed):
        ask(restarted.url)
    assert [r for r in caplog.messages if "trying again" in r] == []


def test_the_time_of_a_caller_holds_while_the_node_is_away(restarted: Restarted) -> None:
    with Client(restarted.url) as client:
        handle = client.submit("wait", a=b"1")
        restarted.stop()
        began = time.monotonic()
        with pytest.raises(Unreachable):
            handle.result(timeout_s=0.3)
        assert 0.3 <= time.monotonic() - began < outage.OUTAGE_S


@contextlib.contextmanager
def proxy(url: str, failures: list[int]) -> Iterator[str]:
    """Forward requests for results and events; answer the first ones with these statuses."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self._forward()

        def do_GET(self) -> None:
            if failures:
                self.send_error(failures.pop(0))
            else:
                self._forward()

        def _forward(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"] or 0))
            other = http.client.HTTPConnection(url.split("//")[1].strip("/"), timeout=LIMIT_S)
            with contextlib.closing(other):
                names = ("Prefer", "Content-Type", "Accept")
                given = {name: self.headers[name] for name in names if name in self.headers}
                other.request(self.command, self.path, body, given)
                answer = other.getresponse()
                data = answer.read()
            self.send_response(answer.status)
            self.send_header("Content-Type", answer.headers["Content-Type"])
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.mark.parametrize("ask", [blocked, shown], ids=["result", "events"])
def test_errors_of_a_proxy_are_waited_out(ask: object, restarted: Restarted) -> None:
    assert callable(ask)
    restarted.driver.gate.open(1)
    failures = [502, 503, 504]
    with proxy(restarted.url, failures) as url:
        assert ask(url).b.bytes() == b"again"
    assert not failures


@pytest.mark.parametrize("is_reached", [True, False])
@pytest.mark.parametrize("limit_s", [1.5, 5.0, 15.0])
def test_a_proxy_that_ends_long_requests_is_no_outage(limit_s: float, is_reached: bool) -> None:
    now_s = 0.0
    failed = 0
    sets = Sets({})

    def run(steps: Steps[Sets]) -> Sets:
        nonlocal now_s, failed
        wait_s = float(parse_qs(urlsplit(next(steps).path).query)["wait_s"][0])
        now_s += min(wait_s, limit_s)
        if wait_s > limit_s:
            failed += 1
            raise Unreachable("http://proxy", "504")
        if now_s < 10 * outage.OUTAGE_S:
            raise NotEnded("0" * 32, "running")
        return sets

    away = outage.Outage(is_reached=is_reached, clock=lambda: now_s)
    kept = ClientKept(run, WaitPlaces(2), away)
    assert InvocationHandle("0" * 32, kept).result() is sets
    assert failed == 1


def test_a_thread_that_fails_while_another_one_succeeds_tries_again() -> None:
    shared = outage.Outage(is_reached=True)
    error = Unreachable("http://proxy", "503")
    with contextlib.suppress(Unreachable), shared.noted(1.0):
        raise error
    with shared.noted(1.0):  # of another thread
        pass
    assert shared.pause_s(error) is not None
