"""Policies are found by name, also those of third parties."""

from pathlib import Path

import pytest

from dandelion.errors import InvalidInput
from dandelion.node import Node, Settings
from dandelion.policies import policy_of

MODULE = """
from dandelion.scheduler.policy import Policy

class Last(Policy):
    name = "last"

    def key(self, queue):
        return -queue.calls[-1].id
"""


@pytest.mark.parametrize("name", ["fifo", "fair"])
def test_our_policies_are_found(name: str) -> None:
    assert policy_of(name).name == name


def test_an_unknown_policy_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(InvalidInput, match="fifo"):
        Node(Settings(policy="fifi"))


def test_a_policy_of_a_third_party_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "third_party_policy.py").write_text(MODULE)
    facts = tmp_path / "policy-1.0.dist-info"
    facts.mkdir()
    (facts / "METADATA").write_text("Metadata-Version: 2.1\nName: policy\nVersion: 1.0\n")
    points = "[dandelion.policies]\nlast = third_party_policy:Last\n"
    (facts / "entry_points.txt").write_text(points)
    monkeypatch.syspath_prepend(str(tmp_path))
    assert policy_of("last").name == "last"
    assert Settings(policy="last").policy == "last"
