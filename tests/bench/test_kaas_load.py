"""Closed and open loops over scripted tenants: what counts, from when, and who gives up."""

from __future__ import annotations

import threading
import time
from typing import NamedTuple

import pytest
from dandelion.bench.systems.nodes import split_call
from dandelion.bench.systems.tenant_load import closed_loop, open_loop
from dandelion.bench.systems.tenants import Tenants

from dandelion.errors import TimedOut

BODIES = [b"a", b"b", b"c"]


class Scripted(Tenants):
    """Answers with the request; counts who asked."""

    name = "scripted"

    def __init__(self) -> None:
        self.requested: list[int] = []
        self.given_up: list[bool] = []
        self.lock = threading.Lock()

    def call(self, tenant: int, body: bytes) -> bytes:
        assert body == BODIES[tenant]
        with self.lock:
            self.requested.append(tenant)
        time.sleep(0.001)
        return body

    def give_up(self, over: bool) -> None:
        with self.lock:
            self.given_up.append(over)

    def close(self) -> None:
        pass


class Stuck(Scripted):
    """Answers nothing until it is told to give up; then all fails."""

    def __init__(self) -> None:
        super().__init__()
        self.ended = threading.Event()

    def call(self, tenant: int, body: bytes) -> bytes:
        assert self.ended.wait(30)
        raise TimedOut("tenant", "wall", 0.0)

    def give_up(self, over: bool) -> None:
        super().give_up(over)
        if over:
            self.ended.set()


class Broken(Scripted):
    """The second request of the first tenant fails."""

    def call(self, tenant: int, body: bytes) -> bytes:
        if self.requested.count(0) >= 1 and tenant == 0:
            raise TimedOut("tenant", "wall", 0.0)
        return super().call(tenant, body)


class OneByOne(Scripted):
    """Serves one request at a time, each for 20 ms."""

    def __init__(self) -> None:
        super().__init__()
        self._turn = threading.Lock()

    def call(self, tenant: int, body: bytes) -> bytes:
        with self._turn:
            time.sleep(0.02)
        return body


@pytest.mark.parametrize("tenants", [1, 12])
def test_those_who_stand_in_line_are_not_counted_as_served(tenants: int) -> None:
    """However many ask: 50 a second are served, and no more can be."""
    found = closed_loop(OneByOne(), [b"x"] * tenants, seconds=0.1)
    assert 0 < found.per_s <= 50


def test_nothing_answered_is_no_rate() -> None:
    class Down(Scripted):
        def call(self, tenant: int, body: bytes) -> bytes:
            raise TimedOut("tenant", "wall", 0.0)

    assert closed_loop(Down(), BODIES, seconds=0.0).per_s == 0


def test_a_closed_loop_asks_for_every_tenant_until_enough() -> None:
    system = Scripted()
    found = closed_loop(system, BODIES, seconds=0.0, least=9, most_s=30.0)
    assert set(system.requested) == {0, 1, 2}
    assert found.latency.count == len(system.requested) >= 9
    assert found.errors == {}
    assert found.per_s > 0
    assert system.given_up[-1] is False


def test_a_tenant_that_fails_is_counted_and_leaves() -> None:
    found = closed_loop(Broken(), BODIES, seconds=0.0, least=9, most_s=30.0)
    assert found.errors == {"TimedOut": 1}
    assert found.latency.count >= 9


def test_an_open_loop_asks_as_often_as_it_should() -> None:
    system = Scripted()
    found = open_loop(system, BODIES, rate_per_s=400.0, seconds=0.1, seed=1)
    assert len(system.requested) == found.latency.count == 40
    assert len(set(system.requested)) == 3
    again = Scripted()
    open_loop(again, BODIES, rate_per_s=400.0, seconds=0.1, seed=1)
    assert sorted(again.requested) == sorted(system.requested)


def test_what_is_never_answered_counts_with_the_time_until_patience_ends() -> None:
    system = Stuck()
    found = open_loop(system, BODIES, rate_per_s=50.0, seconds=0.1, seed=1, patience_s=0.05)
    assert found.errors == {"TimedOut": 5}
    assert found.latency.count == 5
    assert found.per_s == 0
    assert found.latency.percentile(100) >= 50_000
    assert system.given_up == [True, False]


class Span(NamedTuple):
    """A span of a node's trace."""

    name: str
    track: str
    start_ns: int
    end_ns: int


def test_a_trace_is_split_into_stages_that_add_up() -> None:
    spans = [
        Span("f", "opencl:0", 0, 9000),
        Span("plan", "opencl:0 stages", 0, 1000),
        Span("kernels", "opencl:0 stages", 1000, 4000),
        Span("zero", "opencl:0 stages", 4000, 9000),
    ]
    found = split_call(spans, 10.0)
    assert found == {"dispatch": 6.0, "plan": 1.0, "kernels": 3.0, "total": 10.0}
