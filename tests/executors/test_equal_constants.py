"""Constants that flows of several tenants have in common, in one engine process."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from dandelion.engine_process.messages import Evict
from tests.executors.harness import Bench, Peer, call_of, flow_of, names


@pytest.fixture
def bench() -> Iterator[Bench]:
    bench = Bench()
    yield bench
    bench.close()


@pytest.fixture
def peer(bench: Bench) -> Iterator[Peer]:
    peer = bench.start()
    yield peer
    peer.die()
    bench.lose()


def test_they_are_evicted_with_the_last_flow(bench: Bench, peer: Peer) -> None:
    one, two, new = flow_of("f", tenant="one"), flow_of("f", tenant="two"), flow_of("new")
    bench.executor.send(call_of(one), (), True)
    bench.executor.send(call_of(two), (), True)
    bench.executor.flush()
    assert names(peer.requests()) == ["Load", "Run", "Run"]
    bench.executor.send(call_of(new), (one,), True)
    bench.executor.flush()
    assert names(peer.requests()) == ["Load", "Run"]
    bench.executor.send(call_of(new), (two,), True)
    bench.executor.flush()
    requests = peer.requests()
    assert names(requests) == ["Evict", "Run"]
    assert requests[0] == Evict(peer.loads["f"])


def test_they_are_evicted_if_only_a_flow_is_left_that_does_not_keep_them(
    bench: Bench, peer: Peer
) -> None:
    one, two = flow_of("f", tenant="one"), flow_of("f", tenant="two")
    bench.executor.send(call_of(one), (), True)
    bench.executor.send(call_of(two))
    bench.executor.flush()
    assert names(peer.requests()) == ["Load", "Run", "Run"]
    bench.executor.forget(one)
    bench.executor.flush()
    assert names(peer.requests()) == ["Evict"]
    bench.executor.forget(two)
    bench.executor.flush()
    assert names(peer.requests()) == ["Forget"]
