"""Protocols of third parties: found by entry point, guarded like all routes."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import threading
from collections.abc import AsyncGenerator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from dandelion import Node, Settings
from dandelion.data import Bytes, Item, ItemSet
from dandelion.errors import BackendUnavailable, DandelionError, InvalidInput
from dandelion.frontend.adapter import Adapter, AdapterContext, load_adapter, protocol_names
from dandelion.frontend.app import App
from dandelion.frontend.asgi import Request, Response
from dandelion.frontend.native import NativeAdapter
from dandelion.frontend.routing import Route
from dandelion.frontend.server import BackgroundServer
from dandelion.testing import installed, wait_until
from dandelion.tokens import Right
from dandelion.tokens.file import write_tokens

from .guarded import record, token
from .served import SETTINGS, function


def plain_problem(error: DandelionError, invocation: str) -> Response:
    return Response([f"{type(error).__name__}: {error}".encode()], b"text/plain", 418)


class Shouting(Adapter):
    """Invokes with the text of the path, and answers in capitals."""

    def __init__(self, context: AdapterContext) -> None:
        self._node = context.node
        self.events: list[str] = []
        self.left = threading.Event()
        self.ends = threading.Event()

    def routes(self) -> Sequence[Route]:
        return [
            Route("GET", "/shout/{name}/{text}", self._shout, Right.INVOKE, None, plain_problem),
            Route("GET", "/count", self._count, None),
            Route("GET", "/endless", self._endless, None),
            Route("GET", "/pausing", self._pausing, None),
            Route("GET", "/timed", self._timed, None),
        ]

    async def start(self) -> None:
        self.events.append("start")

    async def stop(self) -> None:
        self.events.append("stop")

    def close(self) -> None:
        self.events.append("close")

    async def _shout(self, request: Request) -> Response:
        data = request.parameters["text"].encode()
        result = await self._node.invoke_sets_async(
            request.parameters["name"],
            {"a": ItemSet("a", (Item("text", 0, data),))},
            tenant=request.grant.tenant,
        )
        (item,) = result.sets["b"] or ()
        return Response([bytes(item.data).upper()], b"text/plain")

    async def _count(self, request: Request) -> Response:
        async def numbers() -> AsyncGenerator[Bytes, None]:
            for number in range(3):
                await asyncio.sleep(0)
                yield b"%d\n" % number

        return Response([], b"text/plain", stream=numbers())

    async def _endless(self, request: Request) -> Response:
        async def ticks() -> AsyncGenerator[Bytes, None]:
            try:
                yield b"begun"
                await asyncio.Event().wait()
            finally:
                self.left.set()

        request.watch()
        return Response([], b"text/plain", stream=ticks())

    async def _timed(self, request: Request) -> Response:
        async with asyncio.timeout(20), asyncio.TaskGroup() as group:
            text = group.create_task(asyncio.to_thread(str.encode, "in time"))
        return Response([text.result()], b"text/plain")

    async def _pausing(self, request: Request) -> Response:
        async def begun() -> AsyncGenerator[Bytes, None]:
            yield b"begun"
            await asyncio.to_thread(self.ends.wait, 20)
            self.left.set()

        return Response([], b"text/plain", stream=begun())


SHOUTING = msgspec.structs.replace(SETTINGS, protocols=("shouting",))


class Served:
    """A node that serves `Shouting`."""

    def __init__(self, folder: Path, settings: Settings = SHOUTING) -> None:
        self._settings = settings
        self._installed = installed(folder, shouting=self._adapter)
        self._made: list[Shouting] = []

    def _adapter(self, context: AdapterContext) -> Adapter:
        self._made.append(Shouting(context))
        return self._made[-1]

    @property
    def adapter(self) -> Shouting:
        """The only one that was made."""
        (made,) = self._made
        return made

    def __enter__(self) -> Served:
        self._stack = contextlib.ExitStack()
        self._stack.enter_context(self._installed)
        self.node = self._stack.enter_context(Node(self._settings))
        self.node.register(function("echo", ("a",), ("b",)))
        self._server = self._stack.enter_context(BackgroundServer(self.node))
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def connect(self) -> http.client.HTTPConnection:
        """Open a connection."""
        return http.client.HTTPConnection(self._server.url.removeprefix("http://"), timeout=20)

    def fetch(self, path: str, caller: str = "") -> tuple[int, bytes]:
        """Get a path with the token of a name."""
        headers = {"Authorization": f"Bearer {token(caller)}"} if caller else {}
        with contextlib.closing(self.connect()) as connection:
            connection.request("GET", path, headers=headers)
            response = connection.getresponse()
            return response.status, response.read()


def test_an_adapter_serves_its_clients_until_the_end(tmp_path: Path) -> None:
    with Served(tmp_path) as served:
        assert served.adapter.events == ["start"]
        assert served.fetch("/shout/echo/hello") == (200, b"HELLO")
        status, body = served.fetch("/shout/none/hello")  # in the form of its route
        assert (status, body[:8]) == (418, b"Unknown:")
        assert served.fetch("/count") == (200, b"0\n1\n2\n")
        assert b"NoRoute" in served.fetch("/shout/echo")[1]
        assert b'"ok"' in served.fetch("/healthz")[1]
    assert served.adapter.events == ["start", "stop", "close"]


def test_a_handler_has_a_task_from_the_start(tmp_path: Path) -> None:
    with Served(tmp_path) as served:
        assert served.fetch("/timed") == (200, b"in time")


def test_a_stream_ends_when_its_client_leaves(tmp_path: Path) -> None:
    with Served(tmp_path) as served:
        connection = served.connect()
        connection.request("GET", "/endless")
        response = connection.getresponse()
        assert response.read(5) == b"begun"
        assert not served.adapter.left.is_set()
        response.close()
        connection.close()
        wait_until(served.adapter.left.is_set)


def test_its_routes_are_guarded(tmp_path: Path) -> None:
    tokens = tmp_path / "tokens.toml"
    write_tokens(
        tokens, [record("caller", rights=(Right.INVOKE,)), record("reader", rights=(Right.READ,))]
    )
    with Served(tmp_path, msgspec.structs.replace(SHOUTING, tokens=str(tokens))) as served:
        assert served.fetch("/shout/echo/a", "caller") == (200, b"A")
        for caller in ("", "unknown"):
            status, body = served.fetch("/shout/echo/a", caller)
            assert (status, body[:15]) == (418, b"Unauthenticated")
        status, body = served.fetch("/shout/echo/a", "reader")
        assert (status, body[:12]) == (418, b"MissingRight")
        assert served.fetch("/count") == (200, b"0\n1\n2\n")
        assert served.fetch("/shout/echo")[0] == 401  # not whether there is such a route


def test_protocols_that_cannot_be_served_are_refused(tmp_path: Path) -> None:
    with Node(SETTINGS) as node, contextlib.closing(App(node)) as app:
        context = AdapterContext(node, app.converter)
        with installed(tmp_path, shouting=lambda context: NativeAdapter(context)):
            assert "shouting" in protocol_names()
            with pytest.raises(InvalidInput, match="'shouting'") as caught:
                load_adapter("shoutin", context)
            assert caught.value.where == "protocols"
            node.settings = SHOUTING
            with pytest.raises(InvalidInput, match="/v1/invoke"):
                App(node)
        (tmp_path / "more").mkdir()
        with (
            installed(tmp_path / "more", shouting=None),  # type: ignore[arg-type]  # the fault
            pytest.raises(BackendUnavailable, match="a function 'adapter'"),
        ):
            load_adapter("shouting", context)


def test_the_example_of_the_documents(tmp_path: Path) -> None:
    page = (Path(__file__).parents[2] / "docs" / "protocols.md").read_text()
    code = page.split("```python\n")[1].split("```")[0]
    names: dict[str, Any] = {}
    exec(compile(code, "protocols.md", "exec"), names)
    settings = msgspec.structs.replace(SETTINGS, protocols=("plain",))
    with installed(tmp_path, plain=names["adapter"]), Node(settings) as node:
        node.register(function("echo", ("a",), ("b",)))
        with BackgroundServer(node) as server:
            connection = http.client.HTTPConnection(server.url.removeprefix("http://"), timeout=20)
            with contextlib.closing(connection):
                connection.request("POST", "/plain/echo/a", b"bytes")
                assert connection.getresponse().read() == b"bytes"
