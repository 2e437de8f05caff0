"""A model of many nodes with the real schedulers and placement, see `dandelion.bench`."""

from __future__ import annotations

from dandelion.bench.cluster_model import CALL_NS, MS, Model


def test_load_is_spread_with_few_messages() -> None:
    model = Model(60, 4000).run()
    assert len(model.took_ns) == 4000
    assert model.failed == 0
    assert model.loads[-1] < 2
    assert model.messages_per_call < 2
    alone = Model(60, 4000)
    for node in alone.nodes.values():
        for name in list(node.placement.views):
            node.placement.left(name)
        node.resize()
    alone.run()
    mean_ns = sum(model.took_ns) / len(model.took_ns)
    assert mean_ns < 2 * CALL_NS
    assert mean_ns < sum(alone.took_ns) / len(alone.took_ns) / 3
    assert alone.loads[-1] > 3


def test_nodes_are_lost_and_every_other_invocation_ends_once() -> None:
    model = Model(30, 2000, checks=True)
    model.lose(0.1, 40 * MS)
    model.run()
    assert model.left == 0
    assert model.failed == 0
    assert model.lost_calls > 0
    assert not model.begun_ns
    gone = sum(node.is_lost for node in model.nodes.values())
    assert gone == 3
    assert len(model.took_ns) > 1500
