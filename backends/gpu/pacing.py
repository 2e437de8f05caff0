"""Cutting the launches of a call into parts, so that a call can be stopped between two of them.

A part takes some milliseconds. At most two parts are in the device's queue: part k+1 is launched
once part k-1 is done, so the device always has work, and a call that is stopped leaves the device
after two parts. A call that takes less than two parts is not cut.

How long a part will take is estimated from the steps of the plan. Nothing is known of a step that
never ran: it is launched with few others, and the next part waits for it. Afterwards each measured
part corrects the estimates of its steps: at once when it took less, slowly when it took more, since
a device that is shared and a host that is busy only make it longer.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence

from .device import Device, Handle

PART_NS = 3_000_000
"""How long a part should take."""
BRIEF_PARTS = 2
"""A call that takes no longer than this many parts is not cut."""
_LEAST_STEP_NS = 1000.0
_UNKNOWN_STEPS = 16  # of a part, at most
_FASTER, _SLOWER = 0.25, 1.5  # how far one measurement changes an estimate

Part = Sequence[int]
"""Indices of the steps that are launched together, in order."""


class StepTimes:
    """Estimates how long each step of a plan takes on the device.

    Args:
        count: of the plan's steps.
        part_ns: how long a part should take.
    """

    def __init__(self, count: int, part_ns: int) -> None:
        self.part_ns = part_ns
        self._ns = [0.0] * count  # 0 is unknown
        self._unknown_ns = float(part_ns)

    def cut(self, order: Iterable[int]) -> Iterator[list[int]]:
        """Cut steps into parts; what was measured since the last part counts for the next one."""
        part: list[int] = []
        expected_ns = 0.0
        for index in order:
            step_ns = self.expected_ns(index)
            if part and expected_ns + step_ns > self.part_ns:
                yield part
                part, expected_ns = [], 0.0
                step_ns = self.expected_ns(index)
            part.append(index)
            expected_ns += step_ns
        if part:
            yield part

    def expected_ns(self, index: int) -> float:
        """Estimate how long a step takes."""
        return self._ns[index] or self._unknown_ns

    def is_known(self, part: Part) -> bool:
        """Tell whether all steps of a part were measured."""
        return all(self._ns[index] for index in part)

    def measured(self, part: Part, took_ns: int) -> None:
        """Correct the estimates of a part's steps."""
        times = [self._ns[index] for index in part]
        expected_ns = sum(times)
        unknown = times.count(0.0)
        if unknown:
            each_ns = max((took_ns - expected_ns) / unknown, _LEAST_STEP_NS)
            for index in part:
                self._ns[index] = self._ns[index] or each_ns
            least_ns = self.part_ns / _UNKNOWN_STEPS
            self._unknown_ns = min(max(2 * each_ns, least_ns), float(self.part_ns))
            return
        factor = min(max(took_ns / expected_ns, _FASTER), _SLOWER)
        for index in set(part):
            self._ns[index] = max(self._ns[index] * factor, _LEAST_STEP_NS)


class Pacer:
    """Launches the parts of one call and measures them.

    Args:
        device: with the copies of the call in its queue.
        times: estimates that the measurements correct.
        check: called before each part; raises if the call must end.

    Attributes:
        took_ns: of each part.
    """

    def __init__(self, device: Device, times: StepTimes, check: Callable[[], None]) -> None:
        self.took_ns: list[int] = []
        self._device = device
        self._times = times
        self._check = check
        self._ahead = 1 if device.abilities.asynchronous else 0
        self._last_ns = time.perf_counter_ns()
        self._queue: deque[tuple[Handle | None, Part, float]] = deque([(device.mark(), (), 1.0)])

    def launch(self, part: Part, steps: Sequence[Handle]) -> None:
        """Launch a part step by step, when the part before the last one is done."""
        self._check()
        self._device.launch([steps[index] for index in part])
        self._launched(part, self._ahead if self._times.is_known(part) else 0, 1.0)

    def replay(self, part: Part, graph: Handle, speedup: float = 1.0) -> None:
        """Launch the graph of a part, when the part before the last one is done.

        Args:
            part: its steps.
            graph: of them.
            speedup: how much less time it is expected to take than one step after the other.
        """
        self._check()
        self._device.replay(graph)
        self._launched(part, self._ahead, speedup)

    def finish(self) -> None:
        """Wait until all parts are done."""
        self._wait(0)

    def _launched(self, part: Part, ahead: int, speedup: float) -> None:
        self._queue.append((self._device.mark(), part, speedup))
        self._wait(ahead)

    def _wait(self, left: int) -> None:
        while len(self._queue) > left:
            mark, part, speedup = self._queue.popleft()
            self._device.wait(mark)
            now_ns = time.perf_counter_ns()
            if part:
                took_ns = now_ns - self._last_ns
                self.took_ns.append(took_ns)
                self._times.measured(part, round(took_ns * speedup))
            self._last_ns = now_ns
