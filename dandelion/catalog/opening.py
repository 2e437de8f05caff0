"""Opening the catalogue that a URL names."""

from __future__ import annotations

import importlib
from collections.abc import Callable

from dandelion.catalog.contract import Catalog
from dandelion.catalog.memory import MemoryCatalog
from dandelion.errors import BackendUnavailable


def open_catalog(url: str) -> Catalog:
    """Open a catalogue: ``memory:``, or ``SCHEME:PATH`` of a store in ``dandelion.registry``.

    Raises:
        BackendUnavailable: no store has that scheme.
        CatalogCorrupt: the store's files are damaged.
    """
    scheme, _, path = url.partition(":")
    if scheme == "memory":
        return MemoryCatalog()
    try:
        module = importlib.import_module(f"dandelion.registry.{scheme}")
    except ModuleNotFoundError:
        raise BackendUnavailable(f"registry {scheme}", "no such store", "use sqlite:PATH") from None
    opener: Callable[[str], Catalog] | None = getattr(module, "open_catalog", None)
    if opener is None:
        raise BackendUnavailable(f"registry {scheme}", "no such store", "use sqlite:PATH")
    return opener(path)
