"""Attempts and caught failures on a node: Python functions, HTTP, the frontend, pauses, memory."""

from __future__ import annotations

import asyncio
import gc
import json
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import msgspec
import numpy as np
import pytest

from dandelion.data import Item, ItemSet
from dandelion.documents import python_function
from dandelion.errors import (
    ApplicationFailed,
    Cancelled,
    DandelionError,
    DeadlineExceeded,
    RequestFailed,
    root_of,
)
from dandelion.failures import CaughtFailure
from dandelion.frontend.client import Client
from dandelion.frontend.server import BackgroundServer
from dandelion.function import Batching
from dandelion.node import Node, Settings
from dandelion.node.info import NodeInfo
from dandelion.testing import wait_until


def square(x):  # type: ignore[no-untyped-def]  # its source is the function
    return str(int(x.text()) ** 2)


def rows(x):  # type: ignore[no-untyped-def]  # as above
    values = x.numpy()
    if (values < 0).any():
        raise ValueError("a negative number")
    return values.sum(axis=1)


def count(items, errors):  # type: ignore[no-untyped-def]  # as above
    good = len(items) if items else 0
    return f"{good} {len(errors) if errors else 0}"


TEXT = """
composition Squares(numbers) => (squares, errors) {
    square(x = each numbers) => (squares = y) catch errors;
}
composition Counted(numbers) => (text) {
    Squares(numbers = all numbers) => (squares = squares, errors = errors);
    count(items = optional all squares, errors = optional all errors) => (text = text);
}
composition Strict(numbers) => (squares) { square(x = each numbers) => (squares = y); }
composition Groups(numbers) => (squares, errors) {
    Strict(numbers = keyed numbers) => (squares = squares) catch errors;
}
composition Stubborn(numbers) => (squares) {
    square(x = all numbers) => (squares = y) attempts 3 on (Raised) backoff 60;
}
composition Rows(x) => (y, errors) { rows(x = each x) => (y = y) catch errors; }
composition Cached(x) => (y, errors) {
    cached(x = each x) => (y = y) attempts 2 on (Raised) catch errors;
}
composition Fetch(requests) => (bodies, errors) {
    HTTP(requests = each requests) => (bodies = bodies) catch errors;
}
composition Patient(requests) => (bodies) {
    HTTP(requests = each requests) => (bodies = bodies) attempts 3 backoff 0.01;
}
composition Insistent(requests) => (bodies) {
    HTTP(requests = each requests) => (bodies = bodies)
        attempts 3 on (RequestFailed) backoff 0.01;
}
"""


class Site(ThreadingHTTPServer):
    """Closes the connections of the first requests for ``/flaky...``, and of all for ``/bad...``.

    Attributes:
        seen: requests by method and path.
    """

    daemon_threads = True

    def __init__(self) -> None:
        self.seen: Counter[str] = Counter()
        super().__init__(("127.0.0.1", 0), Handler)

    def handle_error(self, request: object, client_address: object) -> None:
        """Clients may leave."""


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def answer(self) -> None:
        assert isinstance(self.server, Site)
        self.rfile.read(int(self.headers.get("content-length", 0)))
        name = f"{self.command} {self.path}"
        self.server.seen[name] += 1
        first = self.server.seen[name] == 1
        self.close_connection = True
        if "/bad" in name or ("/flaky" in name and first):
            return
        body = self.path.encode()
        self.send_response(200)
        self.send_header("connection", "close")  # else it is taken for the next request
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Print nothing."""


for method in ("GET", "POST"):
    setattr(Handler, f"do_{method}", Handler.answer)


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    with Site() as site:
        thread = threading.Thread(target=site.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield site
        site.shutdown()
        thread.join()


@pytest.fixture(scope="module")
def node() -> Iterator[Node]:
    settings = Settings(
        backends=("process", "http"),
        engines={"process": 2},
        options={"http": {"allow": "127.0.0.0/8", "retries": "0"}},
        arena_bytes=64 << 20,
        cache_bytes=1 << 20,
    )
    batching = Batching(("x",), calls=8, wait_s=0.02)
    documents = [
        python_function(square, outputs=["y"]),
        python_function(count, outputs=["text"]),
        msgspec.structs.replace(
            python_function(square, outputs=["y"], name="cached", entry="square"), cache=True
        ),
        python_function(
            rows,
            inputs=["x: float32[?, 2]"],
            outputs=["y: float32[?]"],
            imports=["numpy"],
            batching=batching,
        ),
    ]
    with Node(settings) as node:
        node.register(TEXT, functions=documents)
        assert node.wait_ready()
        yield node


def numbers(total: int, *bad: int) -> ItemSet:
    found = [Item(f"n{n}", n % 5, b"oops" if n in bad else b"%d" % n) for n in range(total)]
    return ItemSet("numbers", tuple(found))


def read(errors: ItemSet | None) -> list[CaughtFailure]:
    return (
        []
        if errors is None
        else [msgspec.json.decode(item.data, type=CaughtFailure) for item in errors]
    )


def metric(node: Node, name: str, function: str) -> float:
    start = f'dandelion_{name}_total{{function="{function}",tenant="default"}} '
    lines = node.metrics().decode().splitlines()
    return sum(float(line.removeprefix(start)) for line in lines if line.startswith(start))


def test_one_bad_item_of_200_gives_199_results_and_one_error(node: Node) -> None:
    before = metric(node, "call_failures_caught", "square")
    found = node.invoke_sets("Squares", {"numbers": numbers(200, 123)})
    assert len(found.sets.squares) == 199
    assert "n123" not in {item.name for item in found.sets.squares}
    (item,) = found.sets.errors
    assert (item.name, item.key) == ("n123", 3)
    (error,) = read(found.sets.errors)
    assert (error.kind, error.application, error.instance) == ("Raised", "square", 123)
    assert error.attempts == 1
    assert "ValueError" in error.message
    assert metric(node, "call_failures_caught", "square") == before + 1
    trace = json.loads(node.trace(found.id) or b"")
    assert trace["otherData"] | {"caught": 1, "retried": 0, "outcome": "ok"} == trace["otherData"]
    failed = [e["args"] for e in trace["traceEvents"] if "error" in e["args"]]
    assert failed == [{"instance": 123, "error": "Raised"}]


def test_an_errors_set_is_an_output_without_a_type(node: Node) -> None:
    outputs = node.signature("Rows").outputs
    assert [(s.name, s.dtype) for s in outputs] == [("y", "float32"), ("errors", None)]


def test_errors_go_on_in_the_composition(node: Node) -> None:
    assert node.invoke("Counted", numbers=numbers(9, 2, 4)).text.text() == "7 2"
    assert node.invoke("Counted", numbers=numbers(3)).text.text() == "3 0"
    assert node.invoke("Counted", numbers=numbers(2, 0, 1)).text.text() == "0 2"


def test_a_group_with_a_bad_item_fails_as_a_whole(node: Node) -> None:
    found = node.invoke("Groups", numbers=numbers(20, 7))
    assert len(found.squares) == 16
    (error,) = read(found.errors)
    assert (error.kind, error.application, error.instance) == ("Raised", "Strict", 2)
    assert error.message.startswith("Strict.square (instance 1, key 2): function 'square' raised")


def test_one_bad_call_of_a_batch_is_the_only_one_that_fails(node: Node) -> None:
    values = np.arange(40, dtype=np.float32).reshape(20, 1, 2)
    values[11] = -1
    found = node.invoke("Rows", x=[Item.of(str(n), v, n) for n, v in enumerate(values)])
    assert [item.key for item in found.y] == [n for n in range(20) if n != 11]
    (error,) = read(found.errors)
    assert (error.kind, error.instance) == ("Raised", 11)


def test_failures_are_not_kept_among_results(node: Node) -> None:
    given = [b"1", b"1", b"x", b"2"]
    for _ in range(2):
        found = node.invoke("Cached", x=given)
        assert [item.text() for item in found.y] == ["1", "1", "4"]
        assert [(e.instance, e.attempts) for e in read(found.errors)] == [(2, 2)]
    assert metric(node, "call_failures_retried", "cached") == 2


# --- HTTP ---------------------------------------------------------------------------------------


def requests(site: Site, *paths: str, method: str = "GET") -> list[Item]:
    url = f"http://127.0.0.1:{site.server_port}"
    texts = [f"{method} {url}{path} HTTP/1.1\n\n" for path in paths]
    return [
        Item(path, n, text.encode())
        for n, (path, text) in enumerate(zip(paths, texts, strict=True))
    ]


def test_a_url_that_fails_does_not_fail_the_others(node: Node, site: Site) -> None:
    found = node.invoke("Fetch", requests=requests(site, "/a", "/bad", "/c", "/d"))
    assert [item.text() for item in found.bodies] == ["/a", "/c", "/d"]
    (item,) = found.errors
    assert (item.name, item.key) == ("/bad", 1)
    (error,) = read(found.errors)
    assert (error.kind, error.application) == ("RequestInterrupted", "HTTP")
    assert metric(node, "call_failures_caught", "HTTP") >= 1


def test_idempotent_requests_are_tried_again(node: Node, site: Site) -> None:
    found = node.invoke("Patient", requests=requests(site, "/ok1", "/flaky1"))
    assert [item.text() for item in found.bodies] == ["/ok1", "/flaky1"]
    assert (site.seen["GET /ok1"], site.seen["GET /flaky1"]) == (1, 2)
    with pytest.raises(ApplicationFailed) as failed:
        node.invoke("Patient", requests=requests(site, "/bad1"))
    assert isinstance(failed.value.root, RequestFailed)
    assert site.seen["GET /bad1"] == failed.value.attempts == 3
    assert str(failed.value).startswith("Patient.HTTP (instance 0, key 0, 3 attempts): ")


def test_other_requests_are_tried_again_only_if_it_is_said(node: Node, site: Site) -> None:
    with pytest.raises(ApplicationFailed):
        node.invoke("Patient", requests=requests(site, "/flaky2", method="POST"))
    assert site.seen["POST /flaky2"] == 1
    found = node.invoke("Insistent", requests=requests(site, "/flaky3", method="POST"))
    assert found.bodies.text() == "/flaky3"
    assert site.seen["POST /flaky3"] == 2


def test_a_call_with_requests_of_both_kinds_is_not_repeated(node: Node, site: Site) -> None:
    node.register(
        "composition Whole(r) => (b) { HTTP(requests = all r) => (b = bodies) attempts 3; }"
    )
    mixed = [*requests(site, "/bad2"), *requests(site, "/post2", method="POST")]
    with pytest.raises(ApplicationFailed):
        node.invoke("Whole", r=mixed)
    assert site.seen["GET /bad2"] == 1
    with pytest.raises(ApplicationFailed):
        node.invoke("Whole", r=requests(site, "/bad3", "/ok3"))
    assert site.seen["GET /bad3"] == 3


# --- pauses, memory, the frontend -----------------------------------------------------------------


def test_a_caller_may_leave_in_a_pause(node: Node) -> None:
    async def main() -> None:
        task = asyncio.create_task(node.invoke_async("Stubborn", numbers=b"oops"))
        await asyncio.to_thread(wait_until, lambda: node.info().paused == 1)
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task

    asyncio.run(main())
    wait_until(lambda: node.info().running == 0)
    assert node.info().paused == 0
    assert node.invoke("Stubborn", numbers=b"3").squares.text() == "9"


def test_a_deadline_ends_a_pause(node: Node) -> None:
    with pytest.raises(DeadlineExceeded):
        node.invoke("Stubborn", numbers=b"oops", deadline_s=0.5)
    assert (node.info().paused, node.info().running) == (0, 0)


def test_closing_the_node_ends_a_pause() -> None:
    found: list[DandelionError] = []
    with Node(Settings(backends=("process",), engines={"process": 1})) as node:
        node.register(TEXT[TEXT.index("composition Stubborn") : TEXT.index("composition Rows")],
                      functions=[python_function(square, outputs=["y"])])  # fmt: skip

        def call() -> None:
            try:
                node.invoke("Stubborn", numbers=b"oops")
            except DandelionError as error:
                found.append(root_of(error))

        thread = threading.Thread(target=call)
        thread.start()
        wait_until(lambda: node.info().paused == 1)
    thread.join()
    assert [type(error) for error in found] == [Cancelled]


def test_nothing_is_left_of_handled_failures(node: Node, site: Site) -> None:
    def cycle() -> None:
        assert len(node.invoke("Squares", numbers=numbers(20, 3, 4)).errors) == 2
        assert len(node.invoke("Groups", numbers=numbers(10, 7)).errors) == 1
        assert len(node.invoke("Fetch", requests=requests(site, "/a", "/bad")).errors) == 1
        with pytest.raises(DeadlineExceeded):
            node.invoke("Stubborn", numbers=numbers(2000, 0), deadline_s=0.05)

    def held() -> NodeInfo:
        wait_until(lambda: node.info().running == 0)
        gc.collect()
        return node.info()

    cycle()
    before = held()
    for _ in range(3):
        cycle()
    info = held()
    assert (info.arena.used_bytes, info.arena.contexts) == (
        before.arena.used_bytes,
        before.arena.contexts,
    )
    (tenant,) = [t for t in info.tenants if t.name == "default"]
    assert tenant.arena_bytes == 0
    assert info.paused == 0


def test_errors_sets_come_over_http(node: Node) -> None:
    with BackgroundServer(node, drain_s=5) as server, Client(server.url, timeout_s=20) as client:
        assert client.ready(wait_s=10)
        found: Any = client.invoke("Squares", numbers=numbers(3, 1))
        assert [item.text() for item in found.squares] == ["0", "4"]
        assert [e.kind for e in read(found.errors)] == ["Raised"]
        assert client.invoke("Squares", numbers=numbers(3)).errors is None
