"""A server of known latencies is measured, and the load generator must report them.

It takes 5 ms for most requests and 20 ms or 60 ms for some, and in the second case it stalls
repeatedly. What its clients must see follows from the intended times and from its own account.
"""

from __future__ import annotations

import numpy as np
import pytest
from dandelion.bench.load import Arrivals, LoadResult, closed_loop, intended_times, open_loop
from dandelion.bench.samples import Samples
from dandelion.bench.timing import in_turns

from tests.bench.scripted_server import (
    REQUEST,
    Script,
    account_of,
    delays_ns,
    replay,
    scripted_server,
)

DELAYS = ((5_000.0, 0.983), (20_000.0, 0.015), (60_000.0, 0.002))
MS = 1_000_000
RATE, WARM_UP_S = 300.0, 0.2


def measured(script: Script, seconds: float) -> tuple[LoadResult, Samples, Samples]:
    """Give the load, and the latencies by the server's account and by the script alone."""
    with scripted_server(script) as server:
        load = open_loop(
            server.port, REQUEST, rate_per_s=RATE, seconds=seconds, connections=512,
            warm_up_s=WARM_UP_S,
        )  # fmt: skip
        account = account_of(server)
    times = intended_times(RATE, seconds + WARM_UP_S, Arrivals.POISSON, 1) + load.started_ns
    answered = np.full(len(times), -1, np.int64)
    answered[list(account.numbers)] = account.answered_ns
    counts = times >= load.started_ns + round(WARM_UP_S * 1e9)
    ideal = replay(times, delays_ns(script, len(times)), account.stalls_ns)
    by_account = (answered - times)[counts & (answered >= 0)]
    return load, Samples(by_account.tolist()), Samples((ideal - times)[counts].tolist())


@pytest.mark.parametrize("stall_s", [0.0, 0.15], ids=["no stalls", "stalls"])
def test_known_latencies_are_reported(stall_s: float) -> None:
    for last in (False, False, True):  # other work may delay the generator, but not each time
        load, account, script = measured(Script(DELAYS, 0.35 if stall_s else 0.0, stall_s), 1.5)
        assert load.errors == {}
        assert load.count == account.count == script.count
        assert sum(account.ns) >= 0.999 * sum(script.ns)
        assert (script.percentile(99) > 100_000) is bool(stall_s)
        found = {q: load.latency.percentile(q) for q in (50, 90, 99)}
        wanted = {q: pytest.approx(account.percentile(q), rel=0.1) for q in found}
        if found == wanted:
            return
        assert not last, (found, wanted)


def test_a_closed_loop_hides_the_waiting_of_a_stall() -> None:
    script = Script(DELAYS, 0.35, 0.15)
    load, _, _ = measured(script, 1.0)
    with scripted_server(script) as server:
        closed = closed_loop(server.port, REQUEST, callers=2, seconds=1.0)
    assert load.latency.percentile(90) > 2 * closed.latency.percentile(90)


def test_the_clock_of_turns_costs_little() -> None:
    timed = in_turns({"one": lambda: None, "many": lambda: None}, count=2000, block=10)
    assert max(samples.median for samples in timed.values()) < 20


def test_shares_of_a_script_are_exact() -> None:
    delays = delays_ns(Script(((1.0, 0.989), (5.0, 0.009), (20.0, 0.002))), 3500)
    assert len(delays) == 3500
    for begin in (0, 1000, 2000):
        values, counts = np.unique(delays[begin : begin + 1000], return_counts=True)
        assert dict(zip(values.tolist(), counts.tolist(), strict=True)) == {
            1000: 989, 5000: 9, 20000: 2,
        }  # fmt: skip


def test_replaying_a_stall() -> None:
    arrivals = np.array([0, 10, 95, 100, 150, 200, 390]) * MS
    takes = np.array([1, 1, 10, 10, 1, 1, 20]) * MS
    answered = replay(arrivals, takes, ((100 * MS, 200 * MS), (400 * MS, 500 * MS)))
    assert (answered / MS).tolist() == [1, 11, 200, 210, 201, 201, 500]
