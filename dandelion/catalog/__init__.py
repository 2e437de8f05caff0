"""The catalogue of registered functions: the contract of every store, and the in-memory one.

The catalogue stores **records** (functions, compositions, libraries), each with a name and versions
that count from 1, and **blobs** (code, weights) named by their SHA-256. A `Batch` is registered
whole or not at all; when `register` returns, it is as durable as the store guarantees. Functions
and compositions share one namespace, libraries have their own.

Durable stores are modules ``dandelion.registry.SCHEME`` with ``open_catalog(url) -> Catalog``.
"""

from dandelion.catalog.checks import (
    check_against,
    check_unused,
    used_blobs,
    users_of,
)
from dandelion.catalog.contract import Catalog
from dandelion.catalog.memory import MemoryCatalog
from dandelion.catalog.nesting import with_uses
from dandelion.catalog.opening import open_catalog
from dandelion.catalog.records import (
    KINDS,
    Batch,
    CatalogState,
    CompositionRecord,
    LibraryRecord,
    Record,
    Removal,
    Slot,
    check_batch,
    kind_of,
    same_but_version,
    slot_of,
    with_version,
)
from dandelion.catalog.view import CatalogView, ReducedView

__all__ = [
    "KINDS",
    "Batch",
    "Catalog",
    "CatalogState",
    "CatalogView",
    "CompositionRecord",
    "LibraryRecord",
    "MemoryCatalog",
    "Record",
    "ReducedView",
    "Removal",
    "Slot",
    "check_against",
    "check_batch",
    "check_unused",
    "kind_of",
    "open_catalog",
    "same_but_version",
    "slot_of",
    "used_blobs",
    "users_of",
    "with_uses",
    "with_version",
]
