"""What keeps the log of the catalogue: voters, or a log store, as the settings say."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeAlias

from dandelion.cluster.blob_source import BlobSource
from dandelion.cluster.catalog import ClusterCatalog
from dandelion.cluster.log_driver import LogDriver
from dandelion.cluster.log_file import LogFile
from dandelion.cluster.log_store import LogStore
from dandelion.cluster.replication import Replica
from dandelion.cluster.settings import ClusterSettings
from dandelion.cluster.shared_folder import FolderStore
from dandelion.cluster.store_driver import StoreDriver
from dandelion.cluster.stored_place import StoredPlace
from dandelion.errors import BackendUnavailable, InvalidInput

CatalogLog: TypeAlias = LogDriver | StoreDriver
Post: TypeAlias = Callable[[Callable[[], None]], None]


class LogParts:
    """What the log of one node is made of, before the node starts.

    Args:
        settings: of the cluster.
        folder: of the node's catalogue; None if that is in memory.
        has_records: whether the catalogue has records now.

    Raises:
        CatalogCorrupt, Conflict: see `LogFile` and `StoredPlace`.
        InvalidInput, BackendUnavailable: the log store cannot be used with these settings.
    """

    def __init__(self, settings: ClusterSettings, folder: Path | None, has_records: bool) -> None:
        self._store: LogStore | None = None
        self._file: LogFile | None = None
        if settings.store:
            self._store = opened_store(settings.store, settings.store_options)
            self._place = StoredPlace(folder, has_records)
        else:
            self._file = LogFile(folder, has_records)

    def driver(
        self,
        replica: Callable[[LogFile], Replica],
        catalog: ClusterCatalog,
        source: BlobSource,
        post: Post,
        send: Callable[[str, bytes], None],
    ) -> CatalogLog:
        """Begin to work with the log; the result is to be closed, and closes this."""
        if self._store is not None:
            return StoreDriver(self._store, self._place, catalog, source)
        assert self._file is not None, "there is one or the other"
        return LogDriver(replica(self._file), self._file, catalog, source, post, send)

    def close(self) -> None:
        """Close what no driver has."""
        if self._file is not None:
            self._file.close()


def opened_store(url: str, options: Mapping[str, Mapping[str, str]]) -> LogStore:
    """Open ``folder:PATH``, or the store of a backend, as ``s3:NAME``.

    Args:
        url: of the setting ``cluster_store``.
        options: of backends, by name; ``s3:NAME`` is a store that those of ``s3`` describe.

    Raises:
        InvalidInput: there is no such store, or its options are not valid.
        BackendUnavailable: its library is missing, or its credentials.
    """
    scheme, _, rest = url.partition(":")
    if scheme == "folder":
        return FolderStore(rest)
    hint = "write folder:/PATH, or s3:NAME of a store in the options of s3"
    if not rest or not scheme.isidentifier():
        raise InvalidInput("cluster_store", f"'{url[:200]}' names no store", hint)
    try:
        module = importlib.import_module(f"dandelion.backends.{scheme}.log_store")
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("dandelion."):
            raise InvalidInput("cluster_store", f"no stores are of '{scheme}'", hint) from None
        advice = f"pip install 'dandelion-engine[{scheme}]'"
        raise BackendUnavailable(scheme, f"{error.name} is not installed", advice) from None
    opener: Callable[[str, Mapping[str, str]], LogStore] = module.open_log_store
    return opener(rest, options.get(scheme, {}))
