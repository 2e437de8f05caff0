"""Finding the other nodes, where they are not listed: the contract."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Protocol


class Discovery(Protocol):
    """Finds the other nodes, where they are not listed."""

    def start(
        self,
        name: str,
        resources: Mapping[str, int],
        found: Callable[[str], None],
        wanted: Callable[[], int],
    ) -> None:
        """Tell the others of this node, and report others; returns at once.

        Args:
            name: of this node, its address.
            resources: how many calls it runs at once, by backend.
            found: called with the name of each other node, from any thread, perhaps repeatedly.
            wanted: tells how many nodes the calls of the cluster would keep busy, from any thread.
        """

    def close(self) -> None:
        """This node leaves. May take a while."""


def wanted_nodes(nodes: int, engines: int, free: int, waiting: int) -> int:
    """Return how many nodes like these the calls would keep busy; one at least.

    Args:
        nodes: how many there are.
        engines, free: of all of them, of the backend that has least free ones.
        waiting: calls that wait, on all of them.
    """
    if not nodes or not engines:
        return max(1, nodes)
    return max(1, math.ceil(nodes * (engines - free + waiting) / engines))
