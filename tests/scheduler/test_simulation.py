"""Random nodes with random faults: nothing is lost or over-committed, and everything ends once."""

import pytest

from tests.scheduler.simulation import Simulation


@pytest.mark.parametrize("policy", ["fifo", "fair"])
@pytest.mark.parametrize("seed", range(12))
def test_simulation(policy: str, seed: int) -> None:
    simulation = Simulation(seed, policy)
    simulation.run(1500)
    assert simulation.outcomes["ok"] > 50
