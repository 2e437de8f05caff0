"""Shares of engine time and waits under `fair`, with a virtual clock."""

from itertools import repeat

import pytest

from dandelion.policies.fair import STICKY_NS
from tests.scheduler import bounds
from tests.scheduler.virtual_node import MS, Caller, VirtualNode


def add(
    node: VirtualNode,
    name: str,
    duration_ns: int,
    callers: int,
    weight: float = 1.0,
    at_ns: int = 0,
) -> None:
    tenant = node.tenant(name, weight)
    for _ in range(callers):
        node.caller(Caller(tenant, name, repeat(duration_ns)), at_ns)


@pytest.mark.parametrize("engines", [1, 3])
def test_fair_shares_follow_weights(engines: int) -> None:
    node = VirtualNode("fair", ("cpu",) * engines)
    add(node, "light", MS // 3, 8)
    add(node, "heavy", 4 * MS, 8)
    add(node, "double", 2 * MS, 8, weight=2.0)
    node.run(2000 * MS)
    used = node.used_ns()
    bound_ns = 2 * (STICKY_NS + engines * 4 * MS)
    assert abs(used["light"] - used["heavy"]) <= bound_ns
    assert abs(used["double"] / 2 - used["heavy"]) <= bound_ns


@pytest.mark.parametrize(("engines", "seed"), [(1, 0), (1, 1), (4, 2)])
def test_weights_are_kept_in_each_second(engines: int, seed: int) -> None:
    bounds.weights_are_kept("fair", engines, seed)


def test_a_light_tenant_waits_for_one_call_of_a_greedy_one() -> None:
    bounds.light_tenant_is_next()
    with pytest.raises(AssertionError):
        bounds.light_tenant_is_next("fifo")


def test_other_engines_do_not_delay_a_flow() -> None:
    bounds.lanes_have_their_own_clocks()


def test_idleness_earns_no_credit() -> None:
    node = VirtualNode("fair")
    add(node, "early", MS, 4)
    add(node, "late", MS, 4, at_ns=1000 * MS)
    node.run(1400 * MS)
    used = node.used_ns(1000 * MS, 1400 * MS)
    assert abs(used["late"] - used["early"]) <= 2 * (STICKY_NS + MS)


def test_a_flow_that_stays_keeps_the_quota_of_its_tenant() -> None:
    node = VirtualNode("fair", places=2)
    add(node, "one", MS, 4)
    add(node, "other", MS // 2, 4, weight=10.0)
    tenant = node.scheduler.tenants["one"]
    tenant.quota = tenant.quota._replace(calls=1)
    node.run(100 * MS)
    assert len(node.sent) > 100


@pytest.mark.parametrize("others", [1, 3, 10])
def test_a_lent_share_is_back_within_100_ms(others: int) -> None:
    """A tenant that was idle is next after the call that runs."""
    call_ns = 4 * MS
    node = VirtualNode("fair")
    for number in range(others):
        add(node, f"other{number}", call_ns, 32)
    node.run(1000 * MS)
    assert sum(node.used_ns(0, 1000 * MS).values()) == 1000 * MS, "its share was lent"
    returned_ns = node.now_ns
    add(node, "back", MS, 8, at_ns=returned_ns)
    node.run(returned_ns + 1000 * MS)
    assert node.waits_ns("back")[0] <= call_ns
    for number in range(1, 11):
        passed_ns = number * 100 * MS
        used_ns = node.used_ns(returned_ns, returned_ns + passed_ns)["back"]
        due_ns = passed_ns / (others + 1)
        assert abs(used_ns - due_ns) <= 2 * (STICKY_NS + call_ns)
