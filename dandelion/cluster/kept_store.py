"""The store of asynchronous invocations of a node in a cluster: what is in it, a majority has."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as Late

from dandelion.asynchronous.records import KeptRecord
from dandelion.asynchronous.store import KeptStore, Part, Put, StoreStep
from dandelion.cluster.kept_followers import Entry
from dandelion.data import Bytes
from dandelion.errors import CatalogUnavailable, DandelionError

GIVE_UP_S = 5.0
"""How long a new invocation waits for a majority before it is refused."""
CLOSING_S = 1.0

Writes = Sequence[Entry]


class ReplicatedKeptStore(KeptStore):
    """Writes are done when more than half of the voters have them.

    A new invocation that cannot be copied is refused. All other steps wait: an end that only this
    node knows could be another one elsewhere.

    Args:
        inner: the node's own store.
        begin: begins to write steps, from any thread; gives what is to be waited for.
        give_up: is called with steps and entries that failed, from any thread; it drops what is new
            in them, since voters may have it.
        closed: called at the end.
    """

    is_durable = True

    def __init__(
        self,
        inner: KeptStore,
        begin: Callable[[Sequence[StoreStep]], Future[Writes]],
        give_up: Callable[[Sequence[StoreStep], Writes], None],
        closed: Callable[[], None],
    ) -> None:
        self.inner = inner
        self._begin = begin
        self._give_up = give_up
        self._closed = closed
        self._is_closing = False

    def load(self) -> list[KeptRecord]:
        return []  # the node goes on with them when a majority agrees that no other node does

    def write(self, steps: Sequence[StoreStep]) -> None:
        if not steps:
            return
        began_s = time.monotonic()
        entries = self._begin(steps).result()
        is_new = any(isinstance(step, Put) and step.part is Part.INPUTS for step in steps)
        try:
            for entry in entries:
                self._wait(entry.done, began_s, is_new)
        except DandelionError:
            self._give_up(steps, entries)
            raise

    def _wait(self, one: Future[None], began_s: float, is_new: bool) -> None:
        while True:
            try:
                return one.result(0.1)
            except Late:
                limit_s = CLOSING_S if self._is_closing else GIVE_UP_S
                over = time.monotonic() - began_s > limit_s
                if over and (is_new or self._is_closing):
                    reason = "less than half of the voters have a copy of the invocation"
                    remedy = "try another node, or again when they are connected"
                    raise CatalogUnavailable("cluster", reason, remedy) from None

    def read(self, id_: str, part: Part) -> Bytes:
        return self.inner.read(id_, part)

    def closing(self) -> None:
        self._is_closing = True

    def close(self) -> None:
        self._closed()
        self.inner.close()
