"""The contents of a registration document: code, files, static items and libraries."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeAlias

import msgspec

from dandelion.documents import (
    CodeDocument,
    Content,
    ContentLike,
    FunctionDocument,
    ItemContent,
    ItemContentLike,
    RegistrationDocument,
    content,
)

Change: TypeAlias = Callable[[Content], Content]


def with_contents(document: RegistrationDocument, change: Change) -> RegistrationDocument:
    """Return a document with each content replaced, always in the same order."""
    return msgspec.structs.replace(
        document,
        functions=tuple(_function(function, change) for function in document.functions),
        libraries=_all(document.libraries, change),
    )


def _function(function: FunctionDocument, change: Change) -> FunctionDocument:
    return msgspec.structs.replace(
        function,
        static={name: _items(items, change) for name, items in function.static.items()},
        code=tuple(_code(code, change) for code in function.code),
    )


def _code(code: CodeDocument, change: Change) -> CodeDocument:
    main = change(content(code.main))
    return msgspec.structs.replace(code, main=main, files=_all(code.files, change))


def _items(items: Mapping[str, ItemContentLike], change: Change) -> dict[str, ItemContentLike]:
    changed: dict[str, ItemContentLike] = {}
    for name, value in items.items():
        new = change(content(value))
        kind = (value.dtype, value.shape) if isinstance(value, ItemContent) else (None, None)
        changed[name] = ItemContent(new.text, new.data, *kind)
    return changed


def _all(contents: dict[str, ContentLike], change: Change) -> dict[str, ContentLike]:
    return {name: change(content(value)) for name, value in contents.items()}
