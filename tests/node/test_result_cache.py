"""Calls of functions whose results are kept: each ends, whatever is wrong with its inputs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NoReturn

import pytest

from dandelion.data import Item, ItemSet
from dandelion.documents import CodeDocument, FunctionDocument
from dandelion.errors import DandelionError, DeadlineExceeded
from dandelion.node import Node, Settings
from dandelion.node.functions import FunctionStore
from dandelion.node.jobs import INLINE_BYTES, Jobs

DEADLINE_S = 30
LONG = 2 * INLINE_BYTES
READABLE = Item("a", 0, b"x")
UNREADABLE = {
    "short": Item("a", 0, memoryview(bytes(8))[::2]),
    "long": Item("a", 0, memoryview(bytes(2 * LONG))[::2]),
    "name": Item("\ud800", 0, b"x"),
    "name of a long one": Item("\ud800", 0, bytes(LONG)),
}


@pytest.fixture
def node() -> Iterator[Node]:
    code = (CodeDocument("null"),)
    with Node(Settings(backends=("null",))) as node:
        node.register(FunctionDocument("Kept", ("a",), ("b",), code=code, cache=True))
        node.register(FunctionDocument("Plain", ("a",), ("b",), code=code))
        yield node


def outcome(node: Node, name: str, item: Item) -> object:
    """Return how an invocation ends: the number of bytes, or the class of the error."""
    sets = {"a": ItemSet("a", (item,))}
    try:
        found = node.invoke_sets(name, sets, deadline_s=DEADLINE_S).sets.b
    except DandelionError as error:
        return type(error)
    return None if found is None else found.size_bytes


@pytest.mark.parametrize("kind", UNREADABLE)
def test_inputs_that_cannot_be_read_have_no_kept_result(node: Node, kind: str) -> None:
    found = outcome(node, "Kept", UNREADABLE[kind])
    assert found is not DeadlineExceeded
    assert found == outcome(node, "Plain", UNREADABLE[kind])
    assert node.info().cache.hits == 0
    assert outcome(node, "Kept", READABLE) == outcome(node, "Kept", READABLE) == 1
    assert node.info().cache.hits == 1


def failing(*_: object, **__: object) -> NoReturn:
    raise RuntimeError("can't start new thread")


def test_a_call_that_cannot_be_looked_for_is_run(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Jobs, "look", failing)
    assert outcome(node, "Kept", READABLE) == 1


def test_a_function_that_cannot_be_fetched_fails_its_calls(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    document = FunctionDocument(
        "Fetched", ("a", "w"), ("a",), static={"w": {"w": "x"}}, code=(CodeDocument("null"),)
    )
    node.register(document)
    with monkeypatch.context() as patch:
        patch.setattr(Jobs, "fetch", failing)
        assert outcome(node, "Fetched", READABLE) is not DeadlineExceeded
    with monkeypatch.context() as patch:
        patch.setattr(FunctionStore, "load", failing)
        assert outcome(node, "Fetched", READABLE) is not DeadlineExceeded
    sets = {"a": ItemSet("a", (READABLE,))}
    assert node.invoke_sets("Fetched", sets, deadline_s=DEADLINE_S).sets.a is not None
