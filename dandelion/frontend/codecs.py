"""Reading sets: JSON, MessagePack and raw bytes; `set_encoding` writes them.

A request is ``{"sets": {name: set}, "values": {name: value}}``; `dandelion.frontend.values`
describes sets, and `dandelion.set_values.item_set` values. A response is
``{"id": ..., "sets": {name: [item, ...] | null}, "types": {name: {"dtype", "shape"}}, "forms":
{name: form}}``, where ``types`` has the sets that declare a dtype and ``forms`` those that declare
text or JSON. An item that is an array has its own ``dtype`` and ``shape``; others have neither.

MessagePack in its long form is fast. Items are views into the body, so decoding a request copies
nothing; large bodies are in the arena. Shorthands and numbers are decoded like JSON.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import msgspec

from dandelion.arrays import Shape, text_of
from dandelion.data import Bytes, Item, ItemSet, Sets, SetSpec
from dandelion.errors import InvalidInput, TooMany
from dandelion.frontend.asgi import clipped, did_you_mean
from dandelion.frontend.values import check_fields, item_type, set_of
from dandelion.set_values import checked, item_set

Specs: TypeAlias = Mapping[str, SetSpec]
SetMap: TypeAlias = dict[str, ItemSet | None]

BIN_LIMIT_BYTES = 2**32 - 1
ITEMS_LIMIT = 2**32


class PackItem(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """A MessagePack item in the long form; `data` is a view into the body."""

    data: memoryview
    name: str | None = None
    key: int = 0
    dtype: str | None = None
    shape: tuple[int, ...] | None = None


class PackRequest(msgspec.Struct, forbid_unknown_fields=True):
    """A MessagePack request that needs no copies."""

    sets: dict[str, list[PackItem | memoryview] | PackItem | memoryview | None] = {}
    values: dict[str, Any] = {}

    def __post_init__(self) -> None:
        _check_parts(self.sets, self.values)


class JsonRequest(msgspec.Struct, forbid_unknown_fields=True):
    """A JSON request; its sets may have any form."""

    sets: dict[str, Any] = {}
    values: dict[str, Any] = {}

    def __post_init__(self) -> None:
        _check_parts(self.sets, self.values)


def _check_parts(sets: Mapping[str, object], values: Mapping[str, object]) -> None:
    """Refuse what the slow path explains: a set that is given twice, a request without sets."""
    if not (sets or values) or not values.keys().isdisjoint(sets):
        raise ValueError("a set is given twice, or none is given")


class SetType(msgspec.Struct, omit_defaults=True):
    """What the items of a set consist of."""

    dtype: str
    shape: tuple[int, ...] | None = None


class PackResponse(msgspec.Struct):
    """A MessagePack response."""

    id: str
    sets: dict[str, list[PackItem] | None]
    types: dict[str, SetType] = {}
    forms: dict[str, str] = {}


_pack_request = msgspec.msgpack.Decoder(PackRequest)
_pack_response = msgspec.msgpack.Decoder(PackResponse)
_pack_plain = msgspec.msgpack.Decoder()
_json_request = msgspec.json.Decoder(JsonRequest)
_json_plain = msgspec.json.Decoder()


# --- requests ---------------------------------------------------------------------------------


def decode_json(body: Bytes, specs: Specs, items_limit: int = ITEMS_LIMIT) -> SetMap:
    """Read a JSON request.

    Raises:
        TooMany: it has more items than the limit.
        InvalidInput: the body is no JSON, or a part does not fit; `where` is its path.
    """
    try:
        request = _json_request.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        document = _plain("JSON", _json_plain.decode, body)
        return _sets_of(document, specs, items_limit)  # its errors have a place and a reason
    sets = request.sets
    _check_count(sets, items_limit)
    found = {name: set_of(name, value, specs.get(name)) for name, value in sets.items()}
    return found | _of_values(request.values, specs, items_limit) if request.values else found


def decode_msgpack(body: Bytes, specs: Specs, items_limit: int = ITEMS_LIMIT) -> SetMap:
    """Read a MessagePack request; items in the long form are views into `body`.

    Raises:
        TooMany: it has more items than the limit.
        InvalidInput: the body is no MessagePack, or a part does not fit; `where` is its path.
    """
    try:
        request = _pack_request.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        document = _plain("MessagePack", _pack_plain.decode, body)
        return _sets_of(document, specs, items_limit)
    _check_count(request.sets, items_limit)
    found = {name: _views(name, value, specs.get(name)) for name, value in request.sets.items()}
    return found | _of_values(request.values, specs, items_limit) if request.values else found


def _of_values(values: Mapping[Any, Any], specs: Specs, items_limit: int) -> SetMap:
    """Make sets of plain values, as `dandelion.set_values.item_set` does for callers in Python."""
    total = 0
    for name, value in values.items():
        total += len(value) if isinstance(value, list | dict) else 1
        if total > items_limit:
            raise TooMany(f"values.{clipped(str(name))}", "items", total, items_limit)
    found: SetMap = {}
    for name, value in values.items():
        if not isinstance(name, str):
            raise InvalidInput("values", f"the name {name!r} is not a string")
        try:
            found[name] = item_set(name, value, specs.get(name))
        except RecursionError:
            raise InvalidInput(f"values.{clipped(name)}", "it is nested too deeply") from None
    return found


def decode_raw(
    body: Bytes, name: str, specs: Specs, dtype: str | None = None, shape: str | None = None
) -> SetMap:
    """Make the body the only item of set `name`; all other sets are absent.

    Args:
        body: the data.
        name: of set and item.
        specs: the declared input sets.
        dtype, shape: headers with the type of an array.
    """
    sets: SetMap = dict.fromkeys(specs)
    spec = specs.get(name)
    kind = header_type(f"sets.{name}", dtype, shape, len(body), spec)
    sets[name] = checked(name, (Item(name, 0, body, *kind),), spec)
    return sets


def header_type(
    where: str, dtype: str | None, shape: str | None, size_bytes: int, spec: SetSpec | None
) -> tuple[str | None, Shape | None]:
    """Read the type of an item from headers: ``float32``, and ``2,3`` (empty for a number).

    Raises:
        InvalidInput: the type is unknown, or the data has another size.
    """
    sizes = None
    if shape is not None:
        try:
            sizes = [int(size) for size in shape.split(",")] if shape.strip() else []
        except ValueError:
            raise InvalidInput(
                where, f"'{clipped(shape)}' is not a valid shape", "write 2,3"
            ) from None
    return item_type(where, dtype, sizes, size_bytes, spec)


def check_names(sets: Mapping[str, object], specs: Specs, static: tuple[str, ...] = ()) -> None:
    """Compare the names of the given sets with the declared ones.

    Args:
        sets: what was given; an absent set is there as None.
        specs: the declared input sets that callers give.
        static: input sets that are fixed at registration.

    Raises:
        InvalidInput: a set is not declared (with the nearest name), is fixed, or is missing.
    """
    if sets.keys() == specs.keys():
        return
    for name in sets:
        if name in static:
            raise InvalidInput(f"sets.{name}", "the set is fixed at registration", "leave it out")
        if name not in specs:
            names = ", ".join(specs) or "none"
            hint = did_you_mean(name, specs) or f"input sets are: {names}"
            raise InvalidInput(f"sets.{clipped(name)}", "no such input set", hint)
    for name, spec in specs.items():
        if name not in sets and not spec.optional:
            hint = "send null if it may be empty"
            if spec.dtype is not None:
                hint = f"send {text_of(spec.dtype, spec.shape)}"
            raise InvalidInput(f"sets.{name}", "the set is missing", hint)


def _check_count(sets: Mapping[Any, Any], limit: int) -> None:
    """Refuse too many items before any item is created."""
    total = 0
    for name, value in sets.items():
        if isinstance(value, list) and not (value and isinstance(value[0], int | float | list)):
            total += len(value)  # a list that starts with a number is one array
            if total > limit:
                raise TooMany(f"sets.{name}", "items", total, limit)


def _plain(kind: str, decode: Callable[[Bytes], Any], body: Bytes) -> Any:
    try:
        return decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidInput("body", f"not valid {kind}: {error}") from None


def _sets_of(document: Any, specs: Specs, items_limit: int) -> SetMap:
    hint = 'write {"sets": {"name": ...}}'
    if not isinstance(document, dict):
        raise InvalidInput("body", "expected an object", hint)
    for field in ("sets", "values"):
        if not isinstance(document.get(field, {}), dict):
            raise InvalidInput(field, "expected an object", hint)
    sets, values = document.get("sets", {}), document.get("values", {})
    _check_count(sets, items_limit)
    check_fields("body", document, ("sets", "values"))
    if "sets" not in document and "values" not in document:
        raise InvalidInput("body", "the field 'sets' is missing", hint)
    for name in sets:
        if not isinstance(name, str):
            raise InvalidInput("sets", f"the name {name!r} is not a string")
        if name in values:
            raise InvalidInput(f"values.{clipped(name)}", "the set is in 'sets' as well")
    found = {name: set_of(name, value, specs.get(name)) for name, value in sets.items()}
    return found | _of_values(values, specs, items_limit)


def _views(
    name: str,
    value: list[PackItem | memoryview] | PackItem | memoryview | None,
    spec: SetSpec | None,
) -> ItemSet | None:
    if value is None:
        return None
    if isinstance(value, list):
        items = [_view(name, str(i), v, spec, i) for i, v in enumerate(value)]
    else:
        items = [_view(name, name, value, spec)]
    return checked(name, items, spec)


def _view(
    set_name: str,
    item_name: str,
    value: PackItem | memoryview,
    spec: SetSpec | None,
    index: int | None = None,
) -> Item:
    if isinstance(value, memoryview):
        return Item(item_name, 0, value)
    name = item_name if value.name is None else value.name
    data = value.data
    if value.dtype is None and value.shape is None:
        return Item(name, value.key, data)
    where = f"sets.{set_name}" + ("" if index is None else f"[{index}]")
    return Item(name, value.key, data, *item_type(where, value.dtype, value.shape, len(data), spec))


# --- responses ----------------------------------------------------------------------------------


def decode_response(body: Bytes) -> tuple[str, Sets]:
    """Read a MessagePack response: the invocation's id and its sets, as views into `body`.

    Raises:
        InvalidInput: the body is not such a response.
    """
    try:
        response = _pack_response.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InvalidInput("response", f"not a response of Dandelion: {error}") from None
    sets: SetMap = {}
    for name, items in response.sets.items():
        sets[name] = None
        if items is not None:
            made = tuple(Item(i.name or "", i.key, i.data, i.dtype, i.shape) for i in items)
            form = response.forms.get(name, "")
            sets[name] = _typed_set(name, made, response.types.get(name), form)
    return response.id, Sets(sets)


def _typed_set(name: str, items: tuple[Item, ...], kind: SetType | None, form: str) -> ItemSet:
    dtype, shape = (None, None) if kind is None else (kind.dtype, kind.shape)
    return ItemSet(name, items, dtype, shape, form)
