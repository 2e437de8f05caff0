"""Waiting for a device: asleep while that is sure to be too short, awake at the end."""

import dataclasses
import time

import pytest
from dandelion.backends.gpu.adaptive_wait import ASLEEP, LONG_NS, AdaptiveWait

LONG = 10 * LONG_NS


@dataclasses.dataclass
class Script:
    """A clock, a sleep and a device, whose calls take what they are told to."""

    now_ns: int = 0
    slept_ns: int = 0
    ends_ns: int = 0

    def perf_counter_ns(self) -> int:
        return self.now_ns

    def sleep(self, seconds: float) -> None:
        assert seconds > 0
        self.slept_ns += round(seconds * 1e9)
        self.now_ns += round(seconds * 1e9)

    def synchronize(self) -> None:
        self.now_ns = max(self.now_ns + 1000, self.ends_ns)

    def call(self, waiting: AdaptiveWait, takes_ns: int) -> tuple[int, int]:
        """Give how long a call took in all, and how much of that was slept."""
        began_ns, self.slept_ns = self.now_ns, 0
        self.ends_ns = began_ns + takes_ns
        waiting.wait(self.synchronize, began_ns)
        return self.now_ns - began_ns, self.slept_ns


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Script:
    made = Script()
    monkeypatch.setattr(time, "perf_counter_ns", made.perf_counter_ns)
    monkeypatch.setattr(time, "sleep", made.sleep)
    return made


def known(script: Script, takes_ns: int) -> AdaptiveWait:
    waiting = AdaptiveWait()
    for _ in range(5):  # two that prepare things, three that tell
        assert script.call(waiting, takes_ns) == (takes_ns, 0)
    return waiting


def test_most_of_a_long_call_is_slept_and_none_is_late(script: Script) -> None:
    waiting = known(script, LONG)
    for _ in range(50):
        took, slept = script.call(waiting, LONG)
        assert took == LONG
        assert slept == pytest.approx(ASLEEP * LONG, rel=0.1)


def test_a_short_call_is_waited_for_awake(script: Script) -> None:
    waiting = known(script, LONG_NS // 2)
    assert [script.call(waiting, LONG_NS // 2)[1] for _ in range(20)] == [0] * 20


def test_the_first_calls_say_nothing(script: Script) -> None:
    """They load code and record graphs; a waiter that slept as long would be late."""
    waiting = AdaptiveWait()
    script.call(waiting, 100 * LONG)
    script.call(waiting, 10 * LONG)
    assert script.call(waiting, LONG) == (LONG, 0)
    assert waiting.least_ns == LONG


def test_who_slept_too_long_looks_again(script: Script) -> None:
    waiting = known(script, LONG)
    took, slept = script.call(waiting, LONG // 10)
    assert took > LONG // 10
    assert slept == pytest.approx(ASLEEP * LONG, rel=0.1)
    for _ in range(3):
        assert script.call(waiting, LONG // 10) == (LONG // 10, 0), "the next are seen awake"
    assert script.call(waiting, LONG // 10)[0] == LONG // 10


def test_calls_that_vary_are_never_late_by_more_than_the_shortest(script: Script) -> None:
    waiting = known(script, LONG)
    late = [script.call(waiting, LONG * (1 + i % 3))[0] - LONG * (1 + i % 3) for i in range(60)]
    assert late == [0] * 60


def test_after_a_surprise_one_long_call_says_nothing(script: Script) -> None:
    waiting = known(script, LONG)
    script.call(waiting, LONG // 10)
    late = 0
    for takes in (LONG, LONG // 5, LONG, LONG // 5, LONG, LONG // 5):
        late += script.call(waiting, takes)[0] - takes
    assert late == 0


def test_a_call_that_becomes_longer_is_slept_longer(script: Script) -> None:
    waiting = known(script, LONG)
    slept = [script.call(waiting, 3 * LONG)[1] for _ in range(40)]
    assert slept == sorted(slept)
    assert slept[-1] == pytest.approx(3 * ASLEEP * LONG, rel=0.1)


def test_time_that_has_passed_is_not_slept_again(script: Script) -> None:
    """Where the device works while it is asked, the call is over when it is waited for."""
    waiting = known(script, LONG)
    began = script.now_ns
    script.now_ns += LONG
    script.slept_ns = script.ends_ns = 0
    waiting.wait(script.synchronize, began)
    assert script.slept_ns == 0
