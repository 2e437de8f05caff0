"""The dynamic semantics of one application, against a naive specification."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dandelion.catalog import MemoryCatalog
from dandelion.data import Item, ItemSet, SetSpec
from dandelion.dataflow.graph import Sharding, Strategy
from dandelion.dataflow.sharding import (
    Partitioning,
    groups_of,
    instances,
    joined_rows,
    merged,
    partition_counts,
)
from dandelion.documents import CodeDocument, FunctionDocument, RegistrationDocument
from dandelion.errors import InvalidFunction
from dandelion.registration import Registrar

POLICY = Partitioning("auto", 1, 2)
ANY = Sharding.ANY_EACH
KEY_SETS = [frozenset(c) for n in range(6) for c in itertools.combinations(range(5), n)]


def keyed(name: str, *keys: int) -> ItemSet | None:
    items = tuple(Item(f"{name}{k}.{i}", k, b"x") for i, k in enumerate(keys))
    return ItemSet(name, items) if items else None


def names(item_set: ItemSet | None) -> list[str]:
    return [] if item_set is None else [item.name for item in item_set]


def keys_of(item_set: ItemSet | None) -> set[int] | None:
    return None if item_set is None else {item.key for item in item_set}


def run(
    shardings: list[Sharding | None],
    sets: list[ItemSet | None],
    joined: tuple[int, ...] = (),
    strategies: tuple[Strategy, ...] = (),
    policy: Partitioning = POLICY,
) -> list[tuple[ItemSet | None, ...]]:
    return list(instances(groups_of(shardings, joined, strategies), sets, policy))


def test_all_gives_one_instance_with_everything() -> None:
    a, b = keyed("a", 1, 2), keyed("b", 3)
    assert run([Sharding.ALL, Sharding.ALL], [a, b]) == [(a, b)]


def test_each_gives_an_instance_for_each_item_in_order() -> None:
    found = run([Sharding.EACH], [keyed("a", 2, 0, 1)])
    assert [names(i[0]) for i in found] == [["a2.0"], ["a0.1"], ["a1.2"]]


def test_keyed_groups_unsorted_keys_once_and_keeps_item_order() -> None:
    found = run([Sharding.KEYED], [keyed("a", 1, 0, 1)])
    assert [names(i[0]) for i in found] == [["a0.1"], ["a1.0", "a1.2"]]


def test_first_in_join_order_is_slowest() -> None:
    a, b = keyed("a", 0, 1), keyed("b", 0, 1)
    found = run([Sharding.EACH, Sharding.EACH], [a, b])
    assert [(names(x), names(y)) for x, y in found] == [
        (["a0.0"], ["b0.0"]),
        (["a0.0"], ["b1.1"]),
        (["a1.1"], ["b0.0"]),
        (["a1.1"], ["b1.1"]),
    ]


def test_keyed_parameters_vary_slower_than_others() -> None:
    found = run([Sharding.EACH, Sharding.KEYED], [keyed("a", 0, 0), keyed("b", 5, 4)])
    assert [(names(x), names(y)) for x, y in found] == [
        (["a0.0"], ["b4.1"]),
        (["a0.1"], ["b4.1"]),
        (["a0.0"], ["b5.0"]),
        (["a0.1"], ["b5.0"]),
    ]


def test_nothing_bound_is_one_instance() -> None:
    assert run([None, None], [None, None]) == [(None, None)]
    assert run([], []) == [()]


def test_absent_optional_set_is_one_value() -> None:
    a = keyed("a", 0, 1)
    found = run([Sharding.EACH, Sharding.KEYED], [a, None])
    assert [(names(x), y) for x, y in found] == [(["a0.0"], None), (["a1.1"], None)]


def relation(strategy: Strategy, left: frozenset[int], right: frozenset[int]) -> list[object]:
    """Which keys get an instance, from the definition: pairs (left key or None, right or None)."""
    if strategy is Strategy.CROSS:
        return list(itertools.product(sorted(left), sorted(right)))
    chosen = {
        Strategy.INNER: left & right,
        Strategy.LEFT: left,
        Strategy.RIGHT: right,
        Strategy.FULL: left | right,
    }[strategy]
    return [(k if k in left else None, k if k in right else None) for k in sorted(chosen)]


@pytest.mark.parametrize("strategy", list(Strategy))
def test_every_join_of_all_key_sets_below_five(strategy: Strategy) -> None:
    for left, right in itertools.product(KEY_SETS, KEY_SETS):
        if not left and not right:
            continue  # every bound set absent: one instance, another rule
        found = run(
            [Sharding.KEYED, Sharding.KEYED],
            [keyed("l", *left), keyed("r", *right)],
            (0, 1),
            (strategy,),
        )
        pairs = [
            tuple(None if k is None else next(iter(k)) for k in map(keys_of, pair))
            for pair in found
        ]
        assert pairs == relation(strategy, left, right), (left, right)


def test_join_after_cross_uses_the_right_hand_key() -> None:
    sets = [keyed("a", 0, 1), keyed("b", 0, 1), keyed("c", 0, 1)]
    found = run([Sharding.KEYED] * 3, sets, (0, 1, 2), (Strategy.CROSS, Strategy.INNER))
    assert [tuple(next(iter(keys_of(s) or ())) for s in row) for row in found] == [
        (0, 0, 0),
        (0, 1, 1),
        (1, 0, 0),
        (1, 1, 1),
    ]


def test_right_join_of_no_rows_keeps_the_width() -> None:
    sets = [keyed("a", 0), keyed("b", 1), keyed("c", 2)]
    found = run([Sharding.KEYED] * 3, sets, (0, 1, 2), (Strategy.INNER, Strategy.RIGHT))
    assert found == [(None, None, sets[2])]


@pytest.mark.parametrize("last", [*Strategy, None])
def test_rows_of_very_large_joins_are_made_one_by_one(last: Strategy | None) -> None:
    many = keyed("a", *range(20_000))
    one = keyed("b", 19_999)
    sets = [many, many, many, many] if last is None else [many, many, many, many, one]
    by = [Strategy.CROSS] * 3 if last is None else [*[Strategy.CROSS] * 3, last]
    found = instances(groups_of([Sharding.KEYED] * len(sets), range(len(sets)), by), sets, POLICY)
    first = [keys_of(item_set) for item_set in next(found)]
    matches = last in (Strategy.INNER, Strategy.RIGHT)
    assert first[:4] == [{0}, {0}, {0}, {19_999 if matches else 0}]
    fewer = 20_000**3
    assert joined_rows(sets, by).count == (fewer if matches else 20_000 * fewer)


@pytest.mark.parametrize("words", [*itertools.product(Strategy, repeat=3)])
def test_rows_are_counted_without_being_made(words: tuple[Strategy, ...]) -> None:
    for keys in itertools.product([(0, 1), (1, 2, 3), ()], repeat=4):
        rows = joined_rows([keyed("s", *some) for some in keys], words)
        assert rows.count == len(list(rows))


@pytest.mark.parametrize("length", [99, 100, 101, 1500])
def test_joins_of_many_sets(length: int) -> None:
    one, two = keyed("a", 1), keyed("b", 1, 2)
    crosses = [Strategy.CROSS, Strategy.RIGHT] * length
    rows = list(joined_rows([two, *[one] * 2 * length], crosses))
    assert [keys_of(row[0]) for row in rows] == [{1}, {2}]


def test_empty_inner_join_runs_nothing_even_with_other_parameters() -> None:
    sets = [keyed("a", 0), keyed("b", 1), keyed("c", 2)]
    shardings: list[Sharding | None] = [Sharding.KEYED, Sharding.KEYED, Sharding.ALL]
    assert run(shardings, sets, (0, 1), (Strategy.INNER,)) == []


@given(st.integers(1, 40), st.integers(1, 12))
def test_any_each_partitions_neighbours_evenly(count: int, cores: int) -> None:
    a = keyed("a", *range(count))
    found = run([Sharding.ANY_EACH], [a], policy=Partitioning("fixed", cores))
    sizes = [len(i[0] or ()) for i in found]
    assert [n for i in found for n in names(i[0])] == names(a)
    assert len(sizes) == min(count, cores)
    assert max(sizes) - min(sizes) <= 1


def test_any_each_max_is_each_and_empty_bytes_are_not_reduced() -> None:
    a = keyed("a", 0, 1, 2)
    assert len(run([Sharding.ANY_EACH], [a], policy=Partitioning("max"))) == 3
    assert partition_counts([5], [0], Partitioning("fixed", 2), 1) == [5]


def test_any_counts_what_other_groups_give_already() -> None:
    assert partition_counts([10], [8], Partitioning("fixed", 6), fixed=3) == [2]
    assert partition_counts([10], [8], Partitioning("fixed", 6), fixed=6) == [1]


def test_any_keyed_never_splits_a_key() -> None:
    a = keyed("a", 0, 1, 0, 1, 2)
    found = run([Sharding.ANY_KEYED], [a], policy=Partitioning("fixed", 2))
    assert [keys_of(i[0]) for i in found] == [{0, 1}, {2}]


def least(
    minimum: int, sizes: list[int], mode: str = "max", number: int = 1, sharding: Sharding = ANY
) -> list[list[int]]:
    """Sizes of the items that each instance gets, of a set with a minimum."""
    items = tuple(Item(str(i), i, b"x" * size) for i, size in enumerate(sizes))
    groups = groups_of([sharding], minima=[minimum])
    found = instances(groups, [ItemSet("a", items)], Partitioning(mode, number, number))
    return [[i.size_bytes for i in one[0] or ()] for one in found]


def test_partitions_have_their_minimum() -> None:
    assert least(0, [3, 1, 2]) == [[3], [1], [2]]
    assert least(3, [3, 1, 2]) == [[1, 2], [3]]
    assert least(4, [3, 1, 2]) == [[1, 2, 3]]
    assert least(100, [3, 1, 2]) == [[1, 2, 3]]
    assert least(2, [1, 1, 1, 1, 1]) == [[1, 1], [1, 1], [1]]  # the last may have less
    assert least(1, [0, 0, 0, 5]) == [[0, 0, 0, 5]]
    assert least(1, [0, 0]) == [[0], [0]]  # nothing to reach a minimum with
    assert least(5, [2, 2, 2, 9, 9], "fixed", 2) == [[2, 2, 2], [9, 9]]
    assert least(1, [2, 2, 2, 2, 2], "fixed", 2) == [[2, 2, 2], [2, 2]]
    assert least(7, [2, 2, 2, 2, 2], "auto", 2) == [[2, 2, 2, 2], [2]]
    assert least(9, [1, 2], sharding=Sharding.EACH) == [[1], [2]]


@given(
    st.lists(st.integers(0, 9), min_size=1, max_size=30),
    st.integers(1, 25),
    st.sampled_from([("max", 1), ("fixed", 1), ("fixed", 3), ("auto", 4)]),
)
def test_no_partition_but_the_last_is_below_its_minimum(
    sizes: list[int], minimum: int, policy: tuple[str, int]
) -> None:
    found = least(minimum, sizes, *policy)
    assert sorted(s for part in found for s in part) == sorted(sizes)
    without = least(0, sizes, *policy)
    assert len(found) <= len(without)
    if sum(sizes):
        assert all(sum(part) >= minimum for part in found[:-1])
        quota = len(sizes) // len(without)
        assert all(len(part) >= quota for part in found[:-1])
        # none is larger than it must be: without its last item it lacks something
        longer = len(sizes) % len(without)
        for number, part in enumerate(found[:-1]):
            share = quota + (number < longer)
            assert len(part) == share or sum(part[:-1]) < minimum


@pytest.mark.parametrize(
    ("inputs", "outputs", "where"),
    [((SetSpec("a", min_bytes=-1),), ("b",), "inputs[0]"),
     (("a",), (SetSpec("b", min_bytes=8),), "outputs[0]")],
)  # fmt: skip
def test_minima_are_checked_when_they_are_registered(
    inputs: tuple[SetSpec | str, ...], outputs: tuple[SetSpec | str, ...], where: str
) -> None:
    function = FunctionDocument("F", inputs, outputs, code=(CodeDocument("null"),))
    registrar = Registrar(MemoryCatalog(), {}, {})
    with pytest.raises(InvalidFunction) as caught:
        registrar.draft(RegistrationDocument(functions=(function,)))
    (problem,) = caught.value.problems
    assert (problem.code, problem.where) == ("bad-minimum", f"function F: {where}")


def test_the_largest_set_of_a_join_has_the_say() -> None:
    small = ItemSet("s", tuple(Item("s", k, b"1") for k in range(4)))
    large = ItemSet("l", tuple(Item("l", k, b"12345") for k in range(4)))
    for minima, count in (([100, 0], 4), ([0, 10], 2), ([0, 100], 1), ([0, 0], 4)):
        groups = groups_of([Sharding.ANY_KEYED] * 2, (0, 1), (Strategy.INNER,), minima)
        found = list(instances(groups, [small, large], Partitioning("max")))
        assert len(found) == count, minima
        assert all(keys_of(a) == keys_of(b) for a, b in found)


def test_merge_sorts_by_key_stably_in_instance_order() -> None:
    first = (keyed("x", 2, 1), None)
    second = (keyed("y", 1, 0), None)
    one, none = merged(["o", "p"], [first, second])
    assert names(one) == ["y0.1", "x1.1", "y1.0", "x2.0"]
    assert one is not None
    assert one.name == "o"
    assert none is None
