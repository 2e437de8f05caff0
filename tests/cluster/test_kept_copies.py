"""Copies of asynchronous invocations: ballots, versions, what a majority knows."""

from __future__ import annotations

import random

from dandelion.asynchronous.records import Ballot, KeptMark, KeptRecord, KeptRequest, KeptState
from dandelion.cluster.kept_copies import KeptCopies, data_part, first_ballot, mark_of, newest

JOURNAL = "a:1#life#1"
FIRST: Ballot = (0, "a:1#life")
SECOND: Ballot = (1, "b:1#life")


def record(id_: str, ballot: Ballot, step: int, **given: object) -> KeptRecord:
    mark = KeptMark(JOURNAL, ballot, step, "data")
    request = KeptRequest(name="work", key=f"key {id_}")
    return KeptRecord(id=id_, tenant="t", request=request, mark=mark, **given)  # type: ignore[arg-type]


def test_a_promise_refuses_lower_ballots() -> None:
    copies = KeptCopies()
    assert copies.ballot(JOURNAL) == first_ballot(JOURNAL) == FIRST
    assert copies.accept(JOURNAL, FIRST)
    assert not copies.prepare(JOURNAL, FIRST)
    assert copies.prepare(JOURNAL, SECOND)
    assert not copies.accept(JOURNAL, FIRST)
    assert not copies.prepare(JOURNAL, (1, "a:1#life"))
    assert copies.accept(JOURNAL, SECOND)
    assert copies.prepare(JOURNAL, (1, "c:1#life"))


def test_older_versions_and_dropped_records_do_not_come_back() -> None:
    copies = KeptCopies()
    assert copies.put(record("x", FIRST, 2))
    assert not copies.put(record("x", FIRST, 2))
    assert not copies.put(record("x", FIRST, 1))
    assert copies.put(record("x", SECOND, 1))
    assert not copies.drop(JOURNAL, "x", (FIRST, 9))
    assert copies.with_key("t", "key x") is not None
    assert copies.with_key("other", "key x") is None
    assert copies.drop(JOURNAL, "x", (SECOND, 2))
    assert not copies.put(record("x", SECOND, 1))
    assert (copies.records, list(copies.journals())) == ({}, [])
    assert copies.put(record("x", SECOND, 3))


def test_what_lacks_is_found_with_its_data() -> None:
    holder, other = KeptCopies(), KeptCopies()
    for id_ in "abc":
        holder.put(record(id_, SECOND, 5))
    other.put(record("a", SECOND, 5))
    other.put(record("b", FIRST, 5))
    other.put(record("d", FIRST, 1))
    offered = holder.offer(JOURNAL)
    assert other.lacks(offered, other.room(JOURNAL, ())) == ({"b": False, "c": True}, 0)
    assert other.gone(JOURNAL, offered) == {"d": (FIRST, 1)}


def test_a_majority_gives_the_newest_version() -> None:
    ended = record("x", FIRST, 2, state=KeptState.SUCCEEDED)
    promises = [((record("x", FIRST, 1), record("y", FIRST, 3)), {}), ((ended,), {"y": (FIRST, 4)})]
    assert newest(promises) == [ended]
    assert data_part(ended) is not data_part(record("x", FIRST, 1))


def test_no_two_holders_have_a_majority() -> None:
    """Two holders write ends of one invocation in any order; at most one end is acknowledged."""
    for seed in range(300):
        chance = random.Random(seed)
        voters = [KeptCopies() for _ in range(3)]
        for voter in voters:
            voter.accept(JOURNAL, FIRST)
            voter.put(record("x", FIRST, 1))
        acknowledged: dict[str, int] = {"first": 0, "second": 0}
        promises: list[KeptCopies] = []
        second: KeptRecord | None = None
        steps = [("first", v) for v in voters] + [("prepare", v) for v in voters]
        chance.shuffle(steps)
        steps += [("second", v) for v in chance.sample(voters, 3)]
        chance.shuffle(late := [step for step in steps if step[0] == "first"])
        for who, voter in [*steps, *late]:
            if who == "prepare":
                if voter.prepare(JOURNAL, SECOND) and len(promises) < 2:
                    promises.append(voter)
                    if len(promises) == 2:
                        [found] = newest((list(p.records.values()), {}) for p in promises)
                        text = "first" if found.state.has_ended else "second"
                        second = record("x", SECOND, 1, state=KeptState.SUCCEEDED, digest=text)
            elif who == "first" and voter.accept(JOURNAL, FIRST):
                done = record("x", FIRST, 2, state=KeptState.SUCCEEDED, digest="first")
                acknowledged["first"] += voter.put(done)
            elif who == "second" and second is not None and voter.accept(JOURNAL, SECOND):
                acknowledged["second"] += voter.put(second)
        assert second is not None
        assert acknowledged["second"] >= 2
        if acknowledged["first"] >= 2:
            assert second.digest == "first", seed
        kept = {mark_of(voter.records["x"]).version for voter in voters}
        assert kept == {(SECOND, 1)}
