"""Which node gets a call."""

from __future__ import annotations

from collections import Counter

from dandelion.cluster.call_messages import EngineGroup, Load
from dandelion.cluster.placement import PARTNERS, Placement, partners_of


def load(free: int, engines: int = 4, received: int = 0, waiting: int = 0) -> Load:
    return Load((EngineGroup("cpu", ("python",), engines, free),), received, waiting)


def three(**free: int) -> Placement:
    placement = Placement("me")
    for name, count in free.items():
        placement.joined(name)
        placement.loaded(name, load(count))
    return placement


def test_calls_are_spread_over_what_is_free() -> None:
    placement = three(a=4, b=2, c=1)
    chosen = Counter(placement.choose("cpu", "f") for _ in range(7))
    assert chosen == {"a": 4, "b": 2, "c": 1}
    assert placement.free("cpu") == 0
    assert placement.under_way("cpu") == 7
    placement.ended("a", "cpu")
    placement.loaded("a", load(1, received=4))
    assert placement.choose("cpu", "f") == "a"


def test_a_node_gets_one_call_ahead_for_each_engine() -> None:
    placement = three(a=2, b=0)
    assert (placement.free("cpu"), placement.ahead("cpu")) == (2, 8)
    chosen = Counter(placement.choose("cpu", "f") for _ in range(2))
    assert chosen == {"a": 2}
    assert (placement.free("cpu"), placement.ahead("cpu")) == (0, 8)
    chosen = Counter(placement.choose("cpu", "f") for _ in range(8))
    assert chosen == {"a": 4, "b": 4}
    assert placement.ahead("cpu") == 0
    placement.loaded("a", load(0, received=6, waiting=4))
    assert placement.ahead("cpu") == 0
    placement.ended("a", "cpu")
    placement.loaded("a", load(0, received=6, waiting=3))
    assert placement.ahead("cpu") == 1
    assert placement.choose("cpu", "f") == "a"
    placement.loaded("b", load(0, received=4, waiting=3))  # of others, too
    assert placement.choose("cpu", "f") == "b"
    placement.ended("b", "cpu", refused=True)
    placement.loaded("a", load(0, received=7, waiting=9))
    assert placement.ahead("cpu") == 0


def test_as_many_nodes_are_wanted_as_calls_would_keep_busy() -> None:
    placement = three(a=4, b=4)
    assert placement.wanted(load(4)) == 1
    placement.loaded("a", load(0))
    assert placement.wanted(load(1)) == 2  # 7 of 12 engines
    placement.loaded("b", load(0, waiting=10))
    assert placement.wanted(load(0)) == 6  # 22 calls, 4 for each
    assert Placement("me").wanted(Load()) == 1


def test_calls_that_a_node_has_not_seen_yet_count() -> None:
    placement = three(a=2)
    assert placement.choose("cpu", "f") == "a"
    placement.loaded("a", load(2, received=0))  # it was said before the call arrived
    assert placement.free("cpu") == 1
    placement.loaded("a", load(1, received=1))
    assert placement.free("cpu") == 1


def test_a_call_that_was_not_sent_takes_no_place() -> None:
    placement = three(a=1)
    assert placement.choose("cpu", "f") == "a"
    placement.not_sent("a", "cpu")
    assert placement.free("cpu") == 1
    placement.loaded("a", load(1, received=0))
    assert placement.free("cpu") == 1
    assert placement.under_way("cpu") == 0


def test_data_and_code_attract() -> None:
    placement = three(a=4, b=4)
    assert placement.choose("cpu", "f") == "a"
    assert placement.choose("cpu", "f", 0) == "a"  # it has the function now
    there = {"b": 64 << 20}
    assert placement.choose("cpu", "f", 64 << 20, there) == "b"
    assert placement.choose("cpu", "f", 64 << 20, {}) in ("a", "b")


def test_a_full_node_waits_for_its_data_only_so_long() -> None:
    placement = three(a=4, b=0)
    assert placement.choose("cpu", "f", 1 << 20, {"b": 1 << 20}) == "a"
    assert placement.choose("cpu", "g", 1 << 30, {"b": 1 << 30}) == "b"


def test_nodes_that_refused_are_asked_again_when_they_say_more() -> None:
    placement = three(a=4, b=1)
    assert placement.choose("cpu", "f") == "a"
    placement.ended("a", "cpu", refused=True)
    assert placement.choose("cpu", "f") == "b"
    assert placement.free("cpu") == 0
    placement.loaded("a", load(4, received=1))
    assert placement.choose("cpu", "f") == "a"


def test_closed_nodes_and_other_formats_get_none() -> None:
    placement = three(a=4)
    assert placement.choose("cpu", "f", format_name="wasm") is None
    assert placement.choose("gpu", "f") is None
    placement.views["a"].open = False
    placement.changed()
    assert placement.free("cpu") == 0
    assert placement.choose("cpu", "f") is None
    assert placement.backends() == {}
    placement.left("a")
    assert placement.choose("cpu", "f") is None


def test_partners_are_few_and_everybody_is_one_of_about_as_many() -> None:
    names = [f"node-{n}:7077" for n in range(300)]
    counts: Counter[str] = Counter()
    for name in names:
        partners = partners_of(name, [other for other in names if other != name])
        assert len(set(partners)) == PARTNERS
        counts.update(partners)
    assert min(counts.values()) >= 4
    assert max(counts.values()) <= 3 * PARTNERS
    assert partners_of("a", ["c", "b"]) == ["b", "c"]
