"""The dynamic semantics of one application: its instances, and the merge of their outputs.

This file decides *which* instances an application has, with pure functions over sets. The rules,
with their source in the language of the original system:

1. **Groups.** The parameters of a ``by`` clause form one group, every other parameter is a group of
   its own. Instances are the cross product of the groups; the first group varies slowest. The order
   of groups: joined keyed parameters, other keyed ones, joined ``anyKeyed`` ones, the rest; within
   each in order of the declaration.
2. **Values of a group.** ``all``: the set. ``each``: one item at a time, in the set's order.
   ``keyed``: one key at a time, ascending, for any order of the items; items of a key keep their
   order. An absent set that is optional is one value, the absent set.
3. **Joins** go from left to right over keys; a row holds one key or nothing for each set. ``inner``
   keeps rows whose key the next set has, ``left`` keeps all rows, ``right`` makes a row for each
   key of the next set, ``full`` both, ``cross`` every pair. After a ``cross`` the key of a row is
   that of the set on the right. ``right`` and ``full`` order their rows by key, the others keep the
   order. A set without a row's key is absent in that instance. An absent set has no keys.
4. **any shardings** make the policy's number of partitions (`partition_counts`), of neighbouring
   items or keys. If the input set has a minimum, partitions are made of values in ascending order
   of their bytes, and each grows until it has its share and the minimum; so there may be fewer.
5. If nothing is bound, or every bound set is absent, there is exactly one instance.
6. **Merge.** For each output, the items of all instances in instance order, then stably sorted by
   key. Without items the set is absent.
"""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from dandelion.data import ItemSet
from dandelion.dataflow.graph import Sharding, Strategy
from dandelion.errors import TooMany

Instance: TypeAlias = tuple[ItemSet | None, ...]
Row: TypeAlias = tuple[ItemSet | None, ...]
"""One value of a group: a set for each of its parameters."""

_key = operator.attrgetter("key")
_ANY = (Sharding.ANY_EACH, Sharding.ANY_KEYED)
ROWS_LIMIT = 1 << 18
"""Rows of a join that is partitioned: a partition is a set, so all its rows are there at once."""


@dataclass(frozen=True, slots=True)
class Group:
    """Parameters that are sharded together.

    Attributes:
        positions: parameters by position of the declaration, in join order.
        sharding: the sharding of all of them.
        strategies: one less than positions.
        minima: bytes that a partition of each parameter should have; empty for none.
    """

    positions: tuple[int, ...]
    sharding: Sharding
    strategies: tuple[Strategy, ...] = ()
    minima: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Partitioning:
    """The platform's choice of the number of partitions of ``any`` shardings.

    Attributes:
        mode: ``max`` (as many as ``each`` or ``keyed`` would make), ``fixed`` or ``auto``.
        number: N of ``fixed:N``.
        cores: cores that can run instances at once.
    """

    mode: str = "auto"
    number: int = 1
    cores: int = 1

    def setting(self) -> str:
        """Return the setting by which another machine chooses the same."""
        given = {"fixed": self.number, "auto": self.cores}.get(self.mode)
        return self.mode if given is None else f"{self.mode}:{given}"


def groups_of(
    shardings: Sequence[Sharding | None],
    joined: Sequence[int] = (),
    strategies: Sequence[Strategy] = (),
    minima: Sequence[int] = (),
) -> tuple[Group, ...]:
    """Order the bound parameters of an application into groups (rule 1).

    Args:
        shardings: by position of the declaration; None for an unbound one.
        joined: positions of the ``by`` clause, in its order.
        strategies: one less than `joined`.
        minima: bytes by position that a partition should have; empty for none.
    """

    def group(at: Sequence[int], sharding: Sharding, by: Sequence[Strategy] = ()) -> Group:
        least = tuple(minima[position] for position in at) if minima and sharding in _ANY else ()
        return Group(tuple(at), sharding, tuple(by), least if any(least) else ())

    join = group(joined, _sharding(shardings, joined), strategies) if joined else None
    singles = [
        group((at,), sharding)
        for at, sharding in enumerate(shardings)
        if sharding is not None and at not in joined
    ]
    keyed = [g for g in singles if g.sharding is Sharding.KEYED]
    rest = [g for g in singles if g.sharding is not Sharding.KEYED]
    if join is None:
        return (*keyed, *rest)
    if join.sharding is Sharding.KEYED:
        return (join, *keyed, *rest)
    return (*keyed, join, *rest)


def _sharding(shardings: Sequence[Sharding | None], joined: Sequence[int]) -> Sharding:
    sharding = shardings[joined[0]]
    assert sharding is not None, "validation refuses joins of unbound parameters"
    return sharding


def instances(
    groups: Sequence[Group], sets: Sequence[ItemSet | None], policy: Partitioning
) -> Iterator[Instance]:
    """Yield the instances of an application in order (rules 1 to 5).

    Args:
        groups: from `groups_of`.
        sets: by position; None where unbound or absent. Absent sets must be optional ones.
        policy: for ``any`` shardings.

    Raises:
        TooMany: a join of ``anyKeyed`` sets has more than `ROWS_LIMIT` rows; at the first instance.
    """
    width = len(sets)
    if all(item_set is None for item_set in sets):
        yield (None,) * width
        return
    if width == 1 and groups[0].sharding is not Sharding.ALL and groups[0].sharding not in _ANY:
        yield from _units(groups[0], sets)
        return
    if all(g.sharding is Sharding.ALL for g in groups):
        yield tuple(sets)
        return
    first, *others = _values(groups, sets, policy)
    for slowest in first:
        for rest in itertools.product(*others):
            instance: list[ItemSet | None] = [None] * width
            for group, row in zip(groups, (slowest, *rest), strict=True):
                for position, item_set in zip(group.positions, row, strict=True):
                    instance[position] = item_set
            yield tuple(instance)


def _values(
    groups: Sequence[Group], sets: Sequence[ItemSet | None], policy: Partitioning
) -> tuple[Iterable[Row], ...]:
    """Return all values of every group; ``any`` groups are partitioned depending on the others.

    Values of the first group are made as they are needed, since there may be very many: all of
    them, or, beside ``any`` groups, the rows of a join.
    """
    chosen = [i for i, g in enumerate(groups) if g.sharding in _ANY]
    if not chosen:
        return (_units(groups[0], sets), *[list(_units(g, sets)) for g in groups[1:]])
    lazy = None
    if len(groups[0].positions) > 1 and groups[0].sharding not in _ANY:
        lazy = joined_rows([sets[p] for p in groups[0].positions], groups[0].strategies)
        groups = groups[1:]
        chosen = [i - 1 for i in chosen]
    values = [list(_units(group, sets)) for group in groups]
    fixed = math.prod(len(values[i]) for i in range(len(groups)) if i not in chosen)
    if lazy is not None:
        fixed *= lazy.count
    largest = [_largest(groups[i], sets) for i in chosen]
    sizes = [size for size, _ in largest]
    counts = partition_counts([len(values[i]) for i in chosen], sizes, policy, fixed)
    for i, (size, at), count in zip(chosen, largest, counts, strict=True):
        minima = groups[i].minima
        if minima and minima[at] and size:
            values[i] = list(_filled_rows(values[i], count, at, minima[at]))
        else:
            values[i] = list(_merged_rows(values[i], count))
    return (*values,) if lazy is None else (lazy, *values)


def _units(group: Group, sets: Sequence[ItemSet | None]) -> Iterator[Row]:
    """Yield the smallest values of one group (rules 2 and 3)."""
    first = sets[group.positions[0]]
    if len(group.positions) > 1:
        rows = joined_rows([sets[p] for p in group.positions], group.strategies)
        if group.sharding in _ANY and rows.count > ROWS_LIMIT:
            raise TooMany("a join of anyKeyed sets", "rows", rows.count, ROWS_LIMIT)
        yield from rows
    elif first is None or group.sharding is Sharding.ALL:
        yield (first,)
    elif group.sharding in (Sharding.EACH, Sharding.ANY_EACH):
        for item in first.items:
            yield (ItemSet(first.name, (item,), first.dtype, first.shape),)
    else:
        for _, part in _keyed(first):
            yield (part,)


def _largest(group: Group, sets: Sequence[ItemSet | None]) -> tuple[int, int]:
    """Return bytes and index of the largest set of a group, the first of equal ones."""
    sizes = [_bytes(sets[position]) for position in group.positions]
    return max(sizes), sizes.index(max(sizes))


def _bytes(item_set: ItemSet | None) -> int:
    return item_set.size_bytes if item_set is not None else 0


def partition_counts(
    maxima: Sequence[int], sizes_bytes: Sequence[int], policy: Partitioning, fixed: int
) -> list[int]:
    """Choose the number of partitions of each ``any`` group (rule 4).

    Args:
        maxima: number of items or keys of each group, which bounds its partitions.
        sizes_bytes: bytes of the largest set of each group; a group without bytes is not reduced.
        policy: the mode.
        fixed: number of instances of the other groups.
    """
    target = _target(sizes_bytes, policy)
    if target == 0:
        return list(maxima)
    counts = [m if not size else 1 for m, size in zip(maxima, sizes_bytes, strict=True)]
    left = target // max(1, fixed)
    open_groups = [i for i, size in enumerate(sizes_bytes) if size and maxima[i]]
    while left > 1 and open_groups:
        wanted = left
        best = min(open_groups, key=lambda i: (maxima[i] % wanted) / maxima[i])
        open_groups.remove(best)
        counts[best] = min(left, maxima[best])
        if maxima[best] >= left:
            break
        left //= maxima[best]
    return counts


def _target(sizes_bytes: Sequence[int], policy: Partitioning) -> int:
    if policy.mode == "max":
        return 0
    if policy.mode == "fixed":
        return policy.number
    return policy.cores if math.prod(sizes_bytes) else 0


def _merged_rows(rows: Sequence[Row], count: int) -> Iterator[Row]:
    """Merge neighbouring rows into `count` partitions; the first ones have one more row."""
    if not rows:
        return
    size, longer = divmod(len(rows), count)
    start = 0
    for index in range(count):
        end = start + size + (index < longer)
        yield _one_row(rows[start:end])
        start = end


def _filled_rows(rows: Sequence[Row], count: int, at: int, least_bytes: int) -> Iterator[Row]:
    """Merge rows, small ones first, into at most `count` partitions (rule 4).

    A partition is complete when it has as many rows as in `_merged_rows` and at least `least_bytes`
    in its set number `at`. The last one takes the rest, which may be less.
    """
    if not rows:
        return
    size, longer = divmod(len(rows), count)
    taken: list[Row] = []
    made = held_bytes = 0
    for row in sorted(rows, key=lambda row: _bytes(row[at])):
        taken.append(row)
        held_bytes += _bytes(row[at])
        if len(taken) >= size + (made < longer) and held_bytes >= least_bytes:
            yield _one_row(taken)
            taken = []
            made += 1
            held_bytes = 0
    if taken:
        yield _one_row(taken)


def _one_row(rows: Sequence[Row]) -> Row:
    return tuple(_concatenated(column) for column in zip(*rows, strict=True))


def _concatenated(parts: Iterable[ItemSet | None]) -> ItemSet | None:
    present = [part for part in parts if part is not None]
    if len(present) < 2:
        return present[0] if present else None
    items = tuple(itertools.chain.from_iterable(part.items for part in present))
    return ItemSet(present[0].name, items, present[0].dtype, present[0].shape)


def by_key(item_set: ItemSet | None) -> dict[int, ItemSet]:
    """Split a set by key, keys ascending; items of a key keep their order."""
    return {} if item_set is None else dict(_keyed(item_set))


def _keyed(item_set: ItemSet) -> Iterator[tuple[int, ItemSet]]:
    """Yield each key and its part, see `by_key`."""
    name, dtype, shape = item_set.name, item_set.dtype, item_set.shape
    for key, items in itertools.groupby(sorted(item_set.items, key=_key), _key):
        yield key, ItemSet(name, tuple(items), dtype, shape)


@dataclass(frozen=True, slots=True)
class JoinedRows:
    """Rows of a join, made one after the other, since ``cross`` may make very many.

    A chain of joins is cut before each ``cross``. Within a part, each key has one row. A row that
    has the set after ``cross`` stands for a pair with every row of the earlier parts.

    Attributes:
        earlier: rows of the parts before.
        width: sets of these rows.
        part: rows of the last part, keys ascending.
        by_key: all rows are ordered by the key of the last part, not by the earlier rows first.
        count: number of rows.
    """

    earlier: JoinedRows | list[Row]
    width: int
    part: list[Row]
    by_key: bool
    count: int

    def __iter__(self) -> Iterator[Row]:
        if not self.part:
            return
        if not self.by_key:
            for row in self.earlier:
                for end in self.part:
                    yield (*row, *end)
            return
        absent = (None,) * self.width
        for end in self.part:
            if end[0] is None:
                yield (*absent, *end)
            else:
                for row in self.earlier:
                    yield (*row, *end)


_NESTED_LIMIT = 100
"""Iterators of a join within each other; a chain with more of them is made as a list."""


def joined_rows(sets: Sequence[ItemSet | None], strategies: Sequence[Strategy]) -> JoinedRows:
    """Join keyed sets from left to right (rule 3)."""
    parts = [by_key(item_set) for item_set in sets]
    starts = [0, *(at for at, s in enumerate(strategies, start=1) if s is Strategy.CROSS)]
    found = JoinedRows([], 0, [()], False, 1)  # a row without sets, which the first set extends
    earlier: JoinedRows | list[Row] = [()]
    for nested, (start, end) in enumerate(itertools.pairwise([*starts, len(sets)]), start=1):
        if nested > 1:
            earlier = list(found) if nested % _NESTED_LIMIT == 0 else found
        rows: _Rows = [(key, (part,)) for key, part in parts[start].items()] if found.count else []
        by = strategies[start : end - 1]
        for width, (strategy, right) in enumerate(zip(by, parts[start + 1 : end], strict=True), 1):
            rows = _join(rows, width, strategy, right)
        paired = sum(row[0] is not None for _, row in rows)
        count = found.count * paired + len(rows) - paired
        by_key_first = Strategy.RIGHT in by or Strategy.FULL in by
        found = JoinedRows(earlier, start, [row for _, row in rows], by_key_first, count)
    return found


_Rows: TypeAlias = list[tuple[int, Row]]


def _join(rows: _Rows, width: int, strategy: Strategy, right: dict[int, ItemSet]) -> _Rows:
    """Join rows of `width` sets, each with a key of its own, with one more set, but for `cross`."""
    keep_left = strategy in (Strategy.LEFT, Strategy.FULL)
    result = [(key, (*row, right.get(key))) for key, row in rows if keep_left or key in right]
    if strategy in (Strategy.RIGHT, Strategy.FULL):
        known = {key for key, _ in rows}
        absent = (None,) * width
        result += [(key, (*absent, part)) for key, part in right.items() if key not in known]
        result.sort(key=lambda row: row[0])
    return result


def merged(
    names: Sequence[str], outputs: Sequence[Sequence[ItemSet | None]]
) -> tuple[ItemSet | None, ...]:
    """Merge the outputs of an application's instances (rule 6).

    Args:
        names: names of the sets, by position of the output.
        outputs: for each instance, in instance order, its outputs by position.
    """
    if len(outputs) == 1:
        return tuple([_own(name, s) for name, s in zip(names, outputs[0], strict=True)])
    return tuple(
        _sorted(name, [instance[at] for instance in outputs]) for at, name in enumerate(names)
    )


def _own(name: str, part: ItemSet | None) -> ItemSet | None:
    """Return the result of `_sorted` for a single part; the part itself if it is sorted."""
    if part is None or (part.name == name and len(part.items) == 1):
        return part
    return _sorted(name, (part,))


def _sorted(name: str, parts: Iterable[ItemSet | None]) -> ItemSet | None:
    present = [part for part in parts if part is not None]
    if not present:
        return None
    first = present[0]
    items = first.items
    if len(present) > 1 or len(items) > 1:
        everything = itertools.chain.from_iterable(part.items for part in present)
        items = tuple(sorted(everything, key=_key))
    return ItemSet(name, items, first.dtype, first.shape)
