"""The table of connections, with connections and a clock that tests make."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dandelion.frontend.admission import (
    LINGER_S,
    SWEEP_LIMIT,
    ConnectionTable,
    Limits,
    Peer,
    Wait,
)

LIMITS = Limits(connections=4, per_peer=3, head_s=10, idle_s=75, moving_s=20, rate_bytes=100)


class Made:
    """A connection that records what was done to it."""

    def __init__(self, address: str = "192.0.2.1") -> None:
        self.address = address
        self.wait: Wait | None = None
        self.since = 0.0
        self.mark = 0
        self.peer: Peer | None = None
        self.bytes = 0
        self.is_blocked = False
        self.ended = ""

    def moved(self) -> int:
        return self.bytes

    def blocked(self) -> bool:
        return self.is_blocked

    def expire(self) -> None:
        self.ended = "expired"

    def abort(self) -> None:
        self.ended = "aborted"


def admitted(table: ConnectionTable, address: str = "192.0.2.1", now: float = 0.0) -> Made:
    made = Made(address)
    assert table.admit(made, now)
    return made


def endings(*made: Made) -> list[str]:
    return [m.ended for m in made]


@pytest.mark.parametrize(
    ("wait", "seconds"), [(Wait.LINGER, LINGER_S), (Wait.HEAD, 10), (Wait.IDLE, 75)]
)
def test_waiting_ends(wait: Wait, seconds: float) -> None:
    table = ConnectionTable(LIMITS)
    made = admitted(table)
    table.enter(made, wait, 1.0)
    table.sweep(0.9 + seconds)
    assert endings(made) == [""]
    table.sweep(1.0 + seconds)
    assert endings(made) == ["expired"]
    assert table.count == 1  # until it is closed
    table.forget(made)
    table.forget(made)
    assert table.count == 0


def test_a_request_under_way_is_not_waited_for() -> None:
    table = ConnectionTable(LIMITS)
    made = admitted(table)
    table.enter(made, None, 1.0)
    table.sweep(1e6)
    assert not made.ended


@pytest.mark.parametrize("wait", [Wait.BODY, Wait.RESPONSE])
def test_what_moves_may_take_its_time(wait: Wait) -> None:
    table = ConnectionTable(LIMITS)
    steady, slow, blocked = admitted(table), admitted(table), admitted(table)
    for made in (steady, slow, blocked):
        table.enter(made, wait, 0.0)
    blocked.is_blocked = True
    for turn in range(1, 6):
        steady.bytes += 2000
        slow.bytes += 1999
        table.sweep(20.0 * turn)
        assert (steady.ended, slow.ended, blocked.ended) == ("", "expired", "")


def test_without_a_rate_any_byte_will_do() -> None:
    table = ConnectionTable(Limits(4, 3, 10, 75, 20, 0))
    drip, dead = admitted(table), admitted(table)
    for made in (drip, dead):
        table.enter(made, Wait.BODY, 0.0)
    drip.bytes += 1
    table.sweep(20.0)
    assert (drip.ended, dead.ended) == ("", "expired")


def test_a_sweep_is_bounded() -> None:
    many = SWEEP_LIMIT + 10
    table = ConnectionTable(Limits(many, many, 10, 75, 20, 100))
    made = [admitted(table) for _ in range(many)]
    table.sweep(11.0)
    assert [m.ended for m in made] == ["expired"] * SWEEP_LIMIT + [""] * 10
    table.sweep(11.0)
    assert all(m.ended for m in made)


def test_the_longest_silent_makes_place_in_the_order_of_what_is_lost() -> None:
    table = ConnectionTable(Limits(5, 5, 10, 75, 20, 100))
    made = {wait: admitted(table) for wait in (Wait.RESPONSE, Wait.BODY, Wait.IDLE, Wait.HEAD)}
    busy = admitted(table)
    table.enter(busy, None, 0.0)
    for wait, connection in made.items():
        table.enter(connection, wait, 0.0)
    for order, wait in enumerate((Wait.HEAD, Wait.IDLE, Wait.BODY, Wait.RESPONSE)):
        newcomer = admitted(table, now=2.0)
        assert made[wait].ended == "aborted"
        assert sum(1 for m in made.values() if m.ended) == order + 1
        assert table.count == 5
        table.enter(newcomer, None, 2.0)
    surplus = Made()
    assert not table.admit(surplus, 3.0)
    assert admitted(table, now=3.0)  # in the place of the surplus one, which has sent nothing
    assert surplus.ended == "aborted"
    assert not busy.ended


def test_connections_with_progress_stay_admitted() -> None:
    table = ConnectionTable(LIMITS)
    steady, fresh, slow = admitted(table), admitted(table), admitted(table)
    for made, since in ((steady, 0.0), (slow, 0.0), (fresh, 4.5)):
        table.enter(made, Wait.BODY, since)
    steady.bytes = 500
    admitted(table, now=5.0)
    assert (steady.ended, slow.ended, fresh.ended) == ("", "aborted", "")


def test_one_peer_takes_no_places_of_others() -> None:
    table = ConnectionTable(LIMITS)
    other = admitted(table, "192.0.2.9")
    mine = [admitted(table) for _ in range(10)]
    assert [m.ended for m in mine] == ["aborted"] * 7 + [""] * 3
    assert endings(other) == [""]
    admitted(table, "192.0.2.10")  # now too many in total: the one idle for longest is closed
    assert endings(other) == ["aborted"]
    assert table.count == 4


def test_a_place_is_handed_on() -> None:
    table = ConnectionTable(LIMITS)
    old, new = admitted(table), Made()
    table.enter(old, None, 1.0)
    table.replace(old, new, 2.0)
    assert (new.wait, new.since, table.count) == (Wait.HEAD, 2.0, 1)
    table.forget(old)
    assert table.count == 1
    table.forget(new)
    assert table.count == 0


def test_addresses_of_one_network_are_one_peer() -> None:
    table = ConnectionTable(LIMITS)
    mine = [admitted(table, f"2001:db8::{number:x}") for number in range(4)]
    assert [m.ended for m in mine] == ["aborted", "", "", ""]
    table = ConnectionTable(LIMITS)
    mapped = [admitted(table, f"::ffff:192.0.2.{number}") for number in range(4)]
    assert not any(m.ended for m in mapped)


steps = st.lists(
    st.tuples(
        st.sampled_from(["open", "close", "sweep", "busy", *Wait]),
        st.integers(0, 7),
        st.floats(0, 30),
    ),
    max_size=60,
)


@given(steps)
def test_counts_and_queues_agree_whatever_happens(drawn: list[tuple[object, int, float]]) -> None:
    table = ConnectionTable(LIMITS)
    made: list[Made] = []
    now = 0.0
    for what, index, seconds in drawn:
        now += seconds
        if what == "open":
            made.append(Made(f"192.0.2.{index % 3}"))
            table.admit(made[-1], now)
        elif what == "sweep":
            table.sweep(now)
        elif made:
            chosen = made[index % len(made)]
            if what == "close":
                table.forget(chosen)
            else:
                table.enter(chosen, what if isinstance(what, Wait) else None, now)
        held = [m for m in made if m.peer is not None]
        assert table.count == len(held)
        assert not [m for m in held if m.ended == "aborted"]
        waiting = [m for m in held if m.wait is not None]
        assert len(waiting) <= LIMITS.connections + 1
    for one in made:
        table.forget(one)
    assert table.count == 0
