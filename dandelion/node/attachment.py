"""What can be attached to a node: a cluster. A node without one has none of this on any path."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from dandelion.capacity import ClusterInfo
from dandelion.catalog import Catalog, Record
from dandelion.executors import Surroundings
from dandelion.function import Limits
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
    """

    runtime: Runtime
    around: Surroundings
    spaces: Spaces
    caps: Limits
    removed: Callable[[list[Record]], None]


class ClusterPart(Protocol):
    """A cluster, as a node sees it; see `dandelion.cluster.Cluster`."""

    def wrap(
        self, catalog: Catalog, url: str, post: Callable[[Callable[[], None]], None]
    ) -> Catalog:
        """Give the catalogue of a node that is in the cluster. Called once, before the start.

        Args:
            catalog: what the node opened; it is closed with the result.
            url: from which it was opened.
            post: has something done on the node's loop.
        """

    def start(self, parts: NodeParts) -> None:
        """Take part in the cluster; on the node's loop."""

    def close(self) -> None:
        """Leave the cluster, and wait for calls of others for a while. Not on the loop."""

    def info(self) -> ClusterInfo:
        """Tell what is known; on the loop."""

    def check_acknowledges(self) -> None:
        """Refuse to promise anything durable while only a minority is seen; from any thread.

        Raises:
            CatalogUnavailable: that is so.
        """
