"""Records of the routes of the catalogue, for server and client."""

from __future__ import annotations

import re
from typing import Any, TypeAlias

import msgspec

from dandelion.catalog import CompositionRecord, Record, Removal, kind_of
from dandelion.data import Bytes, SetSpec
from dandelion.documents import PlannedChange, Registered, RegistrationDocument
from dandelion.errors import InvalidInput, nearest
from dandelion.errors.misfits import misfit
from dandelion.function import FunctionSpec

TEXT_TYPE = "text/vnd.dandelion"
"""Text in the composition language. Any web page can send ``text/plain`` without a preflight."""
REGISTER_TYPES = ("application/json", "application/msgpack", TEXT_TYPE)
"""Media types in which a registration document can be sent."""

_UNKNOWN = re.compile("unknown field '([^']*)'")

_json_document = msgspec.json.Decoder(RegistrationDocument)
_pack_document = msgspec.msgpack.Decoder(RegistrationDocument)

Plain: TypeAlias = dict[str, Any]
"""A record as msgspec makes it for JSON."""


class ComparisonResponse(msgspec.Struct, frozen=True):
    """What a registration would change."""

    changes: tuple[PlannedChange, ...]


class RemoveDocument(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What to remove, all or nothing."""

    records: tuple[Removal, ...]


class RegisterResponse(msgspec.Struct, frozen=True):
    """The result of a registration."""

    registered: tuple[Registered, ...]


class Entry(msgspec.Struct, frozen=True, omit_defaults=True):
    """One line of a list: the newest version of a name, or one that was removed.

    Attributes:
        kind: function, composition or library.
        name, version: of the record.
        inputs, outputs: names of its sets.
        formats: formats of a function's code objects.
        static: input sets of a function that are fixed.
        uses: functions and compositions that a composition applies.
        size_bytes: length of a library.
    """

    kind: str
    name: str
    version: int
    inputs: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()
    formats: tuple[str, ...] = ()
    static: tuple[str, ...] = ()
    uses: tuple[str, ...] = ()
    size_bytes: int = 0


class Description(msgspec.Struct, frozen=True, omit_defaults=True):
    """Everything about one name.

    Attributes:
        kind: function, composition or library.
        name, version: of the record that is described.
        versions: all registered versions, ascending.
        record: the record itself.
        inputs: input sets of an invocation, with dtype and shape.
        outputs: output sets.
        static: names of input sets that are fixed at registration.
    """

    kind: str
    name: str
    version: int
    versions: tuple[int, ...]
    record: Plain
    inputs: tuple[SetSpec, ...] = ()
    outputs: tuple[SetSpec, ...] = ()
    static: tuple[str, ...] = ()


class EngineEntry(msgspec.Struct, frozen=True):
    """One engine of a node, or an unavailable backend."""

    name: str
    backend: str
    resource: str
    description: str
    state: str
    reason: str
    busy: int
    calls: int
    failures: int


_removal_document = msgspec.json.Decoder(RemoveDocument)


def entry_of(record: Record) -> Entry:
    """Shorten a record to a line of a list."""
    kind = kind_of(record)
    if isinstance(record, FunctionSpec):
        formats = tuple(code.format for code in record.code)
        sets = record.input_names, record.output_names
        return Entry(kind, record.name, record.version, *sets, formats, record.fixed)
    if isinstance(record, CompositionRecord):
        sets = record.inputs, record.outputs
        return Entry(kind, record.name, record.version, *sets, uses=record.uses)
    return Entry(kind, record.name, record.version, size_bytes=record.size_bytes)


def encode_document(document: RegistrationDocument) -> bytes:
    """Write a document in MessagePack."""
    return msgspec.msgpack.encode(document)


def read_document(body: Bytes, media_type: str) -> RegistrationDocument:
    """Read a registration document. A body of `TEXT_TYPE` is text in the composition language.

    Raises:
        InvalidInput: the body is not of that media type, or a field does not fit; `where` is its
            path.
    """
    try:
        if media_type == TEXT_TYPE:
            return RegistrationDocument(compositions=(bytes(body).decode(),))
        decoder = _json_document if media_type == "application/json" else _pack_document
        return decoder.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        path, message = misfit(error)
        raise InvalidInput(path or "body", message, _meant_field(path, message)) from None


def read_removals(body: Bytes) -> tuple[Removal, ...]:
    """Read the body of ``POST /v1/remove``.

    Raises:
        InvalidInput: it is not such a document; `where` is the path of what does not fit.
    """
    try:
        return _removal_document.decode(body).records
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        path, message = misfit(error)
        raise InvalidInput(path or "body", message) from None


def _meant_field(path: str, message: str) -> str:
    """Name the field of a document that was probably meant by an unknown one."""
    unknown = _UNKNOWN.fullmatch(message)
    if path or unknown is None:
        return ""
    known = RegistrationDocument.__struct_fields__
    close = nearest(unknown[1], known)
    return f"did you mean '{close}'?" if close else f"the fields are {', '.join(known)}"
