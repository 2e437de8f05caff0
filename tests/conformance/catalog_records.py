"""Records for tests of catalogues."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from dandelion.catalog import (
    Batch,
    Catalog,
    CompositionRecord,
    LibraryRecord,
    open_catalog,
)
from dandelion.data import Bytes, SetSpec
from dandelion.function import CodeObject, Digest, FunctionSpec, digest_of

BIG = bytes(range(256)) * 4096  # 1 MiB: mapped, not read


@contextlib.contextmanager
def opened(folder: Path) -> Iterator[Catalog]:
    with contextlib.closing(open_catalog(f"sqlite:{folder}")) as catalog:
        yield catalog


def a_function(name: str = "F", *codes: bytes, **fields: object) -> Batch:
    """A function with code objects, and their blobs."""
    blobs: dict[Digest, Bytes] = {digest_of(c): c for c in codes or (name.encode(),)}
    code = tuple(CodeObject("python", main=d) for d in blobs)
    spec = FunctionSpec(name, (SetSpec("a"),), (SetSpec("b", "float32", (-1,)),), code=code)
    for field, value in fields.items():
        spec = type(spec)(**{f: getattr(spec, f) for f in spec.__struct_fields__} | {field: value})
    return Batch(functions=[spec], blobs=blobs)


def a_composition(name: str, *uses: str, text: str = "text") -> Batch:
    return Batch(compositions=[CompositionRecord(name, text, ("a",), ("b",), uses)])


def a_library(name: str, data: bytes) -> Batch:
    digest = digest_of(data)
    return Batch(libraries=[LibraryRecord(name, digest, len(data))], blobs={digest: data})
