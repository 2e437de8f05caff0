"""The routes of the catalogue: register, list, describe, draw, remove.

The node's catalogue may wait for a disk, so everything here runs in a thread of the executor. Each
route checks its query before anything else: a typing error must not change what a request does.
"""

from __future__ import annotations

import asyncio
from typing import Any, TypeAlias

import msgspec

from dandelion.catalog import CompositionRecord, LibraryRecord, Record, kind_of
from dandelion.data import Bytes
from dandelion.documents import Content, Registered, RegistrationDocument
from dandelion.errors import InvalidInput, Unknown, nearest
from dandelion.frontend.asgi import NAME_LIMIT, Exchange, Reply, clipped
from dandelion.frontend.body import Body
from dandelion.frontend.graphs import MEDIA_TYPES, draw_text
from dandelion.frontend.problem import UnsupportedMedia
from dandelion.function import FunctionSpec
from dandelion.node import Node, Signature

KINDS: dict[str, type[Record]] = {
    "functions": FunctionSpec,
    "compositions": CompositionRecord,
    "libraries": LibraryRecord,
}
REGISTER_TYPES = ("application/json", "application/msgpack", "text/plain")

Plain: TypeAlias = dict[str, Any]
"""A record as msgspec makes it for JSON."""

# msgspec reads annotations in the namespace of the class, where ``bytes`` is the method.
Content.__annotations__["data"] = bytes | None

_json_document = msgspec.json.Decoder(RegistrationDocument)
_pack_document = msgspec.msgpack.Decoder(RegistrationDocument)


class RegisterReply(msgspec.Struct, frozen=True):
    """What came of a registration."""

    registered: tuple[Registered, ...]


class Entry(msgspec.Struct, frozen=True, omit_defaults=True):
    """One line of a list: the newest version of a name.

    Attributes:
        kind: function, composition or library.
        name, version: of the record.
        inputs, outputs: names of its sets.
        formats: formats of a function's code objects.
        static: input sets of a function that are fixed.
        uses: what a composition applies.
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
        signature: input and output sets with dtype and shape; libraries have none.
    """

    kind: str
    name: str
    version: int
    versions: tuple[int, ...]
    record: Plain
    signature: Signature | None = None


class CatalogueRoutes:
    """Handlers of the routes below ``/v1/functions``, ``/v1/compositions`` and ``/v1/libraries``.

    Args:
        node: whose catalogue it is.
    """

    def __init__(self, node: Node) -> None:
        self._node = node

    async def register(self, exchange: Exchange) -> Reply:
        """``POST /v1/register``: a document of functions, libraries and compositions."""
        exchange.expect_query(())
        media_type = exchange.header(b"content-type").partition(";")[0].strip().lower()
        if media_type not in REGISTER_TYPES:
            raise UnsupportedMedia(clipped(media_type) or "no Content-Type", REGISTER_TYPES)
        body = Body(exchange, self._node.acquire, self._node.settings.body_limit_bytes)
        document = read_document(await body.read(), media_type)
        registered = await asyncio.to_thread(self._node.register, document)
        return json_reply(RegisterReply(tuple(registered)))

    async def list_kind(self, exchange: Exchange) -> Reply:
        """``GET /v1/{kind}``: the newest version of each name."""
        exchange.expect_query(())
        kind = exchange.path.split("/")[2]
        records = await asyncio.to_thread(self._node.records)
        wanted = KINDS[kind]
        return json_reply({kind: [entry_of(r) for r in records if isinstance(r, wanted)]})

    async def describe(self, exchange: Exchange) -> Reply:
        """``GET /v1/{kind}/{name}``: one record, its versions and its signature."""
        exchange.expect_query(("version",))
        cls, name = self._target(exchange)
        return json_reply(await asyncio.to_thread(self._describe, cls, name, exchange.version))

    async def remove(self, exchange: Exchange) -> Reply:
        """``DELETE /v1/{kind}/{name}``: all versions, or one."""
        exchange.expect_query(("version",))
        cls, name = self._target(exchange)
        version = exchange.version
        removed = await asyncio.to_thread(self._node.remove, cls, name, version)
        return json_reply({"removed": [entry_of(record) for record in removed]})

    async def graph(self, exchange: Exchange) -> Reply:
        """``GET /v1/compositions/{name}/graph``: drawn as ``format`` says, SVG by default."""
        exchange.expect_query(("version", "format"))
        name = exchange.path.split("/", 3)[3].removesuffix("/graph")
        format_ = exchange.query.get("format", "svg")
        record = await asyncio.to_thread(self._find, CompositionRecord, name, exchange.version)
        assert isinstance(record, CompositionRecord)
        text = await asyncio.to_thread(draw_text, record.text, record.name, format_)
        return Reply([text.encode()], MEDIA_TYPES[format_])

    def _target(self, exchange: Exchange) -> tuple[type[Record], str]:
        _, _, kind, name = exchange.path.split("/", 3)
        return KINDS[kind], name

    def _describe(self, cls: type[Record], name: str, version: int | None) -> Description:
        record = self._find(cls, name, version)
        versions = tuple(self._node.versions(cls, name))
        library = isinstance(record, LibraryRecord)
        signature = None if library else self._node.signature(name, version)
        plain: Plain = msgspec.to_builtins(record)
        return Description(kind_of(cls), name, record.version, versions, plain, signature)

    def _find(self, cls: type[Record], name: str, version: int | None) -> Record:
        if len(name) > NAME_LIMIT:
            raise Unknown(kind_of(cls), clipped(name))
        if cls is not LibraryRecord and self._node.versions(cls, name):
            return self._node.describe(name, version)
        records = [r for r in self._node.records() if isinstance(r, cls)]
        for record in records:
            if record.name == name and version in (None, record.version):
                return record
        close = nearest(name, (r.name for r in records if r.name != name))
        raise Unknown(kind_of(cls), name, version, close)


def read_document(body: Bytes, media_type: str) -> RegistrationDocument:
    """Read what is to be registered; plain text is one text of the composition language.

    Raises:
        InvalidInput: the body is not of that media type, or a field does not fit; `where` is its
            path.
    """
    try:
        if media_type == "text/plain":
            return RegistrationDocument(compositions=(bytes(body).decode(),))
        decoder = _json_document if media_type == "application/json" else _pack_document
        return decoder.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        message, _, path = str(error).partition(" - at `$.")
        raise InvalidInput(path.rstrip("`") or "body", message) from None


def entry_of(record: Record) -> Entry:
    """Shorten a record to a line of a list."""
    kind = kind_of(record)
    if isinstance(record, FunctionSpec):
        formats = tuple(code.format for code in record.code)
        sets = record.input_names, record.output_names
        return Entry(kind, record.name, record.version, *sets, formats, tuple(record.static))
    if isinstance(record, CompositionRecord):
        sets = record.inputs, record.outputs
        return Entry(kind, record.name, record.version, *sets, uses=record.uses)
    return Entry(kind, record.name, record.version, size_bytes=record.size_bytes)


def json_reply(value: object, status: int = 200) -> Reply:
    """Answer with a value as JSON."""
    return Reply([msgspec.json.encode(value)], status=status)
