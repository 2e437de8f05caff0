"""The priority of an invocation, from every kind of caller to the order of the calls."""

from __future__ import annotations

import asyncio
import json
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial

import pytest

from dandelion.documents import CodeDocument, FunctionDocument
from dandelion.errors import InvalidInput
from dandelion.frontend.async_client import AsyncClient
from dandelion.frontend.client import Client
from dandelion.frontend.server import BackgroundServer
from dandelion.node import Node, Settings
from dandelion.testing import Gate, ScriptedDriver, wait_until

from .frontend_processes import Processes

PRIORITIES = (0, -5, 1000, 3, -1000)
SETTINGS = Settings(backends=(), arena_bytes=16 << 20, policy="fifo")
Invoke = Callable[[str, int], object]


class Stage:
    """A node with one engine, whose calls wait at a gate."""

    def __init__(self, frontends: int) -> None:
        self.gate = Gate()
        self.driver = ScriptedDriver("played", self.gate.script)
        self.stack = ExitStack()
        if frontends == 1:
            self.node = self.stack.enter_context(Node(SETTINGS, [self.driver]))
            server = self.stack.enter_context(BackgroundServer(self.node))
            self.url = server.url
        else:
            served = self.stack.enter_context(Processes(SETTINGS, [self.driver], frontends))
            self.node = served.node
            self.url = f"http://127.0.0.1:{served.port}"
        assert self.node.wait_ready()
        names = [f"F{number}" for number in range(len(PRIORITIES))]
        code = (CodeDocument("played"),)
        self.node.register(*[FunctionDocument(n, ("a",), ("b",), code=code) for n in (*names, "G")])

    def order(self, invoke: Invoke) -> list[int]:
        """Invoke a function for each priority while the engine is busy; return their order."""
        with ThreadPoolExecutor(8) as pool:
            calls = [pool.submit(self.node.invoke, "G", a=b"x")]
            assert self.gate.entered()
            for number, priority in enumerate(PRIORITIES):
                calls.append(pool.submit(invoke, f"F{number}", priority))
                wait_until(partial(self._waits, number + 1))
            self.gate.open(len(calls))
            for call in calls:
                call.result(20)
        wait_until(lambda: len(self.driver.seen.ran) == 1 + len(PRIORITIES))
        return [PRIORITIES[int(name[1:])] for _, name in self.driver.seen.ran[1:]]

    def _waits(self, count: int) -> bool:
        return self.node.info().waiting == count


@pytest.fixture(params=[1, 2])
def stage(request: pytest.FixtureRequest) -> Iterator[Stage]:
    stage = Stage(request.param)
    with stage.stack:
        yield stage


def posted(url: str, name: str, priority: object, query: str = "") -> None:
    head = {"Content-Type": "application/json"}
    if not query:
        head["Dandelion-Priority"] = str(priority)
    body = json.dumps({"sets": {"a": "x"}}).encode()
    request = urllib.request.Request(f"{url}/v1/invoke/{name}{query}", body, head)
    with urllib.request.urlopen(request) as response:
        response.read()


async def awaited(stage: Stage, name: str, priority: int) -> None:
    async with AsyncClient(stage.url) as client:
        await client.invoke(name, a=b"x", priority=priority)


def remote(stage: Stage, name: str, priority: int) -> None:
    with Client(stage.url) as client:
        client.invoke(name, a=b"x", priority=priority)


@pytest.mark.parametrize("caller", ["client", "async client", "header", "query"])
def test_priorities_over_http(stage: Stage, caller: str) -> None:
    ways: dict[str, Invoke] = {
        "client": lambda name, priority: remote(stage, name, priority),
        "async client": lambda name, priority: asyncio.run(awaited(stage, name, priority)),
        "header": lambda name, priority: posted(stage.url, name, priority),
        "query": lambda name, priority: posted(stage.url, name, None, f"?priority={priority}"),
    }
    assert stage.order(ways[caller]) == sorted(PRIORITIES, reverse=True)


@pytest.mark.parametrize("caller", ["blocking", "async", "submitted"])
def test_priorities_in_process(caller: str) -> None:
    stage = Stage(1)
    node = stage.node

    def submitted(name: str, priority: int) -> None:
        def submit() -> None:
            node.begin(name, {"a": None}, priority=priority, ended=lambda invocation: None)

        node._parts.loop.call(submit)

    ways: dict[str, Invoke] = {
        "blocking": lambda name, priority: node.invoke(name, a=b"x", priority=priority),
        "async": lambda name, priority: asyncio.run(
            node.invoke_async(name, a=b"x", priority=priority)
        ),
        "submitted": submitted,
    }
    with stage.stack:
        assert stage.order(ways[caller]) == sorted(PRIORITIES, reverse=True)


@pytest.fixture(scope="module")
def played() -> Iterator[Node]:
    with Node(SETTINGS, [ScriptedDriver("played")]) as node:
        code = (CodeDocument("played"),)
        node.register(FunctionDocument("F", ("a",), ("b",), code=code))
        yield node


@pytest.mark.parametrize("value", [1001, -1001, 1 << 70, 1.5, "high", True, None])
def test_what_is_not_a_priority_is_refused_and_named(played: Node, value: object) -> None:
    with pytest.raises(InvalidInput) as caught:
        played.invoke("F", a=b"x", priority=value)  # type: ignore[arg-type]
    assert caught.value.where == "priority"
    assert repr(value) in str(caught.value)


def test_http_refuses_what_is_not_a_priority(stage: Stage) -> None:
    wrong = ["1001", "-1001", str(1 << 70), "1.5", "high", "1_0", "1e2"]
    for value in wrong:
        for query in ("", f"?priority={value}"):
            with pytest.raises(urllib.error.HTTPError) as caught:
                posted(stage.url, "G", value, query)
            with caught.value as response:
                problem = json.load(response)
            assert (response.status, value in problem["detail"]) == (400, True), problem
    stage.gate.open()
    posted(stage.url, "G", "+7")
