"""Writes down the code that an invocation can use, as a document that can be registered."""

from __future__ import annotations

from collections.abc import Callable

from dandelion.catalog import Catalog, CompositionRecord, with_uses
from dandelion.documents import (
    CodeDocument,
    Content,
    FunctionDocument,
    ItemContent,
    RegistrationDocument,
)
from dandelion.function import FunctionSpec, StaticItem

Find = Callable[[str, int | None], FunctionSpec | CompositionRecord]
"""Finds a function or composition by name and version; raises `Unknown`."""


def code_of(
    name: str, version: int | None, find: Find, catalog: Catalog
) -> tuple[RegistrationDocument, tuple[FunctionSpec, ...]]:
    """Give everything that an invocation of a function or composition can use.

    Args:
        name, version: what is invoked.
        find: of the tenant; its functions have the limits that hold on the node.
        catalog: has their blobs.

    Returns:
        A document, and the functions of the platform, which no document can have.

    Raises:
        Unknown: it is not registered, or was removed meanwhile.
    """
    used = list(with_uses(find(name, version), lambda inner: find(inner, None)))
    functions = [record for record in used if isinstance(record, FunctionSpec)]
    document = RegistrationDocument(
        functions=tuple(_function(spec, catalog) for spec in functions if spec.version),
        compositions=tuple(one.text for one in used if isinstance(one, CompositionRecord)),
    )
    platform = tuple(spec for spec in functions if not spec.version)
    return document, platform


def _function(spec: FunctionSpec, catalog: Catalog) -> FunctionDocument:
    return FunctionDocument(
        spec.name,
        spec.inputs,
        spec.outputs,
        {name: {i.name: _static(i, catalog) for i in items} for name, items in spec.static.items()},
        spec.limits,
        tuple(
            CodeDocument(
                code.format,
                Content(data=bytes(catalog.blob(code.main))) if code.main else "",
                {n: Content(data=bytes(catalog.blob(d))) for n, d in code.files.items()},
                code.options,
                code.packages,
                code.wheels,
            )
            for code in spec.code
        ),
        spec.cache,
        spec.batching,
        spec.secrets,
    )


def _static(item: StaticItem, catalog: Catalog) -> ItemContent:
    data = bytes(catalog.blob(item.digest))
    return ItemContent(data=data, dtype=item.dtype, shape=item.shape)
