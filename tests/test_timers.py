"""Timers against a list that is sorted anew each time."""

import random
import weakref

import pytest

from dandelion.timers import Timer, Timers


@pytest.mark.parametrize("seed", range(5))
def test_values_are_due_in_the_order_of_their_times(seed: int) -> None:
    source = random.Random(seed)
    timers: Timers[int] = Timers()
    known: dict[int, tuple[int, Timer[int]]] = {}
    for number in range(1, 2000):
        due_ns = source.randrange(500)
        known[number] = due_ns, timers.add(due_ns, number)
        if source.random() < 0.7:
            _, timer = known.pop(source.choice(list(known)))
            timers.cancel(timer)
            timers.cancel(timer)
        if source.random() < 0.05:
            now_ns = source.randrange(200)
            expected = sorted((due, one) for one, (due, _) in known.items() if due <= now_ns)
            taken = []
            while (value := timers.take_due(now_ns)) is not None:
                taken.append(value)
                timers.cancel(known.pop(value)[1])
            assert taken == [one for _, one in expected]
        assert len(timers) == len(known)
        assert timers.next_due_ns == min([due for due, _ in known.values()], default=None)


def test_cancelled_timers_drop_their_values_and_take_bounded_memory() -> None:
    timers: Timers[set[int]] = Timers()
    value = {1}
    alive = weakref.ref(value)
    timer = timers.add(10**9, value)
    del value
    timers.cancel(timer)
    assert alive() is None
    for number in range(1000):
        timers.cancel(timers.add(10**9 + number, {number}))
    assert len(timers._heap) < 150
    assert timers.next_due_ns is None
