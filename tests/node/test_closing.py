"""Questions to a node that closes: answered on its loop while there is one, and never lost."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

from dandelion.documents import CodeDocument, FunctionDocument
from dandelion.errors import Cancelled
from dandelion.node import Node, Settings
from dandelion.node.loop import NodeLoop
from dandelion.testing import wait_until

SETTINGS = Settings(backends=("null",), arena_bytes=1 << 20)
LIMIT_S = 30


def test_a_node_that_closes_answers_on_its_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    real, seen = Node._close_executors, []
    loop_thread = 0

    def close(node: Node) -> None:
        seen.append(node._parts.ask(threading.get_ident))
        assert node.info().running == 0
        real(node)

    monkeypatch.setattr(Node, "_close_executors", close)
    with Node(SETTINGS) as node:
        loop_thread = node._parts.ask(threading.get_ident)
    assert seen == [loop_thread]
    assert node._parts.ask(threading.get_ident) == threading.get_ident()
    assert node.info().running == 0


@pytest.mark.parametrize("kind", ["question", "invocation"])
@pytest.mark.parametrize("moment", ["before", "after"])
def test_what_comes_as_the_loop_stops_is_answered(
    kind: str, moment: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = Node(SETTINGS)
    node.start()
    node.register(FunctionDocument("f", ("a",), ("b",), code=(CodeDocument("null"),)))
    answers: list[Future[object]] = []

    def ask() -> object:
        if kind == "question":
            return node._parts.loop.call(lambda: "answer")
        try:
            return node.invoke("f", a=b"x", deadline_s=LIMIT_S)
        except Cancelled:
            return "answer"

    with ThreadPoolExecutor(1) as asking:

        def begin() -> None:
            node._parts.invoker.running = True  # as if it had been checked before
            answers.append(asking.submit(ask))

        def stop_loop(loop: NodeLoop) -> None:
            # On the loop, in front of what stops it: this is taken over by nothing else.
            loop.loop.call_soon_threadsafe(lambda: (begin(), wait_until(lambda: is_posted(node))))
            real_stop(loop)

        real_stop = NodeLoop.stop
        if moment == "after":
            monkeypatch.setattr(node._parts.loop, "_posting", Posting(node, begin))
        else:
            monkeypatch.setattr(NodeLoop, "stop", stop_loop)
        node.close()
        assert answers[0].result(LIMIT_S) == "answer"


class Posting:
    """The lock of a node's loop; calls something once, when nothing is posted any more."""

    def __init__(self, node: Node, stopped: Callable[[], None]) -> None:
        self._loop = node._parts.loop
        self._stopped: Callable[[], None] | None = stopped
        self._lock = threading.Lock()

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *error: object) -> None:
        self._lock.release()
        stopped = self._stopped
        if self._loop._loop is None and stopped is not None:
            self._stopped = None
            stopped()


def is_posted(node: Node) -> bool:
    return bool(node._parts.runtime.poll.posted)
