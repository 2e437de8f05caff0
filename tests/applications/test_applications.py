"""Whole applications as users write them, in-process and remote, against plain Python."""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

import numpy as np
import pytest
from PIL import Image

from dandelion.errors import InvalidInput, Raised
from dandelion.frontend.client import Client
from dandelion.frontend.server import BackgroundServer
from dandelion.node import Node, Settings

from . import crawl, kmeans, network, shapes, thumbnails, word_count


@pytest.fixture(scope="module")
def node() -> Iterator[Node]:
    settings = Settings(
        backends=("process", "http"),
        engines={"process": 1},
        options={"http": {"allow": "127.0.0.1"}},
        arena_bytes=64 * 2**20,
    )
    with Node(settings) as started:
        yield started


@pytest.fixture(scope="module", params=["in-process", "http"])
def caller(node: Node, request: pytest.FixtureRequest) -> Iterator[Node | Client]:
    if request.param == "in-process":
        yield node
        return
    with BackgroundServer(node) as server, Client(server.url) as client:
        yield client


PAGES = ["The quick brown fox", "a fox and the dog", "Brown, brown bread of the fox"]


def test_word_count(caller: Any) -> None:
    caller.register(word_count.word_count)
    found = caller.invoke("word_count", pages=PAGES).result.value()
    assert found == Counter(w for page in PAGES for w in word_count.words(page))
    assert found["fox"] == 3
    assert "the" not in found


def test_functions_are_functions_in_tests() -> None:
    assert word_count.count("to be, or to") == {"to": 2, "be": 1, "or": 1}
    assert word_count.total([{"a": 1}, {"a": 2}]) == {"a": 3}
    assert shapes.lines("a\nb") == ["a", "b"]
    assert shapes.without_stop_words("the cat") == "cat"
    assert network.classify(np.ones((8, 8), "float32")).digit in range(10)


def picture(color: tuple[int, int, int], kind: str) -> bytes:
    made = io.BytesIO()
    Image.new("RGB", (100, 60), color).save(made, kind)
    return made.getvalue()


def test_thumbnails(caller: Any) -> None:
    caller.register(thumbnails.contact_sheet)
    given = {"red.png": picture((255, 0, 0), "PNG"), "blue.bmp": picture((0, 0, 255), "BMP")}
    found = caller.invoke("contact_sheet", pictures=given).result.value()
    with Image.open(io.BytesIO(found)) as sheet:
        assert sheet.size == (64, 32)
        assert sheet.getpixel((5, 5)) == (255, 0, 0)
        assert sheet.getpixel((60, 5)) == (0, 0, 255)


def test_network_inference(caller: Any) -> None:
    caller.register(network.inference)
    images = np.random.default_rng(2).normal(size=(5, 8, 8)).astype("float32")
    found = caller.invoke("inference", images=list(images)).result
    assert [item.name for item in found] == ["0", "1", "2", "3", "4"]
    for answer, image in zip(found.value(), images, strict=True):
        expected = network.classify(image)
        assert answer["digit"] == expected.digit
        assert answer["confidence"] == pytest.approx(expected.confidence, rel=1e-6)


def test_an_item_for_each_of_one_item_is_a_list_of_one(caller: Any) -> None:
    caller.register(network.inference)
    found = caller.invoke("inference", images=[np.ones((8, 8), "float32")]).result.value()
    assert [answer["digit"] for answer in found] == [network.classify(np.ones(64, "float32")).digit]


def test_kmeans(caller: Any) -> None:
    caller.register(kmeans.kmeans)
    rng = np.random.default_rng(3)
    points = np.concatenate([rng.normal(c, 0.1, (40, 2)) for c in ((0, 0), (5, 5), (0, 5))])
    centers = points[[0, 50, 100]]
    found = caller.invoke("kmeans", points=points, centers=centers).centers.value()
    expected, moved = centers, 1.0
    while moved:
        expected, moved = kmeans.step(points, expected)
    np.testing.assert_allclose(found, expected)
    assert found.dtype == "float64"
    assert found.shape == (3, 2)


SITE = {
    "/": '<a href="/a">a</a> <a href="b/">b</a>',
    "/a": '<a href="/">home</a>',
    "/b/": '<a href="c">c</a>',
    "/b/c": "the end",
    "/island": "not linked",
}


@contextmanager
def site() -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:  # the library's name
            body = SITE.get(self.path, "").encode()
            self.send_response(200 if body else 404)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


def test_crawl(caller: Any) -> None:
    caller.register(crawl.crawl)
    with site() as url:
        found = caller.invoke("crawl", start=[f"{url}/"]).pages.value()
    assert found == [f"{url}{path}" for path in ("/", "/a", "/b/", "/b/c")]


@pytest.mark.parametrize(
    ("name", "sets", "expected"),
    [
        ("shout", {"text": "hello"}, {"result": "HELLO"}),
        ("add", {"numbers": [1, 2, 3]}, {"result": 6}),
        ("add", {"numbers": np.array(7)}, {"result": 7}),
        ("add", {"numbers": []}, {"result": 0}),
        ("lines", {"page": "a\nb\n"}, {"result": ["a", "b"]}),
        ("divide", {"numbers": [1, 2, 3]}, {"even": [2], "odd": [1, 3]}),
        ("divide", {"numbers": [1]}, {"even": None, "odd": [1]}),
        ("greet", {"name": "Ada"}, {"result": "Hello Ada"}),
        ("greet", {"name": "Ada", "greeting": "Hi"}, {"result": "Hi Ada"}),
        ("greet", {"name": "Ada", "title": "Lady", "greeting": None}, {"result": "Hello Lady Ada"}),
        ("without_stop_words", {"text": "the cat and a dog"}, {"result": "cat and dog"}),
    ],
)
def test_shapes_of_functions(
    caller: Any, name: str, sets: dict[str, Any], expected: dict[str, Any]
) -> None:
    caller.register(getattr(shapes, name))
    found = caller.invoke(name, **sets)
    assert {n: s if s is None else s.value() for n, s in found.items()} == expected


def test_a_set_without_a_default_must_be_given(caller: Any) -> None:
    caller.register(shapes.greet)
    with pytest.raises(InvalidInput, match="name"):
        caller.invoke("greet", greeting="Hi")


def test_asynchronous_results_have_the_same_values(node: Node) -> None:
    node.register(shapes.divide, shapes.shout)
    with BackgroundServer(node) as server, Client(server.url) as client:
        for caller in (node, client):
            numbers = caller.submit("divide", numbers=[1, 2, 3]).result()
            assert (numbers.even.value(), numbers.odd.value()) == ([2], [1, 3])
            assert caller.submit("shout", text="a").result().result.value() == "A"


def test_a_wrong_value_names_set_item_and_types(caller: Any) -> None:
    caller.register(shapes.add)
    with pytest.raises(Raised) as caught:
        caller.invoke("add", numbers=["1", "two"])
    text = caught.value.exception
    assert "input set 'numbers', item '1': expected int, found 'two'" in text
