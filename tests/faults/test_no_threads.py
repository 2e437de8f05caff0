"""A system that has no thread left: calls go on, and what needs one works once there is one."""

from __future__ import annotations

import contextlib
import threading

import pytest

from dandelion.documents import CodeDocument, FunctionDocument
from dandelion.executors.worker import Worker
from dandelion.node import Node, Settings
from dandelion.node.job_threads import JobThreads

DEADLINE_S = 30
LONG = bytes(1 << 20)
CODE = (CodeDocument("null"),)
ERROR = RuntimeError("can't start new thread")


class Threads:
    """Lets starts of threads fail.

    Attributes:
        left: how many may still fail.
        failed: how many did.
    """

    def __init__(self, patch: pytest.MonkeyPatch, name: str = "") -> None:
        self.left = self.failed = 0
        self._name = name
        self._start = threading.Thread.start
        patch.setattr(threading.Thread, "start", lambda thread: self._begin(thread))

    def _begin(self, thread: threading.Thread) -> None:
        if self.left and thread.name.startswith(self._name):
            self.left -= 1
            self.failed += 1
            raise ERROR
        self._start(thread)


def test_what_a_call_waits_for_needs_no_new_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    over = threading.Event()
    with Node(Settings(backends=("null",))) as node, contextlib.ExitStack() as held:
        held.callback(over.set)
        static = {"w": {"w": "x"}}
        node.register(
            FunctionDocument("Fetched", ("a", "w"), ("a",), static=static, code=CODE, cache=True)
        )
        assert node.wait_ready()
        node._parts.pool.submit(over.wait)  # one of its threads is busy
        threads = Threads(monkeypatch)
        held.callback(setattr, threads, "left", 0)
        threads.left = 1000
        assert len(node.invoke("Fetched", a=LONG, deadline_s=DEADLINE_S).a.bytes()) == len(LONG)
        assert len(node.invoke("Fetched", a=LONG, deadline_s=DEADLINE_S).a.bytes()) == len(LONG)
        assert node.info().cache.hits == 1


def test_an_executor_starts_its_thread_when_there_are_threads_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    threads = Threads(monkeypatch)
    threads.left = 2
    worker, done = Worker("worker"), threading.Event()
    for _ in range(2):
        with pytest.raises(RuntimeError, match="thread"):
            worker.submit(done.set)
    worker.close()
    worker.submit(done.set)
    assert done.wait(DEADLINE_S)
    worker.close()


def test_a_pool_without_all_its_threads_does_not_start(monkeypatch: pytest.MonkeyPatch) -> None:
    threads = Threads(monkeypatch, "jobs")
    with JobThreads(3, "jobs") as pool:
        started = threading.active_count()
        begin = threads._begin

        def second(thread: threading.Thread) -> None:
            threads.left = int(threading.active_count() > started)
            begin(thread)

        monkeypatch.setattr(threading.Thread, "start", second)
        with pytest.raises(RuntimeError, match="thread"):
            pool.start()
    assert threads.failed == 1
