"""What can be attached to a node: a cluster. A node without one has none of this on any path."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from dandelion.asynchronous.records import KeptPage, KeptState, KeptView, Watched
from dandelion.asynchronous.store import KeptStore
from dandelion.capacity import ClusterInfo
from dandelion.catalog import Catalog, Record
from dandelion.executors import Surroundings
from dandelion.function import Limits
from dandelion.node.kept_service import KeptOutcome, KeptService
from dandelion.node.runtime import Runtime
from dandelion.node.spaces import Spaces


@dataclass(frozen=True, slots=True)
class NodeParts:
    """The parts of a node that a cluster works with, on the node's loop.

    Attributes:
        runtime: of the node.
        around: what its executors share.
        spaces: its tenants.
        caps: the largest limits of functions here.
        removed: has the node forget records that are no longer registered; from any thread.
        kept: its asynchronous invocations.
        changed: has those who wait for the node to be ready ask again.
    """

    runtime: Runtime
    around: Surroundings
    spaces: Spaces
    caps: Limits
    removed: Callable[[list[Record]], None]
    kept: KeptService
    changed: Callable[[], None]


class KeptElsewhere(Protocol):
    """The asynchronous invocations of other nodes; on the node's loop.

    Methods that give None have found that this node runs the invocation by now. Besides what the
    same methods of this node raise, they raise `CatalogUnavailable`: no node runs it now, or this
    node sees too few others to know.
    """

    async def earlier(self, tenant: str, key: str, digest: str) -> str | None:
        """Return the id of an invocation with an idempotency key; None if none is known.

        Raises:
            KeyReused: its request was different.
        """

    async def watch(
        self, id_: str, tenant: str, *, after: str, wait_s: float, end: bool
    ) -> Watched | None:
        """See `dandelion.node.kept_views.KeptViews.watch`."""

    async def result(self, id_: str, tenant: str) -> KeptOutcome | None:
        """See `dandelion.node.kept_service.KeptService.result`."""

    async def cancel(self, id_: str, tenant: str) -> KeptView | None:
        """See `dandelion.node.kept_service.KeptService.cancel`."""

    async def list_all(
        self, own: KeptPage, tenant: str, state: KeptState | None, after: str, limit: int
    ) -> KeptPage:
        """Add what other nodes list to a page of this one."""


class ClusterPart(Protocol):
    """A cluster, as a node sees it; see `dandelion.cluster.Cluster`."""

    @property
    def elsewhere(self) -> KeptElsewhere:
        """Asynchronous invocations that other nodes run."""

    def wrap(
        self, catalog: Catalog, url: str, post: Callable[[Callable[[], None]], None]
    ) -> Catalog:
        """Give the catalogue of a node that is in the cluster. Called once, before the start.

        Args:
            catalog: what the node opened; it is closed with the result.
            url: from which it was opened.
            post: has something done on the node's loop.
        """

    def wrap_store(self, store: KeptStore) -> KeptStore:
        """Give the store of asynchronous invocations of a node that is in the cluster.

        Called once, after `wrap`. The store is closed with the result.
        """

    def start(self, parts: NodeParts) -> None:
        """Take part in the cluster; on the node's loop."""

    def is_current(self) -> bool:
        """Whether this node has what was registered before its start; from any thread."""

    def close(self) -> None:
        """Leave the cluster, and wait for calls of others for a while. Not on the loop."""

    def info(self) -> ClusterInfo:
        """Tell what is known; on the loop."""

    def check_acknowledges(self) -> None:
        """Refuse to promise anything durable while only a minority is seen; from any thread.

        Raises:
            CatalogUnavailable: that is so.
        """
