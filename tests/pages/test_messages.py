"""Makes every mistake of docs/messages.md, and compares the answers with that page."""

from __future__ import annotations

import atexit
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dandelion as dd
from dandelion.errors import DandelionError
from dandelion.node import Node, Settings
from tests.captured.project import tools

PAGE = Path(__file__).parents[2] / "docs" / "messages.md"
_CODE = re.compile(r"`([^`]+)`")
_NAMES = ("x: str", "gpu_function", "register", "int", "exec", "text_key", "dandelion logs")
_NAMES += ('secrets=["key"]',)
STATE = open(__file__)  # noqa: SIM115 - what a function cannot bring along
atexit.register(STATE.close)
STOP = {"the"}


def rows() -> dict[int, list[str]]:
    """Read the answers of today: the code in the last column, without names of the interface."""
    found = {}
    for line in PAGE.read_text().splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if len(cells) == 4 and cells[0].isdigit():
            found[int(cells[0])] = [c for c in _CODE.findall(cells[3]) if c not in _NAMES]
    return found


@pytest.fixture(scope="module")
def node() -> Iterator[Node]:
    settings = Settings(backends=("process",), engines={"process": 1}, arena_bytes=64 << 20)
    with Node(settings) as started:
        yield started


def plain(page: Any) -> Any:
    return {"n": page.split()}


def helper(text: str) -> str:
    return f"helped {text}"


@dd.function
def count(page: str, size: int = 3) -> int:
    return size


@dd.function
def number(n: int) -> int:
    return "many" if n == 1 else n  # type: ignore[return-value]  # the mistake


@dd.function(outputs=["a", "b"])
def pair(x: str) -> tuple[int, int]:
    return 1, 2


@dd.function(static={"weights": np.ones(3, "float32")})
def fixed(x: str, weights: np.ndarray) -> float:
    return float(weights.sum())


@dd.function(secrets=["key"])
def secret(x: str, key: str) -> str:
    return x


@dd.function
def helps(x: str) -> str:
    return helper(x) + str(STOP)


@dd.function
def stateful(x: str) -> str:
    return STATE.read()


@dd.function
def imports_file(x: str) -> str:
    return f"{x}{tools.answer()}"


@dd.function
def imports_package(x: str) -> str:
    import not_installed  # type: ignore[import-not-found]  # the mistake

    return str(not_installed)


@dd.function
def same(x: dict[str, Any]) -> dict[str, Any]:
    print("hello")
    return x


@dd.composition
def counts(pages: Any) -> Any:
    return {"n": count(dd.each(pages))}


@dd.function(outputs=["centers", "moved"])
def step(points: np.ndarray, centers: np.ndarray) -> Any:
    return centers, 0


def closure(n: int) -> Any:
    @dd.function
    def inner(x: str) -> str:
        return str(n)

    return inner


def without_source() -> Any:
    namespace: dict[str, Any] = {}
    exec(compile("def f(x): return x", "<made>", "exec"), namespace)
    return dd.function(namespace["f"])


def misspelt_limit() -> Any:
    return dd.function(limits={"wall": 1})(plain)


def applied(*given: Any) -> Any:
    @dd.composition
    def wrong(pages: Any) -> Any:
        function = given[0]
        return {"n": function(dd.each(pages) if len(given) == 1 else given[1])}

    return wrong


def loop() -> str:
    @dd.composition
    def centers(points: Any, centers: Any) -> Any:
        return {"centers": step(points, centers)["centers"]}

    return str(centers.text())


def called(node: Node, function: Any, **sets: Any) -> Any:
    node.register(function)
    return node.invoke(function, **sets)


def outputs(node: Node) -> str:
    found = called(node, pair, x="")
    return f"a={found.a.value()}, b={found.b.value()}"


def logged(node: Node) -> str:
    called(node, same, x={})
    return " ".join(f"{line.stream} {line.text}" for line in node.logs(function="same").lines)


def key_of(node: Node) -> str:
    @dd.function
    def keys(x: list[dd.Item]) -> int:
        return x[0].key

    return f"key {called(node, keys, x=[dd.Item.of('a', 'x', key='key')]).result.value()}"


CASES: dict[int, list[Callable[[Node], object]]] = {
    1: [lambda node: node.register(plain)],  # type: ignore[arg-type]  # the mistake
    2: [lambda node: called(node, number, n="many")],
    3: [lambda node: called(node, number, n=1)],
    4: [lambda node: called(node, count, page="x").result.value()],
    5: [outputs],
    6: [lambda node: called(node, fixed, x="").result.value()],
    7: [lambda node: node.register(dd.Blueprint(inputs=["x"], modules={"m": "m.c"}))],  # type: ignore[arg-type]  # the mistake
    8: [lambda _: misspelt_limit()],
    9: [lambda node: node.register(secret)],
    10: [lambda node: called(node, helps, x="").result.text()],
    11: [lambda node: node.register(stateful)],
    12: [lambda node: called(node, imports_file, x="a").result.text()],
    13: [lambda node: node.register(imports_package)],
    14: [lambda node: node.register(closure(3))],
    15: [lambda node: node.register(without_source())],
    16: [lambda node: ", ".join(one.name for one in node.register(counts))],
    17: [lambda _: applied(plain)],
    18: [lambda _: counts.text()],
    19: [lambda _: applied(count, np.ones(3))],
    20: [lambda _: loop()],
    21: [
        lambda node: called(node, same, x={"a": 1}).result.value(),
        lambda node: called(node, same, x={"a": object()}),
    ],
    22: [key_of],
    23: [lambda node: called(node, same, xx="1")],
    24: [
        lambda node: f"found {called(node, same, x={}).result.value()}",
        lambda node: node.invoke(3),  # type: ignore[arg-type]  # the mistake
    ],
    25: [logged],
}


def answer(case: Callable[[Node], object], node: Node) -> str:
    """Give the result or the message, with the name of this file as in the page."""
    try:
        text = str(case(node))
    except DandelionError as error:
        text = str(error)
    return re.sub(rf"{re.escape(__file__)}:\d+", "app.py:LINE", text)


def test_the_page_has_every_case() -> None:
    assert list(rows()) == list(CASES) == list(range(1, 26))


@pytest.mark.parametrize("number", CASES)
def test_the_answer_is_that_of_the_page(node: Node, number: int) -> None:
    found = [answer(case, node) for case in CASES[number]]
    expected = rows()[number]
    assert len(expected) == len(found)
    for part, text in zip(expected, found, strict=True):
        assert part in text
