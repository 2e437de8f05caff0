"""Places of responses that stay open, such as those of followers of logs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from dandelion.errors import Overloaded

PLACES = 96
"""Of each kind and frontend: a tenant gets 64 of them while no other has any."""


class StreamPlaces:
    """The places of one kind. For one event loop.

    A tenant may have twice as many as are free. So what a tenant can take leaves half as many to
    the others.

    Args:
        what: is counted, for errors, such as ``followers of logs``.
        count: of places.
    """

    def __init__(self, what: str, count: int = PLACES) -> None:
        self._what = what
        self._free = count
        self._taken: Counter[str] = Counter()

    def check(self, tenant: str) -> None:
        """Refuse a tenant that has as many as it may have now.

        Raises:
            Overloaded: it does.
        """
        taken = self._taken[tenant]
        if taken >= 2 * self._free:
            raise Overloaded(taken, taken, self._what, f"tenant '{tenant}'")

    @contextmanager
    def taken(self, tenant: str) -> Iterator[None]:
        """Take a place, and give it back at the end."""
        self._free -= 1
        self._taken[tenant] += 1
        try:
            yield
        finally:
            self._free += 1
            self._taken[tenant] -= 1
            if not self._taken[tenant]:
                del self._taken[tenant]
