"""Writes down the code that an invocation can use, as a document that can be registered."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from dandelion.catalog import Catalog, CompositionRecord
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


@dataclass(slots=True)
class _Found:
    functions: dict[str, FunctionSpec] = field(default_factory=dict)
    compositions: dict[str, CompositionRecord] = field(default_factory=dict)


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
    found = _Found()
    _collect(name, version, find, found)
    own = [spec for spec in found.functions.values() if spec.version]
    platform = tuple(spec for spec in found.functions.values() if not spec.version)
    document = RegistrationDocument(
        functions=tuple(_function(spec, catalog) for spec in own),
        compositions=tuple(record.text for record in found.compositions.values()),
    )
    return document, platform


def _collect(name: str, version: int | None, find: Find, found: _Found) -> None:
    """Add what a name stands for, after what it uses."""
    if name in found.functions or name in found.compositions:
        return
    record = find(name, version)
    if isinstance(record, FunctionSpec):
        found.functions[name] = record
        return
    for used in record.uses:
        _collect(used, None, find, found)
    found.compositions[name] = record


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
