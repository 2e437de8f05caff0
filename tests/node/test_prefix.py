"""A node below a path, behind a reverse proxy."""

from __future__ import annotations

import asyncio
import json
import re
import urllib.request
from collections.abc import Iterator
from urllib.parse import urljoin

import pytest

from dandelion.frontend.async_client import AsyncClient
from dandelion.frontend.client import Client
from dandelion.frontend.server import BackgroundServer
from dandelion.node import Node
from tests.cli_commands import given_command

from .prefix_proxy import PrefixProxy
from .served import SETTINGS, function

command = pytest.fixture(given_command)


@pytest.fixture(scope="module", params=[False, True], ids=["at the root", "below a path"])
def url(request: pytest.FixtureRequest) -> Iterator[str]:
    with Node(SETTINGS) as node:
        node.register(function("echo", ("a",), ("b",)))
        with BackgroundServer(node) as server:
            if not request.param:
                yield server.url
                return
            with PrefixProxy(server.url) as proxy:
                yield proxy.url


def get(address: str) -> bytes:
    with urllib.request.urlopen(address, timeout=20) as response:
        found: bytes = response.read()
        return found


def test_all_that_the_page_names_is_there(url: str) -> None:
    text = get(f"{url}/").decode()
    names = re.findall(r'(?:href|src)="([^"#:]+)"', text)
    assert {"docs", "page/main.js", "page/graph.css"} <= set(names)
    for name in names:
        assert get(urljoin(f"{url}/", name)), name
    for module in re.findall(r'"(page/[^"]+\.js)"', text):
        address = urljoin(f"{url}/", module)
        for imported in re.findall(r'from "([^"]+)"', get(address).decode()):
            assert get(urljoin(address, imported)), imported


def test_the_document_of_the_docs_is_there(url: str) -> None:
    text = get(f"{url}/docs").decode()
    (address,) = re.findall(r'fetch\("([^"]+)"\)', text)
    assert "/v1/functions" in json.loads(get(urljoin(f"{url}/docs", address)))["paths"]


@pytest.mark.parametrize("wait", ["", ", wait=20"])
def test_location_is_the_invocation(url: str, wait: str) -> None:
    headers = {"Prefer": f"respond-async{wait}", "Content-Type": "application/octet-stream"}
    address = f"{url}/v1/invoke/echo?version=1"
    request = urllib.request.Request(address, b"x", headers)
    with urllib.request.urlopen(request, timeout=20) as response:
        place = urljoin(response.url, response.headers["location"])
        invocation = response.headers["dandelion-invocation"] or json.load(response)["id"]
    assert json.loads(get(f"{place}?wait_s=20"))["id"] == invocation


@pytest.mark.parametrize("kind", ["invocation", "page", "logs"])
def test_proxies_are_told_to_pass_streams_on(url: str, kind: str) -> None:
    with Client(url) as client:
        id_ = client.submit("echo", a="x").id
    path = {
        "invocation": f"/v1/invocations/{id_}/events",
        "page": "/v1/activity/events",
        "logs": "/v1/logs?follow=true",
    }[kind]
    with urllib.request.urlopen(f"{url}{path}", timeout=20) as response:
        assert response.headers["x-accel-buffering"] == "no"
        assert response.headers["cache-control"] == "no-store"


def test_clients_follow_an_invocation(url: str) -> None:
    with Client(url) as client:
        assert client.submit("echo", a="x").result(20).b.text() == "x"

    async def ask() -> str:
        async with AsyncClient(url) as client:
            handle = await client.submit("echo", a="x")
            text: str = (await handle.result(20)).b.text()
            return text

    assert asyncio.run(ask()) == "x"


def test_commands_follow_an_invocation(
    url: str, command: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert callable(command)
    monkeypatch.setenv("DANDELION_URL", url)
    code, out, _ = command("submit", "echo", "a=hello", "--follow")
    assert code == 0
    id_ = command("submit", "echo", "a=hello")[1].strip()
    code, out, _ = command("result", id_, "--wait", "20")
    assert (code, "hello" in out) == (0, True)
