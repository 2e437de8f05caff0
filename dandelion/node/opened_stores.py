"""What a node keeps on disk or elsewhere: the catalogue, and asynchronous invocations."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from dandelion.asynchronous.store import KeptStore, open_kept_store
from dandelion.catalog import Catalog, open_catalog
from dandelion.node.attachment import ClusterPart
from dandelion.node.closing import close_safely


@dataclass(frozen=True, slots=True)
class OpenedStores:
    """Both stores, open, until they are closed."""

    catalog: Catalog
    kept: KeptStore

    @staticmethod
    def open(
        url: str, cluster: ClusterPart | None, post: Callable[[Callable[[], None]], None]
    ) -> OpenedStores:
        """Open the stores of a node; one that cannot be opened leaves nothing open.

        Args:
            url: of the catalogue.
            cluster: of the node; it wraps both.
            post: has something done on the node's loop.

        Raises:
            InvalidInput, CatalogCorrupt, CatalogUnavailable, Conflict, DiskFull: see `Node`.
        """
        catalog = _opened_catalog(url, cluster, post)
        try:
            kept = open_kept_store(url)
            return OpenedStores(catalog, kept if cluster is None else cluster.wrap_store(kept))
        except BaseException:
            catalog.close()
            if cluster is not None:
                cluster.close()
            raise

    def close(self, cluster: ClusterPart | None) -> None:
        """Close both, and the cluster that wraps them; for a node that could not be made."""
        if cluster is not None:
            close_safely(cluster.close)
        close_safely(self.kept.close)
        close_safely(self.catalog.close)


def _opened_catalog(
    url: str, cluster: ClusterPart | None, post: Callable[[Callable[[], None]], None]
) -> Catalog:
    opened = open_catalog(url)
    if cluster is None:
        return opened
    try:
        return cluster.wrap(opened, url, post)
    except BaseException:
        opened.close()
        cluster.close()
        raise
