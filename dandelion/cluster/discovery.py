"""Finding the other nodes, where they are not listed: the contract."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol


class Discovery(Protocol):
    """Finds the other nodes, where they are not listed."""

    def start(self, name: str, resources: Mapping[str, int], found: Callable[[str], None]) -> None:
        """Tell the others of this node, and report others; returns at once.

        Args:
            name: of this node, its address.
            resources: how many calls it runs at once, by backend.
            found: called with the name of each other node, from any thread, perhaps repeatedly.
        """

    def close(self) -> None:
        """This node leaves. May take a while."""
