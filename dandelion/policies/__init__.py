"""The policies. `docs/scheduling.md` has the bounds that each guarantees, and when to use which."""

from __future__ import annotations

from dandelion.entry_points import entry_points
from dandelion.errors import InvalidInput, nearest
from dandelion.policies.affinity import Affinity
from dandelion.policies.exclusive import Exclusive
from dandelion.policies.fair import Fair
from dandelion.policies.ordered import Balance, Deadline, Fifo, Lifo
from dandelion.policies.static import Static
from dandelion.scheduler.policy import Policy

GROUP = "dandelion.policies"
POLICIES: dict[str, type[Policy]] = {
    policy.name: policy
    for policy in (Fair, Fifo, Lifo, Deadline, Balance, Affinity, Exclusive, Static)
}


def policy_of(name: str) -> Policy:
    """Make the policy of a name: one of ours, or of an entry point that names a class.

    Raises:
        InvalidInput: there is none; the nearest name is in the hint.
    """
    found = POLICIES.get(name)
    if found is None:
        points = entry_points(GROUP)
        if name in points:
            found = points[name].load()
    if found is None:
        known = [*POLICIES, *points]
        close = nearest(name, known)
        hint = f"did you mean '{close}'?" if close else f"use one of {', '.join(known)}"
        raise InvalidInput("policy", f"unknown policy '{name}'", hint)
    return found()
