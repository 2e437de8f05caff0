"""What clients send: an invocation, a function, a composition, a library.

An invocation has exactly the fields that the original reads, in any order: ``name`` or
``composition``, and ``sets``; a set has ``identifier`` and ``items``, an item has ``identifier``,
``key`` and ``data``. The other documents may have further fields, which are ignored. Names of array
elements have no meaning.

`separated_invocation` and its siblings read a body in the converter: contents are items of one set,
and all the rest is one small document.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

import msgspec

from dandelion.data import KEY_LIMIT, Bytes, Item, ItemSet
from dandelion.errors import InvalidInput, TooMany
from dandelion.frontend.asgi import clipped, did_you_mean
from dandelion.frontend.bson.reader import ARRAY, DOCUMENT, NULL, BsonElement, BsonReader

SIZE_LIMIT = 2**63
_SETS_LIMIT = 4096
_ITEM_ELEMENTS = 4  # an item in its array, and its fields
_SET_ELEMENTS = 3
_OTHER_ELEMENTS = 256

Separated: TypeAlias = tuple[dict[str, ItemSet | None], bytes]
"""Sets and a small document, as the converter sends them to the node."""


@dataclass(frozen=True, slots=True)
class SetRequest:
    """A set of an invocation: the name that the client gave it, and its items."""

    identifier: str
    items: tuple[Item, ...]


@dataclass(frozen=True, slots=True)
class BsonInvocation:
    """An invocation of a name, or of the composition in a text.

    Attributes:
        target: the name, or the text.
        is_text: whether it is a text.
        sets: by position.
    """

    target: str
    is_text: bool
    sets: tuple[SetRequest, ...]


class _SeparatedInvocation(msgspec.Struct, frozen=True):
    """An invocation without its items."""

    target: str
    is_text: bool
    identifiers: tuple[str, ...]


class DeclaredInput(msgspec.Struct, frozen=True):
    """An input set: its name, and the names of its items if it is fixed."""

    name: str
    items: tuple[str, ...] = ()


class FunctionRequest(msgspec.Struct, frozen=True):
    """A function to be registered.

    Attributes:
        name: as the client writes it.
        context_bytes: the size of its memory.
        engine_type: the original's backend.
        local_path: of the executable, on the server; empty if it is in the body.
        inputs, outputs: its sets.
        minima: smallest amounts of the input sets for an instance, in bytes; may be empty.
        contents: the executable, then the items of the fixed sets, in order.
    """

    name: str
    context_bytes: int
    engine_type: str
    local_path: str
    inputs: tuple[DeclaredInput, ...]
    outputs: tuple[str, ...]
    minima: tuple[int, ...] = ()
    contents: tuple[bytes, ...] = ()


class LibraryRequest(msgspec.Struct, frozen=True):
    """A library to be registered; `contents` is its bytes alone."""

    name: str
    contents: tuple[bytes, ...] = ()


# --- invocations ----------------------------------------------------------------------------------


def read_invocation(body: Bytes, items_limit: int) -> BsonInvocation:
    """Read an invocation. Items are views into the body.

    Raises:
        InvalidInput: it does not have that form.
        TooMany: it has more items, or more sets, than the limit.
    """
    elements = items_limit * _ITEM_ELEMENTS + _SETS_LIMIT * _SET_ELEMENTS + _OTHER_ELEMENTS
    reader = BsonReader(body, elements)
    fields = _fields("body", reader.body(), ("name", "composition", "sets"))
    named = [field for field in ("name", "composition") if field in fields]
    if len(named) != 1:
        raise InvalidInput("body", "it needs exactly one of 'name' and 'composition'")
    target = reader.text(named[0], fields[named[0]])
    sets = _Sets(reader, items_limit)
    read = tuple(sets.read(e) for e in _array(reader, "sets", _required("body", fields, "sets")))
    return BsonInvocation(target, named[0] == "composition", read)


class _Sets:
    """Reads the sets of an invocation, and counts their items."""

    def __init__(self, reader: BsonReader, items_limit: int) -> None:
        self._reader = reader
        self._limit = items_limit
        self._items = 0
        self._sets = 0

    def read(self, element: BsonElement) -> SetRequest:
        where = f"sets[{self._sets}]"
        self._sets += 1
        if self._sets > _SETS_LIMIT:
            raise TooMany("sets", "sets", self._sets, _SETS_LIMIT)
        fields = _whole(self._reader, where, element, ("identifier", "items"))
        identifier = self._reader.text(f"{where}.identifier", fields["identifier"])
        listed = _array(self._reader, f"{where}.items", fields["items"])
        return SetRequest(identifier, tuple([self._item(where, e) for e in listed]))

    def _item(self, where: str, element: BsonElement) -> Item:
        self._items += 1
        if self._items > self._limit:
            raise TooMany(where, "items", self._items, self._limit)
        reader = self._reader
        fields = _whole(reader, where, element, ("identifier", "key", "data"))
        return Item(
            reader.text(where, fields["identifier"]),
            reader.integer(f"{where}.key", fields["key"], KEY_LIMIT),
            reader.binary(f"{where}.data", fields["data"]),
        )


# --- registrations --------------------------------------------------------------------------------


def read_function(body: Bytes, elements_limit: int) -> FunctionRequest:
    """Read a function.

    Raises:
        InvalidInput: a field is missing or has another type.
        TooMany: it has too many sets, or more elements than the limit, see `BsonReader`.
    """
    reader = BsonReader(body, elements_limit)
    fields = _known(reader)
    path = fields.get("local_path")
    local_path = "" if path is None or path.kind == NULL else reader.text("local_path", path)
    inputs: list[DeclaredInput] = []
    contents = [reader.byte_values("binary", _required("body", fields, "binary"))]
    for index, element in enumerate(_sets(reader, fields, "input_sets")):
        inputs.append(_declared_input(reader, f"input_sets[{index}]", element, contents))
    outputs = _sets(reader, fields, "output_sets")
    minima = fields.get("min_set_bytes")
    return FunctionRequest(
        reader.text("name", _required("body", fields, "name")),
        reader.integer("context_size", _required("body", fields, "context_size"), SIZE_LIMIT),
        reader.text("engine_type", _required("body", fields, "engine_type")),
        local_path,
        tuple(inputs),
        tuple([reader.text("output_sets", e) for e in outputs]),
        _minima(reader, minima),
        tuple(contents),
    )


def _sets(reader: BsonReader, fields: Mapping[str, BsonElement], name: str) -> list[BsonElement]:
    listed = list(_array(reader, name, _required("body", fields, name)))
    if len(listed) > _SETS_LIMIT:
        raise TooMany(name, "sets", len(listed), _SETS_LIMIT)
    return listed


def _minima(reader: BsonReader, element: BsonElement | None) -> tuple[int, ...]:
    if element is None or element.kind == NULL:
        return ()
    where = "min_set_bytes"
    return tuple([reader.integer(where, e, SIZE_LIMIT) for e in _array(reader, where, element)])


def _declared_input(
    reader: BsonReader, where: str, element: BsonElement, contents: list[bytes]
) -> DeclaredInput:
    """Read ``[name, null | [[item, bytes], ...]]``; add the items' bytes to `contents`."""
    parts = list(_array(reader, where, element))
    if not 1 <= len(parts) <= 2:
        raise InvalidInput(where, f"it has {len(parts)} elements", "send [name, null or items]")
    name = reader.text(where, parts[0])
    if len(parts) == 1 or parts[1].kind == NULL:
        return DeclaredInput(name)
    names = []
    for one in _array(reader, where, parts[1]):
        pair = list(_array(reader, where, one))
        if len(pair) != 2:
            raise InvalidInput(where, "an item is not [name, bytes]")
        names.append(reader.text(where, pair[0]))
        contents.append(reader.byte_values(where, pair[1]))
    return DeclaredInput(name, tuple(names))


def read_composition(body: Bytes, elements_limit: int) -> str:
    """Read the text of a composition to be registered; raises as `read_function`."""
    reader = BsonReader(body, elements_limit)
    return reader.text("composition", _required("body", _known(reader), "composition"))


def read_library(body: Bytes, elements_limit: int) -> LibraryRequest:
    """Read a library; raises as `read_function`."""
    reader = BsonReader(body, elements_limit)
    fields = _known(reader)
    name = reader.text("name", _required("body", fields, "name"))
    return LibraryRequest(
        name, (reader.byte_values("library", _required("body", fields, "library")),)
    )


# --- fields ---------------------------------------------------------------------------------------


def _fields(
    where: str, elements: Iterable[BsonElement], allowed: tuple[str, ...]
) -> dict[str, BsonElement]:
    """Take the fields of a document that has no others, and none twice."""
    fields: dict[str, BsonElement] = {}
    for element in elements:
        name = element.name.decode("utf-8", "replace")
        if name not in allowed:
            hint = did_you_mean(name, allowed) or f"the fields are {', '.join(allowed)}"
            raise InvalidInput(where, f"unknown field '{clipped(name)}'", hint)
        if name in fields:
            raise InvalidInput(where, f"field '{name}' is given twice")
        fields[name] = element
    return fields


def _whole(
    reader: BsonReader, where: str, element: BsonElement, names: tuple[str, ...]
) -> Mapping[str, BsonElement]:
    """Take the fields of a document that has exactly these."""
    if element.kind != DOCUMENT:
        raise InvalidInput(where, f"it has the BSON type {element.kind:#04x}", "send a document")
    fields = _fields(where, reader.inside(element), names)
    for name in names:
        _required(where, fields, name)
    return fields


def _known(reader: BsonReader) -> dict[str, BsonElement]:
    """Take the fields of the body; of a repeated one the last."""
    return {element.name.decode("utf-8", "replace"): element for element in reader.body()}


def _required(where: str, fields: Mapping[str, BsonElement], name: str) -> BsonElement:
    found = fields.get(name)
    if found is None:
        raise InvalidInput(where, f"the field '{name}' is missing")
    return found


def _array(reader: BsonReader, where: str, element: BsonElement) -> Iterable[BsonElement]:
    if element.kind != ARRAY:
        raise InvalidInput(where, f"it has the BSON type {element.kind:#04x}", "send an array")
    return reader.inside(element)


# --- in the converter -----------------------------------------------------------------------------


def separated_invocation(body: Bytes, limit: int) -> Separated:
    """Read an invocation whose items travel as sets, named by their positions."""
    read = read_invocation(body, limit)
    rest = _SeparatedInvocation(
        read.target, read.is_text, tuple(one.identifier for one in read.sets)
    )
    sets = {
        str(at): ItemSet(one.identifier, one.items) if one.items else None
        for at, one in enumerate(read.sets)
    }
    return sets, msgspec.msgpack.encode(rest)


def joined_invocation(sets: Mapping[str, ItemSet | None], document: bytes) -> BsonInvocation:
    """Reverse `separated_invocation`."""
    rest = msgspec.msgpack.decode(document, type=_SeparatedInvocation)
    whole = []
    for at, identifier in enumerate(rest.identifiers):
        found = sets.get(str(at))
        whole.append(SetRequest(identifier, () if found is None else found.items))
    return BsonInvocation(rest.target, rest.is_text, tuple(whole))


def separated_function(body: Bytes, limit: int) -> Separated:
    """Read a function whose contents travel as items."""
    read = read_function(body, limit)
    return _contents(read.contents), msgspec.msgpack.encode(
        msgspec.structs.replace(read, contents=())
    )


def separated_library(body: Bytes, limit: int) -> Separated:
    """Read a library whose contents travel as items."""
    read = read_library(body, limit)
    return _contents(read.contents), msgspec.msgpack.encode(LibraryRequest(read.name))


def _contents(contents: tuple[bytes, ...]) -> dict[str, ItemSet | None]:
    return {"": ItemSet("", tuple(Item("", 0, data) for data in contents))}


PARSERS: dict[str, Callable[[Bytes, int], Separated]] = {
    "bson-invocation": separated_invocation,
    "bson-function": separated_function,
    "bson-library": separated_library,
}
"""What the converter can be asked for, see `dandelion.frontend.conversion.messages.Parse`."""
