"""Random nodes with random faults: no call is lost, no memory over-committed, and all end once."""

import pytest

from dandelion.policies import POLICIES
from tests.scheduler.simulation import Simulation


@pytest.mark.parametrize("policy", sorted(POLICIES))
@pytest.mark.parametrize("seed", range(6))
def test_simulation(policy: str, seed: int) -> None:
    simulation = Simulation(seed, policy)
    simulation.run(1200)
    least = 30 if simulation.handles else 50  # the former have more faults
    assert simulation.outcomes["ok"] > least


@pytest.mark.parametrize("seed", [26, 38, 50])
def test_quotas_grow_meanwhile(seed: int) -> None:
    """Without a look for room after that, each of these nodes has functions that wait in vain."""
    simulation = Simulation(seed, "fair")
    assert simulation.faults.quota
    simulation.run(1200)
