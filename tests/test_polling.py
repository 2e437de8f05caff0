"""How long threads poll, with a clock that the test moves."""

from __future__ import annotations

import os
import socket
import threading
import time

import pytest

from dandelion.engine_process.channel import Channel, Ended
from dandelion.engine_process.messages import Forget, Request, request_channel
from dandelion.polling import Allowance, Polling

LIMIT_US = 1000
LOOK_NS = 2_000
MS = 1_000_000


class Clock:
    """Moves by `LOOK_NS` each time a thread gives way, and as the test says."""

    def __init__(self) -> None:
        self.ns = 10**9
        self.busy_ns = 0
        """How long others keep the processor when a thread gives way."""

    def __call__(self) -> int:
        return self.ns

    def give_way(self) -> None:
        self.ns += LOOK_NS + self.busy_ns


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(time, "monotonic_ns", clock)
    monkeypatch.setattr(os, "sched_yield", clock.give_way)
    return clock


def wait(polling: Polling, clock: Clock, wait_ns: int) -> tuple[int, bool]:
    """Wait for something that comes after so long; gives how long it polled, and if it slept."""
    began_ns = clock.ns
    polls = polling.begin()
    while polls and clock.ns < began_ns + wait_ns:
        polls = polling.again()
    polled_ns = clock.ns - began_ns
    clock.ns = max(clock.ns, began_ns + wait_ns)
    polling.ended()
    return polled_ns, not polls


def test_it_sleeps_at_first_and_polls_longer_while_waits_are_short(clock: Clock) -> None:
    polling = Polling(Allowance(LIMIT_US))
    assert wait(polling, clock, 300_000) == (0, True)
    polled = [wait(polling, clock, 300_000) for _ in range(4)]
    assert [slept for _, slept in polled] == [True, True, True, False]
    assert [ns // 50_000 for ns, _ in polled] == [1, 2, 4, 6]


def test_it_polls_no_longer_than_the_limit(clock: Clock) -> None:
    polling = Polling(Allowance(LIMIT_US))
    for _ in range(10):
        wait(polling, clock, 900_000)
    polled_ns, slept = wait(polling, clock, 50 * MS)
    assert slept
    assert LIMIT_US * 1000 < polled_ns <= LIMIT_US * 1000 + LOOK_NS


def test_it_stops_polling_while_waits_are_long(clock: Clock) -> None:
    polling = Polling(Allowance(LIMIT_US))
    for _ in range(10):
        wait(polling, clock, 900_000)
    polled = [wait(polling, clock, 50 * MS)[0] for _ in range(6)]
    assert polled == sorted(polled, reverse=True)
    assert polled[-1] == 0
    assert wait(polling, clock, 50 * MS) == (0, True)


def test_without_a_limit_it_never_polls(clock: Clock) -> None:
    polling = Polling(Allowance(0))
    for _ in range(5):
        assert wait(polling, clock, 10_000) == (0, True)


def test_it_pauses_while_others_need_the_processor(clock: Clock) -> None:
    polling = Polling(Allowance(LIMIT_US))
    for _ in range(6):
        wait(polling, clock, 400_000)
    assert not wait(polling, clock, 400_000)[1]
    pauses_ns = []
    for _ in range(9):
        clock.busy_ns = 3 * MS
        assert wait(polling, clock, 5 * MS)[1], "the processor was taken away"
        clock.busy_ns = 0
        began_ns = clock.ns
        while wait(polling, clock, 400_000)[1]:
            pass
        pauses_ns.append(clock.ns - began_ns)
    assert pauses_ns == sorted(pauses_ns), "the busier, the longer"
    assert pauses_ns[0] < 60 * MS
    assert 3_100 * MS < pauses_ns[-1] < 3_300 * MS
    clock.ns += 10_000 * MS
    for _ in range(100):
        assert not wait(polling, clock, 400_000)[1]
    clock.busy_ns = 3 * MS
    wait(polling, clock, 5 * MS)
    clock.busy_ns = 0
    began_ns = clock.ns
    while wait(polling, clock, 400_000)[1]:
        pass
    assert clock.ns - began_ns < 60 * MS, "after a quiet time, pauses are short again"


def test_own_work_between_two_looks_is_no_sign_of_others(clock: Clock) -> None:
    polling = Polling(Allowance(3 * LIMIT_US))
    for _ in range(8):
        wait(polling, clock, 2_900_000)
    assert polling.begin()
    clock.ns += 1_600_000
    polling.resume()
    assert polling.again()
    clock.ns += 1_600_000
    polling.resume()
    assert not polling.again(), "the time is over"
    polling.ended()
    clock.ns += 1
    assert polling.begin(), "there is no pause"


def test_it_pauses_while_there_is_work_for_all_processors(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2})
    allowance = Allowance(LIMIT_US)
    polling = Polling(allowance)
    for _ in range(6):
        wait(polling, clock, 400_000)
    allowance.counted(2)
    assert not wait(polling, clock, 400_000)[1], "one processor has nothing to do"
    allowance.counted(3)
    assert wait(polling, clock, 400_000) == (0, True)
    clock.ns += 51 * MS
    assert not wait(polling, clock, 400_000)[1]


def pair() -> tuple[socket.socket, Channel[Request]]:
    ours, theirs = socket.socketpair()
    return ours, request_channel(theirs)


@pytest.mark.parametrize("polls", [False, True])
def test_a_channel_gives_each_message_once(polls: bool) -> None:
    ours, channel = pair()
    polling = Polling(Allowance(10_000 if polls else 0))
    sender: Channel[Request] = request_channel(ours)
    got = []

    def send(number: int) -> None:
        sender.send(Forget(str(number)))

    for number in range(40):
        thread = threading.Thread(target=send, args=(number,))
        thread.start()
        got.append(channel.receive(polling=polling))
        thread.join()
    assert [m.identity for m in got if isinstance(m, Forget)] == [str(n) for n in range(40)]
    sender.close()
    channel.close()


def test_a_channel_ends_while_it_polls() -> None:
    ours, channel = pair()
    polling = taught()
    threading.Timer(0.01, ours.close).start()
    with pytest.raises(Ended):
        channel.receive(polling=polling)
    channel.close()


def taught() -> Polling:
    """A thread's that has learned to poll for 50 ms."""
    polling = Polling(Allowance(50_000))
    polling._window_ns = 50_000_000
    return polling


def test_a_limit_ends_a_wait_that_polls() -> None:
    ours, channel = pair()
    assert channel.receive(0.0, taught()) is None
    ours.close()
    channel.close()
