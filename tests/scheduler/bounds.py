"""What each policy guarantees, as checks under load. Planted bugs must break them."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from itertools import count, pairwise, repeat

from dandelion.policies.exclusive import TERM_NS
from dandelion.policies.fair import STICKY_NS
from tests.scheduler.virtual_node import MS, Caller, VirtualNode

S = 1000 * MS


def mixed(seed: int) -> Iterator[int]:
    """Durations from 0.1 ms to 50 ms, by their logarithm."""
    source = random.Random(seed)
    while True:
        yield int(10 ** source.uniform(-1, 1.7) * MS)


def saturated(
    policy: str, tenants: int, engines: int, duration_ns: int, places: int = 1, callers: int = 8
) -> VirtualNode:
    """Run tenants that always wait, for 2 s."""
    node = VirtualNode(policy, ("cpu",) * engines, places)
    for number in range(tenants):
        tenant = node.tenant(f"t{number}")
        for _ in range(callers):
            node.caller(Caller(tenant, "f", repeat(duration_ns)), number * MS)
    node.run(2 * S)
    return node


def weights_are_kept(policy: str = "fair", engines: int = 1, seed: int = 0) -> None:
    """In each second of saturation, shares are within 5 % of the time of all engines."""
    node = VirtualNode(policy, ("cpu",) * engines, check=lambda scheduler: None)
    weights = {"a": 1.0, "b": 2.0, "c": 4.0}
    for name, weight in weights.items():
        tenant = node.tenant(name, weight)
        for number in range(16):
            node.caller(Caller(tenant, "f", mixed(100 * seed + ord(name) * 1000 + number)))
    node.run(12 * S)
    for second in range(1, 11):
        used = node.used_ns(second * S, (second + 1) * S)
        assert sum(used.values()) > 0.99 * engines * S, "an engine was idle"
        for name, weight in weights.items():
            assert abs(used[name] / sum(used.values()) - weight / 7) <= 0.05, f"{name}: {used}"
    used = node.used_ns(S, 11 * S)
    for name, weight in weights.items():
        assert abs(used[name] / (10 * engines * S) / (weight / 7) - 1) <= 0.05, f"{name}: {used}"


def light_tenant_is_next(policy: str = "fair") -> None:
    """A call of a flow that was idle waits for the running call of the greedy one, and no more."""
    node = VirtualNode(policy)
    greedy, light = node.tenant("greedy"), node.tenant("light")
    for _ in range(32):
        node.caller(Caller(greedy, "f", repeat(4 * MS)))
    node.caller(Caller(light, "f", repeat(MS // 10)), 50 * MS)
    node.caller(Caller(light, "rare", repeat(MS // 10), pause_ns=97 * MS), 70 * MS)
    node.run(2 * S)
    waits = node.waits_ns("light")
    assert len(waits) > 400
    assert max(waits) <= 4 * MS + MS // 10, f"it waited {max(waits) / MS} ms"


def lanes_have_their_own_clocks(policy: str = "fair") -> None:
    """Engine time of other engines does not delay a flow that comes back."""
    node = VirtualNode(policy, ("gpu", "cpu", "cpu", "cpu", "cpu"))
    slow, fast = node.tenant("slow"), node.tenant("fast")
    back = node.tenant("back")
    for _ in range(4):
        node.caller(Caller(slow, "g", repeat(4 * MS)), format_name="gpu")
    for _ in range(8):
        node.caller(Caller(fast, "c", repeat(4 * MS)))
    node.caller(Caller(back, "h", repeat(MS), pause_ns=500 * MS), 500 * MS, "gpu")
    node.run(3 * S)
    assert len(node.waits_ns("back")) >= 5
    assert max(node.waits_ns("back")) <= 4 * MS


def other_engines_do_not_count(policy: str) -> None:
    """A tenant that also keeps other engines busy has its half of this one."""
    node = VirtualNode(policy, ("gpu", "cpu", "cpu"))
    a, b = node.tenant("a"), node.tenant("b")
    for _ in range(3):
        node.caller(Caller(a, "g", repeat(4 * MS)), format_name="gpu")
        node.caller(Caller(b, "g", repeat(4 * MS)), format_name="gpu")
        node.caller(Caller(a, "c", repeat(MS)), format_name="cpu")
    node.run(S)
    on_device = Counter(one.tenant for one in node.sent if one.engine == 0)
    assert min(on_device["a"], on_device["b"]) >= 0.45 * sum(on_device.values()), f"{on_device}"


def order_is_that_of(policy: str, places: int = 1) -> None:
    """Calls that all wait are sent in the order of the policy."""
    node = VirtualNode(policy, places=places)
    tenants = [node.tenant("a"), node.tenant("b")]
    node.caller(Caller(tenants[0], "first", repeat(10 * MS), again=False))
    source = random.Random(1)
    callers = []
    for number in range(40):
        caller = Caller(
            tenants[number % 2],
            f"f{source.randrange(3)}",
            repeat(MS),
            deadline_ns=source.randrange(S, 9 * S),
            again=False,
        )
        callers.append(caller)
        node.caller(caller, MS + number * 1000)
    node.run(9 * S)
    sent = [one.caller for one in node.sent][places:]
    left = [caller for caller in callers if caller in sent]
    if policy == "lifo":
        left.reverse()
    elif policy == "deadline":
        deadlines = {c: (c.deadline_ns + number * 1000) for number, c in enumerate(callers)}
        left.sort(key=deadlines.__getitem__)
    assert sent == left


def load_is_even(policy: str = "balance") -> None:
    """At half load, four engines are equally busy, and no call waits."""
    node = VirtualNode(policy, ("cpu",) * 4)
    tenant = node.tenant("t")
    for number in range(2):
        durations = mixed(number)
        node.caller(Caller(tenant, f"f{number}", durations, pause_ns=MS), number)
    node.run(5 * S)
    busy = Counter(dict.fromkeys(range(4), 0))
    for one in node.sent:
        busy[one.engine] += one.ended_ns - one.began_ns
    assert max(busy.values()) <= 1.1 * min(busy.values()), f"{busy}"
    assert max(node.waits_ns("t")) == 0


def flows_stay_at_home(policy: str = "affinity") -> None:
    """With as much load for each of four engines, nine in ten calls run where the last one did."""
    node = VirtualNode(policy, ("cpu",) * 4)
    for number in range(8):
        tenant = node.tenant(f"t{number}")
        for at in range(4):
            source = random.Random(10 * number + at)
            durations = (source.randrange(MS, 3 * MS) for _ in count())
            node.caller(Caller(tenant, "f", durations), at * 10)
    node.run(S)
    last: dict[str, int] = {}
    stayed = 0
    for one in node.sent:
        stayed += last.get(one.tenant) == one.engine
        last[one.tenant] = one.engine
    assert stayed >= 0.9 * len(node.sent), f"{stayed} of {len(node.sent)}"
    used = node.used_ns()
    assert sum(used.values()) > 0.99 * 4 * S, "an engine was idle"
    bound_ns = 2 * (10 * 3 * MS + 4 * 3 * MS)
    assert max(used.values()) - min(used.values()) <= bound_ns


def engines_have_one_owner(policy: str = "exclusive", places: int = 1) -> None:
    """An engine changes its tenant only after a term, and no tenant waits for long."""
    tenants, engines, duration_ns = 5, 2, 4 * MS
    node = saturated(policy, tenants, engines, duration_ns, places)
    for engine in range(engines):
        calls = [one for one in node.sent if one.engine == engine]
        began_ns = calls[0].began_ns
        for before, after in pairwise(calls):
            if before.tenant != after.tenant:
                assert before.ended_ns - began_ns >= TERM_NS, "its term had not ended"
                began_ns = after.began_ns
    for number in range(tenants):
        times = [one.began_ns for one in node.sent if one.tenant == f"t{number}"]
        bound_ns = tenants * (TERM_NS + 2 * 2 * duration_ns)
        gaps = [after - before for before, after in zip(times, [*times[1:], 2 * S], strict=True)]
        assert max(gaps) <= bound_ns, f"t{number} waited {max(gaps) / MS} ms"


def idle_engines_have_no_owner(policy: str = "exclusive") -> None:
    """A tenant takes an engine as soon as its owner has no call for it."""
    node = VirtualNode(policy)
    node.caller(Caller(node.tenant("rare"), "f", repeat(MS), pause_ns=10 * MS))
    node.caller(Caller(node.tenant("other"), "f", repeat(MS), pause_ns=3 * MS), 100)
    node.run(S)
    assert len(node.waits_ns("other")) > 150
    assert len(node.waits_ns("rare")) > 50
    assert max(node.waits_ns("other") + node.waits_ns("rare")) <= MS


def engines_are_fixed(policy: str = "static") -> None:
    """Tenants of weight 1, 2 and 4 have 1, 2 and 4 of seven engines, also while others are idle."""
    node = VirtualNode(policy, ("cpu",) * 7)
    for name, weight in {"a": 1.0, "b": 2.0, "c": 4.0}.items():
        tenant = node.tenant(name, weight)
        for _ in range(8 if name != "c" else 1):
            node.caller(Caller(tenant, "f", repeat(3 * MS), pause_ns=MS if name == "c" else 0))
    node.run(S)
    engines = {name: {one.engine for one in node.sent if one.tenant == name} for name in "abc"}
    assert engines["a"] == {0}
    assert engines["b"] == {1, 2}
    assert engines["c"] <= {3, 4, 5, 6}


def shared_engines_are_taken_in_turns(policy: str = "static") -> None:
    """Tenants that share an engine wait for one call of each other."""
    node = saturated(policy, tenants=3, engines=1, duration_ns=4 * MS, callers=1)
    for number in range(3):
        waits = node.waits_ns(f"t{number}")[1:]
        assert len(waits) >= 160
        assert max(waits) <= 2 * 4 * MS


def no_tenant_starves(policy: str) -> None:
    """Every call of a saturated node begins within a bound that its policy has."""
    for engines, places in ((1, 1), (3, 0)):
        node = saturated(policy, 5, engines, 4 * MS, places)
        shared_ns = 5 * 8 * 4 * MS  # all other calls once
        bound_ns = shared_ns + 5 * (TERM_NS + 4 * 4 * MS if policy == "exclusive" else 10 * 4 * MS)
        for number in range(5):
            waits = node.waits_ns(f"t{number}")
            assert waits, f"t{number} has run no call"
            assert max(waits) <= bound_ns, f"t{number} waited {max(waits) / MS} ms"


def high_priorities_are_first(policy: str) -> None:
    """Calls of a tenant that wait are sent by priority, over all its functions."""
    node = VirtualNode(policy)
    tenant = node.tenant("t")
    node.caller(Caller(tenant, "first", repeat(20 * MS), again=False))
    source = random.Random(2)
    callers = []
    for number in range(60):
        function = f"f{source.randrange(3)}"
        priority = source.choice([-2, 0, 0, 3, 1000])
        callers.append(Caller(tenant, function, repeat(MS), priority=priority, again=False))
        node.caller(callers[-1], MS + number * 1000)
    node.run(S)
    priorities = [one.caller.priority for one in node.sent[1:]]
    assert priorities == sorted((c.priority for c in callers), reverse=True)


def tenants_gain_nothing_by_priorities(policy: str) -> None:
    """The turns of tenants are the same, whatever the priorities of their calls are."""
    without, with_ = (_turns(policy, high) for high in (0, 1000))
    assert without == with_


def _turns(policy: str, high: int) -> list[tuple[int, int, str]]:
    node = VirtualNode(policy, ("cpu",) * 2)
    source = random.Random(3)
    for name in "ab":
        tenant = node.tenant(name)
        for _ in range(30):
            priority = source.choice([-high, 0, high]) if name == "a" else 0
            deadline_ns = source.randrange(S, 9 * S)
            one = Caller(tenant, "f", repeat(2 * MS), 0, priority, deadline_ns, again=False)
            node.caller(one, source.randrange(20 * MS))
    node.run(S)
    return [(one.began_ns, one.engine, one.tenant) for one in node.sent]


def functions_gain_nothing_by_priorities(policy: str) -> None:
    """A tenant with several functions is never ahead of what it gets without priorities."""

    def counts(high: int) -> list[int]:
        node = VirtualNode(policy)
        source = random.Random(4)
        a, b = node.tenant("a"), node.tenant("b")
        for number in range(40):
            priority = high if number % 2 else 0
            one = Caller(a, f"f{number % 2}", repeat(2 * MS), 0, priority, 2 * S, again=False)
            other = Caller(b, "g", repeat(2 * MS), 0, 0, 2 * S, again=False)
            node.caller(one, source.randrange(20 * MS))
            node.caller(other, source.randrange(20 * MS))
        node.run(S)
        total, running = 0, []
        for one_sent in node.sent:
            total += one_sent.tenant == "a"
            running.append(total)
        return running

    slack = STICKY_NS / (2 * MS) if policy in ("fair", "affinity") else 1
    for without, with_ in zip(counts(0), counts(9), strict=True):
        assert with_ <= without + slack
