"""`invoke_sets` takes and gives the same on a node and on clients; ids of results and errors."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator

import numpy as np
import pytest

from dandelion import AsyncClient, Client, DandelionError
from dandelion.errors import InvalidInput
from dandelion.frontend.server import BackgroundServer
from dandelion.invocation_result import InvocationResult
from dandelion.node import Node
from dandelion.recording.records import decode_recording
from dandelion.set_values import item_set
from tests.node.served import DOCUMENT, SETTINGS, GateDriver

ROWS = [[1, 2], [3, 4]]


@pytest.fixture(scope="module")
def node() -> Iterator[Node]:
    with Node(SETTINGS, [GateDriver()]) as node:
        node.register(DOCUMENT)
        assert node.wait_ready()
        yield node


@pytest.fixture(scope="module")
def client(node: Node) -> Iterator[Client]:
    with BackgroundServer(node, drain_s=5) as server, Client(server.url, timeout_s=20) as client:
        assert client.ready(wait_s=10)
        yield client


def test_values_and_sets_are_given_alike(node: Node, client: Client) -> None:
    given = {"left": "text", "right": item_set("right", b"bytes")}

    async def awaited() -> list[InvocationResult]:
        async with AsyncClient(client.url) as other:
            found = await other.invoke_sets("pair", given)
        return [found, await node.invoke_sets_async("pair", given)]

    results = [node.invoke_sets("pair", given), client.invoke_sets("pair", given)]
    for result in results + asyncio.run(awaited()):
        assert isinstance(result, InvocationResult)
        assert (result.sets.left.text(), result.sets.right.bytes()) == ("text", b"bytes")
        assert node.trace(result.id) == client.trace(result.id)


@pytest.mark.parametrize("given", ["text", {"left": b""}, 3, None])
def test_sets_that_are_given_by_position_are_refused(
    node: Node, client: Client, given: object
) -> None:
    async def awaited(method: str) -> None:
        async with AsyncClient(client.url) as other:
            await getattr(other, method)("pair", given)

    calls: list[Callable[..., object]] = [
        node.invoke,
        node.submit,
        client.invoke,
        client.submit,
        lambda name, value: asyncio.run(node.invoke_async(name, value)),
        lambda name, value: asyncio.run(node.submit_async(name, value)),
        lambda name, value: asyncio.run(awaited("invoke")),
        lambda name, value: asyncio.run(awaited("submit")),
    ]
    if not isinstance(given, dict):
        calls += [node.invoke_sets, client.invoke_sets, node.record, client.record]
    for call in calls:
        with pytest.raises(InvalidInput, match="names"):
            call("pair", given)


def test_values_take_the_declared_type(node: Node, client: Client) -> None:
    for result in (
        node.invoke_sets("matrix", {"m": ROWS}),
        client.invoke_sets("matrix", {"m": ROWS}),
    ):
        assert np.array_equal(result.sets.m.numpy(), np.array(ROWS, np.float32))


def test_a_recording_takes_values(node: Node) -> None:
    assert decode_recording(node.record("matrix", {"m": ROWS})).inputs[0] is not None


@pytest.mark.parametrize("name", ["fail", "fails"])
def test_errors_have_the_id_of_their_invocation(node: Node, client: Client, name: str) -> None:
    for here in (node, client):
        given = {"a" if name == "fail" else "x": b"1"}
        with pytest.raises(DandelionError) as caught:
            here.invoke_sets(name, given)
        assert node.trace(caught.value.invocation) is not None
        assert node.activity().invocations[0].id == caught.value.invocation
