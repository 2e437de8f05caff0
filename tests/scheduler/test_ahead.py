"""How many calls an engine takes while one runs."""

from __future__ import annotations

import pytest

from dandelion.scheduler import EngineState
from dandelion.scheduler.engine import EnginePhase

MS = 1_000_000


@pytest.mark.parametrize(
    ("mean_ns", "ahead", "free"),
    [
        (0.0, 7, 1),  # nothing is known of its calls
        (0.2 * MS, 7, 8),
        (3 * MS, 7, 8),
        (10 * MS, 7, 3),  # together at most 25 ms wait behind the one that runs
        (20 * MS, 1, 2),
        (26 * MS, 7, 1),
    ],
)
def test_calls_are_sent_ahead_by_their_mean_time(mean_ns: float, ahead: int, free: int) -> None:
    engine = EngineState(1, frozenset({"wasm"}), phase=EnginePhase.READY)
    engine.short_call_ns, engine.ahead, engine.mean_ns = 25 * MS, ahead, mean_ns
    assert engine.free == free
