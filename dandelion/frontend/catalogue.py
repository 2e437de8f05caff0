"""The routes of the catalogue: register, list, describe, draw, remove.

The node's catalogue may wait for a disk, so everything here runs in a thread of the executor. Each
route checks its query before anything else: a typing error must not change what a request does.
"""

from __future__ import annotations

import asyncio

import msgspec

from dandelion.catalog import CompositionRecord, LibraryRecord, Record, kind_of
from dandelion.documents import RegistrationDocument
from dandelion.errors import Unknown, nearest
from dandelion.frontend.asgi import NAME_LIMIT, Exchange, Reply, clipped
from dandelion.frontend.body import Body
from dandelion.frontend.conversion.converter import Converter
from dandelion.frontend.conversion.costs import costs_drawing, costs_registration
from dandelion.frontend.graphs import MEDIA_TYPES, check_format, draw_text
from dandelion.frontend.problem import UnsupportedMedia
from dandelion.frontend.records import (
    REGISTER_TYPES,
    Description,
    Plain,
    RegisterReply,
    entry_of,
    read_document,
)
from dandelion.function import FunctionSpec
from dandelion.node import Node

KINDS: dict[str, type[Record]] = {
    "functions": FunctionSpec,
    "compositions": CompositionRecord,
    "libraries": LibraryRecord,
}


class CatalogueRoutes:
    """Handlers of the routes below ``/v1/functions``, ``/v1/compositions`` and ``/v1/libraries``.

    Args:
        node: whose catalogue it is.
        converter: reads and writes what takes too long for the event loop.
    """

    def __init__(self, node: Node, converter: Converter) -> None:
        self._node = node
        self._converter = converter

    async def register(self, exchange: Exchange) -> Reply:
        """``POST /v1/register``: a document of functions, libraries and compositions."""
        exchange.expect_query(())
        media_type = exchange.header(b"content-type").partition(";")[0].strip().lower()
        if media_type not in REGISTER_TYPES:
            raise UnsupportedMedia(clipped(media_type) or "no Content-Type", REGISTER_TYPES)
        body = Body(exchange, self._node.acquire, self._node.settings.body_limit_bytes)
        data = await body.read()
        if costs_registration(data, media_type):
            document = await self._converter.document(data, media_type)
        else:
            document = read_document(data, media_type)
        del data  # the document's contents are not views of it
        return await asyncio.to_thread(self._register, document)

    def _register(self, document: RegistrationDocument) -> Reply:
        return json_reply(RegisterReply(tuple(self._node.register(document))))

    async def list_kind(self, exchange: Exchange) -> Reply:
        """``GET /v1/{kind}``: the newest version of each name."""
        exchange.expect_query(())
        kind = exchange.path.split("/")[2]
        return await asyncio.to_thread(self._list, kind)

    def _list(self, kind: str) -> Reply:
        wanted = KINDS[kind]
        records = self._node.records()
        return json_reply({kind: [entry_of(r) for r in records if isinstance(r, wanted)]})

    async def describe(self, exchange: Exchange) -> Reply:
        """``GET /v1/{kind}/{name}``: one record, its versions and its signature."""
        exchange.expect_query(("version",))
        cls, name = self._target(exchange)
        version = exchange.version
        return await asyncio.to_thread(lambda: json_reply(self._describe(cls, name, version)))

    async def remove(self, exchange: Exchange) -> Reply:
        """``DELETE /v1/{kind}/{name}``: all versions, or one."""
        exchange.expect_query(("version",))
        cls, name = self._target(exchange)
        version = exchange.version
        return await asyncio.to_thread(self._remove, cls, name, version)

    def _remove(self, cls: type[Record], name: str, version: int | None) -> Reply:
        removed = self._node.remove(cls, name, version)
        return json_reply({"removed": [entry_of(record) for record in removed]})

    async def graph(self, exchange: Exchange) -> Reply:
        """``GET /v1/compositions/{name}/graph``: drawn as ``format`` says, SVG by default."""
        exchange.expect_query(("version", "format"))
        name = exchange.path.split("/", 3)[3].removesuffix("/graph")
        format_ = exchange.query.get("format", "svg")
        record = await asyncio.to_thread(self._find, CompositionRecord, name, exchange.version)
        assert isinstance(record, CompositionRecord)
        check_format(format_)
        if costs_drawing(record.text):
            drawn = await self._converter.drawing(record.text, record.name, format_)
        else:
            text = await asyncio.to_thread(draw_text, record.text, record.name, format_)
            drawn = text.encode()
        return Reply([drawn], MEDIA_TYPES[format_])

    def _target(self, exchange: Exchange) -> tuple[type[Record], str]:
        _, _, kind, name = exchange.path.split("/", 3)
        return KINDS[kind], name

    def _describe(self, cls: type[Record], name: str, version: int | None) -> Description:
        record = self._find(cls, name, version)
        versions = tuple(self._node.versions(cls, name))
        plain: Plain = msgspec.to_builtins(record)
        described = Description(kind_of(cls), name, record.version, versions, plain)
        if isinstance(record, LibraryRecord):
            return described
        sets = self._node.signature(name, version)
        return msgspec.structs.replace(
            described, inputs=sets.inputs, outputs=sets.outputs, static=sets.static
        )

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


def json_reply(value: object, status: int = 200) -> Reply:
    """Answer with a value as JSON."""
    return Reply([msgspec.json.encode(value)], status=status)
