"""Whether a few launches are faster as a graph or one by one, found out with a function's calls.

A graph spares the host a call of the driver for each launch (3 to 6 us). But after a copy to the
device that needs a copy engine, NVIDIA's driver may begin a graph later than a launch: on one H200
by up to 13 us from 32 KiB on, on another by 7 us, and not after a copy of 1 MiB. So this is
measured where it can decide: with up to `FEW_LAUNCHES`.
"""

from __future__ import annotations

from .device import Handle

FEW_LAUNCHES = 3
CALLS = 16
"""Half of them use the graph."""
_GAIN = 0.98
"""Launches one by one must take so much less, since they take more of the host."""


class GraphTrial:
    """Compares the shortest calls of both kinds.

    Args:
        graph: of the launches.

    Attributes:
        is_over: it is decided.
    """

    def __init__(self, graph: Handle) -> None:
        self._graph = graph
        self._calls = 0
        self._least_ns = [0, 0]
        self.is_over = False

    def next(self, used: Handle | None, took_ns: int) -> Handle | None:
        """Return what the next call uses: the graph, or None for launches one by one.

        Args:
            used: what the last call used.
            took_ns: how long it took.
        """
        kind = int(used is not None)
        self._least_ns[kind] = min(self._least_ns[kind] or took_ns, took_ns)
        self._calls += 1
        if self._calls < CALLS:
            return None if used is not None else self._graph
        self.is_over = True
        launched_ns, replayed_ns = self._least_ns
        return None if launched_ns < _GAIN * replayed_ns else self._graph
