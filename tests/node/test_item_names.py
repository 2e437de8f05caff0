"""What a function gives without a name is called after the item that it was called for."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from dandelion.data import Item
from dandelion.dataflow.dsl import composition, each, handle_of, keyed
from dandelion.documents import python_function
from dandelion.node import Node, Settings


def plain(x, how):  # type: ignore[no-untyped-def]  # as a user writes it
    from dandelion.data import Item

    text = x[0].text()
    return {
        "one": text,
        "many": [text, text],
        "named": {"y": {"mine": text}},
        "item": Item("own", 5, text.encode()),
    }[how.text()]


ITEMS = [Item("a.txt", 7, b"a"), Item("b.txt", 2, b"b"), Item("c.txt", 2, b"c")]
plain_ = python_function(plain, outputs=["y"], cache=True)
inner_ = handle_of(plain_)


@composition
def by_item(xs, how):  # type: ignore[no-untyped-def]  # as a user writes it
    return {"ys": inner_(how=how, x=each(xs))}


@composition
def by_key(xs, how):  # type: ignore[no-untyped-def]  # as a user writes it
    return {"ys": inner_(how=how, x=keyed(xs))}


@composition
def whole(xs, how):  # type: ignore[no-untyped-def]  # as a user writes it
    return {"ys": inner_(how=how, x=xs)}


@composition
def inside(xs, how):  # type: ignore[no-untyped-def]  # as a user writes it
    return {"ys": whole(xs=each(xs), how=how)}


@pytest.fixture(scope="module")
def named() -> Iterator[Node]:
    with Node(Settings(backends=("process",), engines={"process": 1})) as node:
        node.register(by_item, by_key, inside, plain_)
        yield node


@pytest.mark.parametrize("name", ["by_item", "inside"])
@pytest.mark.parametrize(
    ("how", "wanted"),
    [
        ("one", [("b.txt", 2, "b"), ("c.txt", 2, "c"), ("a.txt", 7, "a")]),
        ("named", [("mine", 2, "b"), ("mine", 2, "c"), ("mine", 7, "a")]),
        ("item", [("own", 5, "a"), ("own", 5, "b"), ("own", 5, "c")]),
        (
            "many",
            [
                *[("b.txt.0", 2, "b"), ("b.txt.1", 2, "b"), ("c.txt.0", 2, "c")],
                *[("c.txt.1", 2, "c"), ("a.txt.0", 7, "a"), ("a.txt.1", 7, "a")],
            ],
        ),
    ],
)
def test_after_each_an_output_is_called_after_its_item(
    named: Node, name: str, how: str, wanted: list[tuple[str, int, str]]
) -> None:
    result = named.invoke(name, xs=ITEMS, how=how).ys
    assert [(i.name, i.key, i.text()) for i in result] == wanted


def test_after_keyed_an_output_has_the_key(named: Node) -> None:
    result = named.invoke("by_key", xs=ITEMS, how="one").ys
    assert [(i.name, i.key) for i in result] == [("y", 2), ("y", 7)]
    result = named.invoke("by_key", xs=ITEMS, how="many").ys
    assert [(i.name, i.key) for i in result] == [("0", 2), ("1", 2), ("0", 7), ("1", 7)]


def test_kept_results_are_not_taken_for_those_of_another_item(named: Node) -> None:
    one = ITEMS[:1]
    for _ in range(2):
        names = [named.invoke("plain", x=one, how="one").y[0].name]
        names += [named.invoke(n, xs=one, how="one").ys[0].name for n in ("whole", "by_item")]
        assert names == ["y", "y", "a.txt"]
