"""Nodes that find each other by Ray. Skipped where Ray is not installed."""

from __future__ import annotations

import pytest

from dandelion.cluster import Cluster, ClusterSettings
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
            third_control.start(free_addresses(1)[0], {"null": 1}, found.append)
            wait_until(lambda: {first.name, second.name} <= set(found), 60)
            third_control.close()
            other.register(function("work"))
            wait_until(lambda: len(one.records()) == 1)
            assert text_of(one.invoke("work", x=b"a")["y"]) == "a"
        wait_until(lambda: members() == [first.name], 20)
        wait_until(lambda: alive(one) == 0)
