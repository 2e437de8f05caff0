"""The node's answers to what frontends ask and what is no invocation. All of it runs in threads."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from typing import Any

import msgspec

from dandelion.catalog import KINDS, Record
from dandelion.data import Bytes, Item, ItemSet
from dandelion.documents import Content
from dandelion.errors import DandelionError, InternalError
from dandelion.frontend.conversion.contents import with_contents
from dandelion.frontend.records import read_document
from dandelion.frontend_process.query_messages import (
    Describe,
    GetActivity,
    GetCapacity,
    GetCluster,
    GetEngines,
    GetLogs,
    GetMetrics,
    GetRecords,
    GetRegions,
    GetSignature,
    GetTotals,
    GetTrace,
    GetVersions,
    Prepare,
    Query,
    RecordInvocation,
    Register,
    RegisterRegion,
    Remove,
    UnregisterRegion,
    WireRecord,
    WireSignature,
)
from dandelion.frontend_process.wire import BLOB_BYTES, Blob, WireSets
from dandelion.memory import Context
from dandelion.node import Node

_sets = msgspec.msgpack.Decoder(WireSets)
View = Callable[[int, int, int], memoryview]
"""Views a part of a lease: number, offset and size in bytes."""


class Queries:
    """Answers queries about one node."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._answers: dict[type, Callable[[Any], object]] = {
            GetSignature: self._signature,
            GetRecords: lambda query: _wrapped(node.records(query.tenant)),
            GetVersions: lambda query: node.versions(KINDS[query.kind], query.name, query.tenant),
            Describe: lambda query: WireRecord.of(
                node.describe(query.name, query.version, query.tenant)
            ),
            Prepare: lambda query: node.prepare(query.text, query.tenant),
            Remove: lambda query: _wrapped(node.remove_together(query.removals, query.tenant)),
            GetEngines: lambda _: node.engines(),
            GetCapacity: lambda query: node.capacity(query.tenant, query.function, query.version),
            GetCluster: lambda _: node.cluster(),
            GetActivity: lambda query: node.activity(query.tenant, query.query),
            GetTrace: self._trace,
            GetLogs: lambda query: node.logs(
                query.function, query.invocation, query.after, query.limit, query.tenant
            ),
            GetMetrics: lambda _: node.metrics(),
            GetTotals: lambda query: node.totals(query.tenant),
            RegisterRegion: lambda query: node.register_region(query.region, query.tenant),
            UnregisterRegion: lambda query: node.unregister_region(query.name, query.tenant),
            GetRegions: lambda query: node.regions(query.tenant),
        }

    def _trace(self, query: GetTrace) -> bytes | None:
        found = self._node.trace(query.invocation, query.tenant)
        return None if found is None else bytes(found)  # a subclass is not encoded

    def bound(self, query: Query, view: View) -> Callable[[], tuple[Blob, Context | None]]:
        """Give what answers a query, to be called in a thread: the answer, or where it lies.

        Args:
            query: to be answered.
            view: gives the memory that the query names, before this returns.
        """
        if isinstance(query, Register):
            document, contents = _bytes_of(query.document, view), _bytes_of(query.contents, view)
            register = partial(self._register, document, contents, query)
            return partial(self._answered, register)
        if isinstance(query, RecordInvocation):
            sets = _bytes_of(query.sets, view)
            return partial(self._answered, partial(self._record, query, sets))
        return partial(self._answered, partial(self._answers[type(query)], query))

    def _answered(self, work: Callable[[], object]) -> tuple[Blob, Context | None]:
        try:
            answer = msgspec.msgpack.encode(work())
        except DandelionError:
            raise
        except Exception as error:
            raise InternalError(f"{type(error).__name__}: {error}") from error
        if len(answer) <= BLOB_BYTES:
            return Blob(answer), None
        context = self._node.acquire_to_fill(len(answer))
        context.write(0, answer)
        return Blob(None), context

    def _signature(self, query: GetSignature) -> WireSignature:
        found = self._node.signature(query.name, query.version, query.tenant)
        return WireSignature(found.kind, found.version, found.inputs, found.outputs, found.static)

    def _register(self, document: Bytes, contents: Bytes, query: Register) -> object:
        """Register a document whose contents are apart; see `Register`."""
        end = 0

        def fill(content: Content) -> Content:
            nonlocal end
            start, end = end, end + int(content.text or "0")
            return Content(data=self._copied(contents, start, end))

        bare = read_document(document, "application/msgpack")
        whole = with_contents(bare, fill)
        if query.only_compare:
            return self._node.compare(whole, tenant=query.tenant)
        return self._node.register(whole, tenant=query.tenant)

    def _record(self, query: RecordInvocation, sets: Bytes) -> Bytes:
        given = {
            one.name: ItemSet(
                one.name,
                tuple([Item(i.name, i.key, i.data or b"", i.dtype, i.shape) for i in one.items]),
                one.dtype,
                one.shape,
            )
            if one.items
            else None
            for one in _sets.decode(sets)
        }
        return self._node.record(
            query.name,
            given,
            version=query.version,
            deadline_s=query.deadline_s,
            tenant=query.tenant,
        )

    def _copied(self, data: Bytes, start: int, end: int) -> bytes:
        """Copy a part of data; of the arena by the system, so that other threads run meanwhile."""
        base = self._node.arena.locate(data)
        if base is None:
            return bytes(data[start:end])
        return os.pread(self._node.arena.fd, end - start, base + start)


def _bytes_of(blob: Blob, view: View) -> Bytes:
    return blob.data if blob.data is not None else view(blob.lease, blob.offset, blob.size)


def _wrapped(records: list[Record]) -> list[WireRecord]:
    return [WireRecord.of(record) for record in records]
