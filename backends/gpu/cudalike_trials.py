"""Which of several ways to compute an operation is the fastest on this device.

A library proposes ways in the order of what it expects; what is fastest is measured. Each way is
launched on memory of its own, which is zeroed, then some times within a graph, as in the calls to
come. So a way that cannot be captured is not chosen. The answer is kept beside compiled code, under
the digest of all that it depends on, so it is measured once for a device, not once for a process.

Without room for the memory, or time, or if nothing can be launched, the first way is taken and
nothing kept. A call whose operations are measured gives half of its time to all of them.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from dandelion.errors import DeviceFault, DeviceFull

from .calls import Calls, Way
from .cudalike_code import Do
from .cudalike_graphs import Graphs
from .layout import aligned
from .measurements import Measurements

ROOM_BYTES = 2 << 30
"""Most memory for trials of one operation."""
LIMIT_S = 2.0
"""After so long no further way of an operation is tried."""
_GRAPH_S = 1e-3
_MOST_LAUNCHES = 16
_REPLAYS = 3


class DeviceTrials:
    """`Trials` on one device, used by its thread, between calls.

    Args:
        measurements: keep answers.
        calls: of the driver.
        stream: of the device.
        captures: on it.
        do: gives the result of a call, or raises.
        undo: calls, and once more if it failed.
        until: gives the time, of `time.monotonic`, until which may be measured.
    """

    def __init__(
        self,
        measurements: Measurements,
        calls: Calls,
        stream: Any,
        captures: Graphs,
        do: Do,
        undo: Callable[..., None],
        until: Callable[[], float],
    ) -> None:
        self._measurements = measurements
        self._calls = calls
        self._stream = stream
        self._captures = captures
        self._do = do
        self._undo = undo
        self._until = until

    def left_s(self) -> float:
        """Seconds that measuring may still take; see `Trials`."""
        return self._until() - time.monotonic()

    def known(self, key: str) -> int | None:
        """Give the number of the fastest way, if it was measured before; see `Trials`."""
        kept = self._measurements.get(key)
        return int(kept) if kept is not None and kept.isdigit() else None

    def fastest(self, key: str, sizes: Sequence[int], ways: Mapping[int, Way]) -> int:
        """Measure which way is the fastest; see `Trials`."""
        first = next(iter(ways))
        if self.left_s() <= 0:
            return first
        if len(ways) > 1:
            with self._room(sizes) as addresses:
                times = self._times(ways, addresses) if addresses else {}
            if not times:
                return first
            first = min(times, key=times.__getitem__)
        self._measurements.put(key, str(first).encode())
        return first

    @contextlib.contextmanager
    def _room(self, sizes: Sequence[int]) -> Iterator[list[int]]:
        """Zeroed memory of these sizes; nothing if there is no room."""
        total = sum(map(aligned, sizes))
        answer = self._calls.allocate(max(total, 1)) if total <= ROOM_BYTES else (1,)
        if answer[0]:
            yield []
            return
        pointer = answer[1]
        try:
            addresses, end = [], int(pointer)
            for size in sizes:
                addresses.append(end)
                end += aligned(size)
            filled = self._calls.fill(pointer, 0, total, self._stream)[0]
            yield [] if filled else addresses
        finally:
            self._calls.synchronize(self._stream)
            self._undo(self._calls.free, pointer)

    def _times(self, ways: Mapping[int, Way], addresses: Sequence[int]) -> dict[int, float]:
        """Seconds of each way that works, by its number."""
        found: dict[int, float] = {}
        until = time.monotonic() + min(LIMIT_S, self.left_s())
        for number, way in ways.items():
            if found and time.monotonic() > until:
                break
            with contextlib.suppress(DeviceFault, DeviceFull):
                found[number] = self._time(lambda way=way: way(addresses))  # type: ignore[misc]  # a bound default
        return found

    def _time(self, launch: Callable[[], None]) -> float:
        launch()  # loads its kernels
        self._wait()
        single = self._took(launch)
        count = max(1, min(int(_GRAPH_S / max(single, 1e-9)), _MOST_LAUNCHES))
        executable = self._graph(launch, count)
        try:
            return (
                min(self._took(lambda: self._replay(executable)) for _ in range(_REPLAYS)) / count
            )
        finally:
            self._undo(self._calls.destroy_executable, executable)

    def _graph(self, launch: Callable[[], None], count: int) -> Any:
        def repeated() -> None:
            for _ in range(count):
                launch()

        graph = self._captures.chain(repeated)
        try:
            return self._do("trial", self._calls.instantiate(graph))
        finally:
            self._undo(self._calls.destroy_graph, graph)

    def _replay(self, executable: Any) -> None:
        self._do("trial", self._calls.replay(executable, self._stream))

    def _took(self, work: Callable[[], None]) -> float:
        start = time.perf_counter()
        work()
        self._wait()
        return time.perf_counter() - start

    def _wait(self) -> None:
        self._do("trial", self._calls.synchronize(self._stream))
