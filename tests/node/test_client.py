"""The client against a real server: the same values, results and errors as in-process."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dandelion.data import Item, ItemSet
from dandelion.dataflow import dsl
from dandelion.documents import RegistrationDocument, content
from dandelion.errors import (
    ApplicationFailed,
    Conflict,
    DandelionError,
    DeadlineExceeded,
    InvalidComposition,
    InvalidInput,
    Raised,
    TooLarge,
    Unknown,
)
from dandelion.frontend.async_client import AsyncClient
from dandelion.frontend.client import Client, Unreachable
from dandelion.frontend.server import BackgroundServer
from dandelion.node import Node
from tests.node.served import DOCUMENT, SETTINGS, GateDriver, function


@pytest.fixture(scope="module")
def gate() -> GateDriver:
    return GateDriver()


@pytest.fixture(scope="module")
def node(gate: GateDriver) -> Iterator[Node]:
    with Node(SETTINGS, [gate]) as node:
        node.register(DOCUMENT)
        assert node.wait_ready()
        yield node
        gate.gate.open(100)


@pytest.fixture(scope="module")
def client(node: Node) -> Iterator[Client]:
    with BackgroundServer(node, drain_s=5) as server, Client(server.url, timeout_s=20) as client:
        assert client.ready(wait_s=10)
        yield client


def plain(value: ItemSet | None) -> list[tuple[str, int, bytes]] | None:
    return None if value is None else [(i.name, i.key, i.bytes()) for i in value]


VALUES: list[Any] = [
    None,
    b"",
    b"bytes",
    "tëxt",
    bytearray(b"mutable"),
    memoryview(b"view"),
    np.arange(6, dtype="int16").reshape(2, 3),
    np.arange(6).reshape(2, 3).T,
    np.float32(3),
    np.array([1, 2], dtype=">i4"),
    [b"one", "two", np.int8(3)],
    {"first": b"1", "second": "2"},
    Item("named", 7, b"data"),
    [Item("a", 1, b"x"), Item("b", 0, b"y")],
    ItemSet("other", (Item("a", 1, b"x"),)),
    b"x" * 300_000,
]


@pytest.mark.parametrize("value", VALUES, ids=[f"{i}" for i in range(len(VALUES))])
def test_values_arrive_as_in_process(client: Client, node: Node, value: Any) -> None:
    assert plain(client.invoke("echo", a=value).b) == plain(node.invoke("echo", a=value).b)


@pytest.mark.parametrize(
    "value", ["\ud800", ["\udcff"], {"k": "\ud800"}, {"\ud800": b""}, {"k": {"j": "\ud800"}}]
)
def test_texts_that_are_not_unicode_are_refused(client: Client, node: Node, value: Any) -> None:
    for place in (client, node):
        with pytest.raises(InvalidInput, match="sets"):
            place.invoke("echo", a=value)
    with pytest.raises(InvalidInput, match="Unicode"):
        Item.of("i", "\ud800")


@pytest.mark.parametrize(
    "value",
    [
        np.array([[1, 2], [3, 4]], "float32"),
        [[1, 2]],
        [np.array([[1, 2]], "float32"), b"\0" * 8],
        {"p": [[1.0, 2.0]]},
    ],
)
def test_what_fits_takes_the_declared_type(client: Client, node: Node, value: Any) -> None:
    ours, theirs = client.invoke("matrix", m=value).m, node.invoke("matrix", m=value).m
    assert plain(ours) == plain(theirs)
    assert (ours.dtype, ours.shape) == ("float32", (-1, 2))
    assert ours[0].numpy("float32", (-1, 2)).shape[1] == 2


def test_results_as_arrays(client: Client) -> None:
    array = client.invoke("matrix", m=np.array([[1, 2], [3, 4]], "float32")).m.numpy()
    assert array.tolist() == [[1, 2], [3, 4]]
    assert array.dtype == "float32"
    assert not array.flags.writeable


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda c: c.invoke("ecko", a=b""), Unknown),
        (lambda c: c.invoke("echo", b=b""), InvalidInput),
        (lambda c: c.invoke("matrix", m=b"odd"), InvalidInput),
        (lambda c: c.invoke("matrix", m=np.array([1 + 2j])), InvalidInput),
        (lambda c: c.invoke("echo", a=object()), InvalidInput),
        (lambda c: c.invoke("echo", a=np.array([object()])), InvalidInput),
        (lambda c: c.invoke("echo", a=[{1: 2}]), InvalidInput),
        (lambda c: c.invoke("fail", a=b""), Raised),
        (lambda c: c.invoke("fails", x=b""), ApplicationFailed),
        (lambda c: c.invoke("wait", a=b"", deadline_s=0.05), DeadlineExceeded),
        (lambda c: c.invoke("echo", a=b"", deadline_s=-1.0), InvalidInput),
        (lambda c: c.invoke("echo", a=b"", priority=1001), InvalidInput),
        (lambda c: c.invoke("echo", a=b"", version=9), Unknown),
    ],
)
def test_errors_are_those_of_the_node(
    client: Client, node: Node, call: Callable[[Any], object], error: type[DandelionError]
) -> None:
    with pytest.raises(error) as remote:
        call(client)
    with pytest.raises(error) as local:
        call(node)
    assert type(remote.value.__cause__) is type(local.value.__cause__)
    assert type(remote.value) is type(local.value)


def test_a_body_that_is_too_large(client: Client) -> None:
    with pytest.raises(TooLarge):
        client.invoke("echo", a=bytes(SETTINGS.body_limit_bytes))
    with pytest.raises((TooLarge, Unreachable)):  # the server stops listening; see `Body`
        client.invoke("echo", a=bytes(SETTINGS.body_limit_bytes * 4))
    assert client.invoke("echo", a=b"still there").b.text() == "still there"


def test_the_invocation_can_be_looked_at(client: Client) -> None:
    result = client.invoke_sets("echo", {"a": b"x"})
    assert result.sets.b.bytes() == b"x"
    assert b"traceEvents" in client.trace(result.id)
    with pytest.raises(Unknown, match=r"'no-such-id'.*'keep_traces'"):
        client.trace("no-such-id")


def test_register_all_kinds_of_things(client: Client, tmp_path: Path) -> None:
    shout = function("shout", ("a",), ("b",))
    handle = dsl.handle_of(shout)

    @dsl.composition
    def loud(x: Any) -> Any:
        return handle(a=x)

    kernel = tmp_path / "k.cl"
    kernel.write_bytes(b"\xff\0")
    registered = client.register(
        loud,
        "function echo(a) => (b);\ncomposition plain(x) => (y) { echo(a = all x) => (y = b); }",
        RegistrationDocument(libraries={"from/document": content(b"\0")}),
        functions=[shout],
        libraries={"from/file": kernel, "from/bytes": b"\xfe", "from/text": "text"},
    )
    names = {r.name for r in registered}
    assert {"loud", "plain", "shout", "from/document", "from/file"} <= names
    assert client.invoke("loud", x=b"x").result.bytes() == b"x"
    assert client.describe("from/file").record["size_bytes"] == 2
    assert client.describe("loud").kind == "composition"
    assert {e.name for e in client.list()} >= names
    with pytest.raises(Conflict):
        client.remove("shout")
    for name in ("loud", "plain", "shout", "from/document", "from/file"):
        assert [e.name for e in client.remove(name)] == [name]
    with pytest.raises(Unknown):
        client.describe("loud")


def test_what_cannot_be_registered(client: Client) -> None:
    with pytest.raises(InvalidComposition) as caught:
        client.register("composition c(a) => (b) { nope(a = all a) => (b = b); }")
    assert caught.value.problems[0].line == 1
    with pytest.raises(InvalidInput):
        client.register(3)  # type: ignore[arg-type]  # on purpose
    with pytest.raises(InvalidInput, match="twice"):
        first = RegistrationDocument(libraries={"x": "1"})
        client.register(first, libraries={"x": "2"})


def test_describe_names_sets_and_versions(client: Client) -> None:
    description = client.describe("fixed")
    assert [s.name for s in description.inputs] == ["a"]
    assert description.static == ("w",)
    assert client.describe("matrix").outputs[0].dtype == "float32"
    with pytest.raises(Unknown) as caught:
        client.describe("matrxi")
    assert caught.value.nearest == "matrix"


def test_graph_engines_metrics(client: Client) -> None:
    assert client.graph("twice").lstrip().startswith("<svg")
    assert "composition twice" in client.graph("twice", "text")
    assert {e.backend for e in client.engines()} == {"null", "gate"}
    assert "dandelion_invocations_total" in client.metrics()
    assert client.capacity().tenants[0].name == "default"


def test_many_threads_share_a_client(client: Client) -> None:
    def call(i: int) -> bool:
        return bool(client.invoke("echo", a=b"%d" % i).b.bytes() == b"%d" % i)

    with ThreadPoolExecutor(6) as pool:
        assert all(pool.map(call, range(60)))


def test_async_client_has_the_same_methods(client: Client) -> None:
    async def main() -> list[object]:
        async with AsyncClient(client.url) as other:
            assert await other.ready(5)
            registered = await other.register(function("temporary", ("a",), ("b",)))
            assert [r.name for r in registered] == ["temporary"]
            result = await other.invoke_sets("temporary", {"a": b"x"})
            assert b"traceEvents" in await other.trace(result.id)
            assert (await other.describe("temporary")).kind == "function"
            assert "temporary" in {entry.name for entry in await other.list()}
            assert [entry.name for entry in await other.remove("temporary")] == ["temporary"]
            assert "composition twice" in await other.graph("twice", "text")
            assert {engine.backend for engine in await other.engines()} == {"null", "gate"}
            assert "dandelion_invocations_total" in await other.metrics()
            admission = (await other.capacity("echo")).admission
            assert admission is not None
            assert admission.function == "echo"
            with pytest.raises(Unknown) as caught:
                await other.invoke("ecko", a=b"")
            assert caught.value.nearest == "echo"
            calls = (other.invoke("echo", a=b"%d" % i) for i in range(20))
            return [sets.b.bytes() for sets in await asyncio.gather(*calls)]

    assert asyncio.run(main()) == [b"%d" % i for i in range(20)]
