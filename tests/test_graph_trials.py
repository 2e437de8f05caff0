"""A few launches run as a graph only if that is faster."""

from __future__ import annotations

import time
from collections.abc import Iterable

import numpy as np
import pytest
from dandelion.backends.gpu.device import Handle
from dandelion.backends.gpu.graph_trials import CALLS, FEW_LAUNCHES, GraphTrial
from dandelion.backends.gpu.host import HostDevice

from tests.test_gpu_engine import POOL_BYTES, Runner, first, one
from tests.test_open_arguments import add, adding

GRAPH = Handle(object())
SLOW_S = 0.002


def decide(launched_ns: int, replayed_ns: int) -> tuple[Handle | None, list[bool]]:
    """Make the calls of a trial, each of which takes longer than the one before."""
    trial, uses, used = GraphTrial(GRAPH), [], GRAPH
    for number in range(CALLS):
        assert not trial.is_over
        uses.append(used is not None)
        used = trial.next(used, number + (replayed_ns if used is not None else launched_ns))
    assert trial.is_over
    return used, uses


def test_both_kinds_take_turns() -> None:
    assert decide(1000, 1000)[1] == [True, False] * (CALLS // 2)


@pytest.mark.parametrize(
    ("launched_ns", "replayed_ns", "graph"),
    [
        (100_000, 90_000, True),
        (90_000, 100_000, False),
        (99_500, 100_000, True),
        (1_000, 2_000, False),
    ],
)
def test_the_graph_stays_unless_it_is_slower(
    launched_ns: int, replayed_ns: int, graph: bool
) -> None:
    used, _ = decide(launched_ns, replayed_ns)
    assert used is (GRAPH if graph else None)


class Slow(HostDevice):
    """Counts what it does, and is slow at one of them."""

    slow = ""
    replays = launches = 0

    def _replay(self, graph: Handle) -> None:
        self.replays += 1
        if self.slow == "replay":
            time.sleep(SLOW_S)
        super()._replay(graph)

    def _launch(self, prepared: Iterable[Handle]) -> None:
        prepared = tuple(prepared)
        self.launches += len(prepared) > 1  # not what zeroes the pool
        if self.slow == "launch":
            time.sleep(SLOW_S)
        super()._launch(prepared)


@pytest.mark.parametrize(
    ("slow", "times", "kind"),
    [
        ("replay", FEW_LAUNCHES, "launches"),
        ("launch", FEW_LAUNCHES, "replays"),
        ("replay", FEW_LAUNCHES + 1, "replays"),
    ],
)
def test_an_engine_goes_on_with_what_is_faster(slow: str, times: int, kind: str) -> None:
    runner = Runner(device := Slow({"add": add}, POOL_BYTES, graphs=True))
    device.slow = slow
    wanted = adding(times)

    def call(n: int) -> None:
        inputs = one("x", np.zeros(16, np.int32)), one("cfg", np.array([n], np.int64))
        found = first(runner.run(wanted, *inputs)).numpy(np.int32)
        assert (found == times * n).all()

    for n in range(64, 64 + CALLS + 4):  # all have seven bits
        call(n)
    device.replays = device.launches = 0
    for n in range(100, 110):
        call(n)
    others = {"launches": device.replays, "replays": device.launches}[kind]
    assert (getattr(device, kind), others) == (10, 0)
    assert device.graphs == (kind == "replays"), "one that is not in use is discarded"
    runner.engine.close()
