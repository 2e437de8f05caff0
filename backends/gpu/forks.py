"""Forks: which launches of a graph may run side by side."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Forks:
    """The order of a graph's launches. Those of one lane run in order, and each one also waits for
    launches of other lanes; nothing else is ordered.

    Attributes:
        lanes: of each launch, counted from 0; the first launch has lane 0.
        waits: for each launch, the places of earlier launches in other lanes that it waits for.
    """

    lanes: tuple[int, ...]
    waits: tuple[tuple[int, ...], ...]

    def fit(self, launches: int, lanes: int) -> bool:
        """Tell whether they are forks of so many launches over at most so many lanes."""
        return (
            launches == len(self.lanes) == len(self.waits)
            and all(0 <= lane < lanes for lane in self.lanes)
            and self.lanes[:1] in ((), (0,))
            and all(0 <= wait < place for place, ws in enumerate(self.waits) for wait in ws)
        )

    def before(self) -> list[set[int]]:
        """List for each launch the places of those that it directly follows, in its lane too."""
        found: list[set[int]] = []
        last: dict[int, int] = {}  # launch of each lane
        for place, (lane, waits) in enumerate(zip(self.lanes, self.waits, strict=True)):
            found.append({*waits, *([last[lane]] if lane in last else [])})
            last[lane] = place
        return found

    def last_first(self) -> list[int]:
        """Order the launches as they may run one by one, of those that may run the last first.

        A device for tests runs them so: what a missing dependency could spoil is spoilt.
        """
        before = self.before()
        left = list(range(len(before)))
        order: list[int] = []
        while left:
            ready = max(place for place in left if before[place].issubset(order))
            left.remove(ready)
            order.append(ready)
        return order
