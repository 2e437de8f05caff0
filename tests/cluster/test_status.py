"""What a node shows of its cluster: ``GET /v1/cluster``, ``dandelion cluster status``, metrics."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from dandelion.cli.main import main
from dandelion.driver import Call, Engine, InstanceSets
from dandelion.frontend.server import BackgroundServer
from dandelion.node import Node
from dandelion.testing import wait_until
from tests.cluster.clusters import function, nodes, scripted
from tests.cluster.log_store_nodes import member


def short(engine: Engine, call: Call) -> InstanceSets:
    threading.Event().wait(0.02)
    return (call.inputs[0],)


def test_all_nodes_and_tenants_are_shown(capsys: pytest.CaptureFixture[str]) -> None:
    with (
        nodes([[], [scripted(short, 3)]]) as (requested, other),
        BackgroundServer(requested) as server,
    ):
        other.register(function("work"))
        wait_until(lambda: len(requested.records()) == 1)
        for _ in range(5):
            requested.invoke("work", x=b"x")

        def used(asked: Node = requested) -> float:
            info = asked.cluster()
            assert info is not None
            return {m.name: m for m in info.members}[name].used_s.get("default", 0.0)

        there = other.cluster()
        assert there is not None
        name = there.node
        wait_until(lambda: used() == used(other) >= 0.1)
        assert used() == used(other) < 5, "shown again, though it has not changed"
        own = requested.cluster()
        assert own is not None
        assert main(["cluster", "status", "--url", server.url]) == 0
        shown = capsys.readouterr().out
        for text in (name, own.node, "work 3 of 3", "default", "5 calls sent", "taken over"):
            assert text in shown
        text = requested.metrics().decode()
        assert f'dandelion_cluster_engines{{backend="work",node="{name}"}} 3.0' in text
        assert f'dandelion_cluster_node_up{{node="{name}",state="alive"}} 1.0' in text
        label = f'dandelion_cluster_tenant_engine_seconds_total{{node="{name}",tenant="default"}}'
        assert label in text


def test_a_cluster_without_voters_is_shown_without_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with (
        member((f"folder:{tmp_path / 'not mounted'}", {})) as node,
        BackgroundServer(node) as server,
    ):
        wait_until(lambda: "No such file" in node.cluster().problem)  # type: ignore[union-attr]
        assert main(["cluster", "status", "--url", server.url]) == 0
        shown = capsys.readouterr().out
        assert "No such file" in shown
        assert "minority" not in shown
