"""Random nodes with random faults: no call is lost, no memory over-committed, and all end once."""

import pytest

from tests.scheduler.simulation import Simulation


@pytest.mark.parametrize("policy", ["fifo", "fair"])
@pytest.mark.parametrize("seed", range(12))
def test_simulation(policy: str, seed: int) -> None:
    simulation = Simulation(seed, policy)
    simulation.run(1500)
    assert simulation.outcomes["ok"] > 50
