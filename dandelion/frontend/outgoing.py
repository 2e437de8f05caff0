"""Python values on their way out: what a client sends for what its caller has at hand.

The client does for a remote node what `dandelion.data.item_set` does in-process, with the same
values and the same names of items. What a set declares is known to the node alone, so arrays travel
with their dtype and Python numbers as ``numbers``; the node converts them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeAlias, runtime_checkable

import numpy as np

from dandelion.data import Item, ItemSet, Value
from dandelion.documents import (
    Content,
    ContentLike,
    FunctionDocument,
    RegistrationDocument,
    content,
)
from dandelion.errors import InvalidInput
from dandelion.frontend.codecs import PackItem
from dandelion.frontend.values import DTYPES

Outgoing: TypeAlias = Any
"""What `dandelion.frontend.codecs.encode_request` takes for a set."""


@runtime_checkable
class HasText(Protocol):
    """A composition of the Python DSL."""

    def text(self) -> str:
        """Write it in the composition language."""


@dataclass(frozen=True, slots=True)
class Plain:
    """A set as JSON would have it, shorthands and all; see `dandelion.frontend.values`."""

    value: Any


Registrable: TypeAlias = "HasText | RegistrationDocument | FunctionDocument | str"


def outgoing_set(name: str, value: Value) -> Outgoing:
    """Prepare one set; takes what `dandelion.data.item_set` takes, and `Plain`.

    Raises:
        InvalidInput: the value is of a type that cannot be an item.
    """
    if isinstance(value, Plain):
        return value.value
    if value is None:
        return None
    if isinstance(value, ItemSet):
        return value.items
    if isinstance(value, Mapping):
        items = [_item(name, str(k), v) for k, v in value.items()]
    elif isinstance(value, Sequence | Iterator) and not isinstance(
        value, str | bytes | bytearray | memoryview
    ):
        items = [_item(name, str(i), v) for i, v in enumerate(value)]
    else:
        items = [_item(name, name, value)]
    packed = tuple(item for item in items if not isinstance(item, dict))
    return packed if len(packed) == len(items) else [_plain(item) for item in items]


def _item(set_name: str, name: str, value: Value) -> Item | PackItem | dict[str, Any]:
    if isinstance(value, Item):
        return value
    if isinstance(value, bytes | bytearray | memoryview):
        return PackItem(memoryview(value).cast("B"), name)
    if isinstance(value, str):
        return PackItem(memoryview(value.encode()), name)
    if isinstance(value, np.ndarray | np.generic):
        return _array(set_name, name, np.asarray(value))
    if isinstance(value, bool | int | float | Sequence):
        return {"name": name, "numbers": value}
    raise InvalidInput(
        f"sets.{set_name}",
        f"item '{name}' is a {type(value).__name__}",
        "give bytes, str, a numpy array, an Item, or a list or dict of these",
    )


def _array(set_name: str, name: str, array: np.ndarray[Any, Any]) -> PackItem:
    if array.dtype.hasobject:
        raise InvalidInput(f"sets.{set_name}", "an array of Python objects has no bytes")
    flat = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    dtype = array.dtype
    sent = dtype.name if dtype.isnative else dtype.str
    return PackItem(flat.data, name, 0, sent if dtype.name in DTYPES else None)


def _plain(item: Item | PackItem | dict[str, Any]) -> dict[str, Any]:
    if isinstance(item, dict):
        return item
    plain: dict[str, Any] = {"name": item.name, "key": item.key, "data": item.data}
    if isinstance(item, PackItem) and item.dtype is not None:
        plain["dtype"] = item.dtype
    return plain


def collect(
    things: Iterable[Registrable],
    functions: Iterable[FunctionDocument] = (),
    libraries: Mapping[str, ContentLike | bytes | Path] | None = None,
) -> RegistrationDocument:
    """Put everything that is to be registered together into one document.

    Args:
        things: compositions of the DSL, texts in the composition language, functions, documents.
        functions: further functions.
        libraries: code objects by name: text, bytes, or the path of a file.

    Raises:
        InvalidInput: something is none of these, or two documents have a library of the same name
            and different content.
    """
    compositions: list[str] = []
    found = list(functions)
    code: dict[str, Content] = {}
    for name, library in (libraries or {}).items():
        _add(code, name, library.read_bytes() if isinstance(library, Path) else library)
    for thing in things:
        if isinstance(thing, RegistrationDocument):
            found += thing.functions
            compositions += thing.compositions
            for name, library in thing.libraries.items():
                _add(code, name, library)
        elif isinstance(thing, FunctionDocument):
            found.append(thing)
        elif isinstance(thing, str):
            compositions.append(thing)
        elif isinstance(thing, HasText):
            compositions.append(thing.text())
        else:
            raise InvalidInput("register", f"a {type(thing).__name__} cannot be registered")
    return RegistrationDocument(tuple(found), dict(code), tuple(compositions))


def _add(code: dict[str, Content], name: str, value: ContentLike | bytes) -> None:
    made = content(value)
    if name in code and code[name].bytes() != made.bytes():
        raise InvalidInput(f"libraries.{name}", "it is given twice, with different content")
    code[name] = made
