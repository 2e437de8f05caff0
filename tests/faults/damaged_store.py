"""A catalogue on disk, to be damaged."""

from __future__ import annotations

import contextlib
from pathlib import Path

from dandelion.registry import sqlite

from dandelion.catalog import Batch, Catalog, open_catalog
from dandelion.function import CodeObject, FunctionSpec, digest_of

FILE = sqlite.SqliteCatalog.FILE


def function(name: str, data: bytes) -> Batch:
    digest = digest_of(data)
    return Batch([FunctionSpec(name, code=(CodeObject("python", digest),))], blobs={digest: data})


def opened(folder: Path) -> contextlib.closing[Catalog]:
    return contextlib.closing(open_catalog(f"sqlite:{folder}"))


def blobs_in(folder: Path) -> set[Path]:
    return {p.relative_to(folder) for p in (folder / "blobs").rglob("*") if p.is_file()}


def names_in(catalog: Catalog) -> list[str]:
    """Read everything that there is."""
    for record in catalog.records():
        if isinstance(record, FunctionSpec):
            for digest in record.blobs():
                assert digest_of(catalog.blob(digest)) == digest
    return [record.name for record in catalog.records()]
