"""Nodes that find each other by Ray. Skipped where Ray is not installed."""

from __future__ import annotations

import pytest

from dandelion.cluster import Cluster, ClusterSettings
from dandelion.errors import BackendUnavailable, InvalidInput
from dandelion.node import Node
from dandelion.testing import wait_until
from tests.cluster.clusters import (
    SECRET,
    alive,
    free_addresses,
    function,
    scripted,
    settings,
    text_of,
)

pytest.importorskip("ray", reason="Ray is not installed: pip install 'dandelion-engine[cluster]'")
pytestmark = pytest.mark.filterwarnings("ignore")  # those of Ray


def test_two_nodes_find_each_other_and_the_actors_end_with_them() -> None:
    from dandelion.cluster.ray_control import RayControl, members

    address = free_addresses(1)
    first_control = RayControl("local")
    first = Cluster(ClusterSettings(address[0], SECRET, peers=tuple(address)), first_control)
    with Node(settings(), [], first) as one:
        second_control = RayControl("auto")
        guest = ClusterSettings("127.0.0.1:0", SECRET, peers=tuple(address))
        second = Cluster(guest, second_control)
        echo = scripted(lambda engine, call: (call.inputs[0],))
        with Node(settings(), [echo], second) as other:
            wait_until(lambda: alive(one) == alive(other) == 1, 60)
            wait_until(lambda: members() == sorted([first.name, second.name]), 60)
            found: list[str] = []
            third_control = RayControl("auto")  # of a node that knows no other
            third_control.start(free_addresses(1)[0], {"null": 1}, found.append, lambda: 0)
            wait_until(lambda: {first.name, second.name} <= set(found), 60)
            third_control.close()
            other.register(function("work"))
            wait_until(lambda: len(one.records()) == 1)
            assert text_of(one.invoke("work", x=b"a")["y"]) == "a"
        wait_until(lambda: members() == [first.name], 20)
        wait_until(lambda: alive(one) == 0)


def test_a_node_reserves_what_it_uses_and_asks_for_more(monkeypatch: pytest.MonkeyPatch) -> None:
    import ray
    from ray.autoscaler import sdk

    from dandelion.cluster.ray_control import RayControl

    requested: list[list[dict[str, float]]] = []
    monkeypatch.setattr(sdk, "request_resources", lambda bundles: requested.append(bundles))
    ray.init(num_cpus=3, resources={"dandelion": 1}, include_dashboard=False, namespace="dandelion")
    try:
        free = ray.available_resources
        reserve = {"CPU": 2.0, "dandelion": 1.0}
        name = free_addresses(1)[0]
        wanted = [2]
        control = RayControl("auto", reserve)
        control.start(name, {"null": 1}, lambda other: None, lambda: wanted[0])
        wait_until(lambda: free().get("CPU") == 1 and not free().get("dandelion"), 60)
        wait_until(lambda: requested == [[reserve] * 2], 30)
        wanted[0] = 1
        wait_until(lambda: requested[1:] == [[reserve]], 30)
        late = RayControl("auto", reserve)
        with pytest.raises(BackendUnavailable, match="is not free"):
            late._strategy()
        control.close()
        wait_until(lambda: free().get("CPU") == 3 and free().get("dandelion") == 1, 30)
    finally:
        ray.shutdown()
    with pytest.raises(InvalidInput, match="CPU=0"):
        RayControl("auto", {"CPU": 0})
