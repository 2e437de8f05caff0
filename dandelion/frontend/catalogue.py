"""The routes of the catalogue: register, list, describe, draw, remove.

The catalogue may wait for a disk, so each handler uses a thread of the executor. Each route first
checks its query, so that a misspelled parameter is an error.
"""

from __future__ import annotations

import asyncio
from functools import partial

import msgspec

from dandelion.catalog import CompositionRecord, LibraryRecord, Record, Removal, kind_of
from dandelion.documents import RegistrationDocument
from dandelion.errors import Unknown, nearest
from dandelion.frontend.asgi import NAME_LIMIT, Request, Response, clipped
from dandelion.frontend.audit import Change, audited, entry, preparing
from dandelion.frontend.body import Body
from dandelion.frontend.conversion.converter import Converter
from dandelion.frontend.conversion.costs import costs_drawing, costs_registration
from dandelion.frontend.graphs import MEDIA_TYPES, check_format, draw_text
from dandelion.frontend.negotiation import media_type
from dandelion.frontend.problem import UnsupportedMedia
from dandelion.frontend.records import (
    REGISTER_TYPES,
    ComparisonResponse,
    Description,
    Plain,
    RegisterResponse,
    entry_of,
    read_document,
    read_removals,
)
from dandelion.frontend.service import Service
from dandelion.function import FunctionSpec

KINDS: dict[str, type[Record]] = {
    "functions": FunctionSpec,
    "compositions": CompositionRecord,
    "libraries": LibraryRecord,
}
REMOVALS_BYTES = 1024 * 1024
"""Limit of the body of ``POST /v1/remove``."""


class CatalogueRoutes:
    """Handlers of the routes below ``/v1/functions``, ``/v1/compositions`` and ``/v1/libraries``.

    Args:
        node: has the catalogue.
        converter: reads and writes documents that would block the event loop.
    """

    def __init__(self, node: Service, converter: Converter) -> None:
        self._node = node
        self._converter = converter

    async def register(self, request: Request) -> Response:
        """``POST /v1/register``: a document of functions, libraries and compositions."""
        with preparing(Change(request, "register")):
            document = await self._document(request)
        return await asyncio.to_thread(self._register, request, document)

    async def compare(self, request: Request) -> Response:
        """``POST /v1/compare``: what registering such a document would change."""
        document = await self._document(request)
        compare = partial(self._node.compare, document, tenant=request.grant.tenant)
        return json_response(ComparisonResponse(tuple(await asyncio.to_thread(compare))))

    async def _document(self, request: Request) -> RegistrationDocument:
        request.expect_query(())
        given = request.header(b"content-type")
        kind = media_type(given)
        if kind not in REGISTER_TYPES:
            raise UnsupportedMedia(clipped(given) or "no Content-Type", REGISTER_TYPES)
        body = Body(request, self._node.acquire_to_fill_async, self._node.settings.body_limit_bytes)
        data = await body.read()
        if costs_registration(data, kind):
            return await self._converter.document(data, kind)
        return read_document(data, kind)

    def _register(self, request: Request, document: RegistrationDocument) -> Response:
        """Register in a thread, which ends also if the client disconnects."""
        with audited(Change(request, "register", _names_of(document))) as change:
            request.require_still()
            registered = self._node.register(document, tenant=request.grant.tenant)
            change.names = tuple(entry(r.kind, r.name, r.version) for r in registered)
        return json_response(RegisterResponse(tuple(registered)))

    async def list_kind(self, request: Request) -> Response:
        """``GET /v1/{kind}``: the newest version of each name."""
        request.expect_query(())
        kind = _kind(request)
        return await asyncio.to_thread(self._list, kind, request.grant.tenant)

    def _list(self, kind: str, tenant: str) -> Response:
        wanted = KINDS[kind]
        records = self._node.records(tenant=tenant)
        return json_response({kind: [entry_of(r) for r in records if isinstance(r, wanted)]})

    async def describe(self, request: Request) -> Response:
        """``GET /v1/{kind}/{name}``: one record, its versions and its signature."""
        request.expect_query(("version",))
        cls, name = self._target(request)
        version, tenant = request.version, request.grant.tenant
        return await asyncio.to_thread(
            lambda: json_response(self._describe(cls, name, version, tenant))
        )

    async def remove(self, request: Request) -> Response:
        """``DELETE /v1/{kind}/{name}``: all versions, or one."""
        cls, name = self._target(request)
        kind = kind_of(cls)
        with preparing(Change(request, "remove", [f"{kind}:{name}"])):
            request.expect_query(("version",))
            removal = Removal(kind, name, request.version)
        return await asyncio.to_thread(self._remove, request, (removal,))

    async def remove_together(self, request: Request) -> Response:
        """``POST /v1/remove``: several records, all or nothing."""
        with preparing(Change(request, "remove")):
            request.expect_query(())
            body = Body(request, self._node.acquire_to_fill_async, REMOVALS_BYTES)
            removals = read_removals(await body.read())
        return await asyncio.to_thread(self._remove, request, removals)

    def _remove(self, request: Request, removals: tuple[Removal, ...]) -> Response:
        names = [entry(one.kind, one.name, one.version) for one in removals]
        with audited(Change(request, "remove", names)) as change:
            request.require_still()
            removed = self._node.remove_together(removals, tenant=request.grant.tenant)
            change.names = tuple(entry(kind_of(r), r.name, r.version) for r in removed)
        return json_response({"removed": [entry_of(record) for record in removed]})

    async def graph(self, request: Request) -> Response:
        """``GET /v1/compositions/{name}/graph``: a drawing in ``format``, SVG by default."""
        request.expect_query(("version", "format"))
        name = request.parameters["name"]
        format_ = request.query.get("format", "svg")
        record = await asyncio.to_thread(
            self._find, CompositionRecord, name, request.version, request.grant.tenant
        )
        assert isinstance(record, CompositionRecord)
        check_format(format_)
        if costs_drawing(record.text):
            drawn = await self._converter.drawing(record.text, record.name, format_)
        else:
            text = await asyncio.to_thread(draw_text, record.text, record.name, format_)
            drawn = text.encode()
        return Response([drawn], MEDIA_TYPES[format_])

    def _target(self, request: Request) -> tuple[type[Record], str]:
        return KINDS[_kind(request)], request.parameters["name"]

    def _describe(
        self, cls: type[Record], name: str, version: int | None, tenant: str
    ) -> Description:
        record = self._find(cls, name, version, tenant)
        versions = tuple(self._node.versions(cls, name, tenant=tenant))
        plain: Plain = msgspec.to_builtins(record)
        described = Description(kind_of(cls), name, record.version, versions, plain)
        if isinstance(record, LibraryRecord):
            return described
        sets = self._node.signature(name, version, tenant=tenant)
        return msgspec.structs.replace(
            described, inputs=sets.inputs, outputs=sets.outputs, static=sets.static
        )

    def _find(self, cls: type[Record], name: str, version: int | None, tenant: str) -> Record:
        if len(name) > NAME_LIMIT:
            raise Unknown(kind_of(cls), clipped(name))
        if cls is not LibraryRecord and self._node.versions(cls, name, tenant=tenant):
            return self._node.describe(name, version, tenant=tenant)
        records = [r for r in self._node.records(tenant=tenant) if isinstance(r, cls)]
        for record in records:
            if record.name == name and version in (None, record.version):
                return record
        close = nearest(name, (r.name for r in records if r.name != name))
        raise Unknown(kind_of(cls), name, version, close)


def _kind(request: Request) -> str:
    """Return the last word of ``/v1/{kind}``, which each path below it begins with."""
    return request.path.split("/", 3)[2]


def _names_of(document: RegistrationDocument) -> list[str]:
    """Name what a document would register; compositions are not parsed yet."""
    functions = [f"function:{function.name}" for function in document.functions]
    return functions + [f"library:{name}" for name in document.libraries]


def json_response(value: object, status: int = 200) -> Response:
    """Respond with a value as JSON."""
    return Response([msgspec.json.encode(value)], status=status)
