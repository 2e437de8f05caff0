"""A node that the others cannot reach, nor it them, while connections stay open."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from dandelion.cluster import Cluster
from dandelion.cluster.frames import Frames
from dandelion.driver import Call, Engine, InstanceSets
from dandelion.errors import CatalogUnavailable
from dandelion.node import Node
from dandelion.testing import wait_until
from tests.cluster.clusters import alive, function, nodes, scripted, text_of


def slow(engine: Engine, call: Call) -> InstanceSets:
    threading.Event().wait(0.03)
    return (call.inputs[0],)


class Cable:
    """Everything between one node and the others; nothing passes while it is cut."""

    def __init__(self, node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
        cluster = node._parts.cluster
        assert isinstance(cluster, Cluster)
        self.cluster, self.node, self.patch = cluster, node, monkeypatch

    def cut(self) -> None:
        self._on_loop(self._cut)

    def repair(self) -> None:
        self._on_loop(self.patch.undo)

    def _on_loop(self, change: Callable[[], object]) -> None:
        done = threading.Event()
        self.node._runtime.post(lambda: (change(), done.set()))
        assert done.wait(20)

    def _cut(self) -> None:
        cluster = self.cluster
        ends = [*cluster._links.values(), *cluster._in_links.values()]
        for frames in [f for end in ends for f in (end.control, end.exchange._frames)]:
            assert isinstance(frames, Frames)
            self.patch.setattr(frames, "send", lambda *message, **named: None)
            self.patch.setattr(frames, "received", lambda message, data: None)

        async def unreachable(name: str) -> None:
            raise TimeoutError

        self.patch.setattr(cluster._door, "open", unreachable)
        self.patch.setattr(cluster, "admits", lambda name, incarnation: False)


def test_a_partition_and_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    with nodes([[scripted(slow)] for _ in range(3)]) as made, ThreadPoolExecutor(12) as pool:
        a, b, c = made
        a.register(function("work"))
        for node in made:
            wait_until(lambda node=node: len(node.records()) == 1)  # type: ignore[misc]
        cable = Cable(c, monkeypatch)
        running = [pool.submit(a.invoke, "work", x=b"%d" % n) for n in range(60)]
        wait_until(lambda: c.info().running > 0)
        cable.cut()
        wait_until(lambda: alive(a) == alive(b) == 1)
        assert [text_of(one.result(20)["y"]) for one in running] == [str(n) for n in range(60)]
        info = a.cluster()
        assert info is not None
        assert info.lost_calls > 0
        # the majority acknowledges, the rest does not, and still answers
        a.register(function("new", code="null"))
        wait_until(lambda: alive(c) == 0)
        with pytest.raises(CatalogUnavailable, match="minority"):
            c.register(function("other", code="null"))
        assert text_of(c.invoke("work", x=b"alone")["y"]) == "alone"
        assert len(c.records()) == 1
        cable.repair()
        wait_until(lambda: len(c.records()) == 2)
        wait_until(lambda: alive(a) == alive(b) == alive(c) == 2)
        c.register(function("other", code="null"))
        wait_until(lambda: len(a.records()) == len(b.records()) == 3)
