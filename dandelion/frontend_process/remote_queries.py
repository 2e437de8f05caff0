"""What a frontend asks its node besides invocations. All of it waits, and is for threads."""

from __future__ import annotations

import abc
from collections.abc import Mapping, Sequence
from typing import TypeVar

import msgspec

from dandelion.activity import Activity, ActivityQuery
from dandelion.call_logs import PAGE_LINES, LogPage
from dandelion.capacity import ClusterInfo, NodeCapacity
from dandelion.catalog import CompositionRecord, Record, Removal, kind_of
from dandelion.data import Bytes, ItemSet
from dandelion.documents import Content, PlannedChange, Registered, RegistrationDocument
from dandelion.errors import InvalidInput
from dandelion.frontend.conversion.contents import with_contents
from dandelion.frontend.records import EngineEntry, encode_document
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
from dandelion.frontend_process.wire import BLOB_BYTES, Blob, WireSet, inline_item
from dandelion.function import FunctionSpec
from dandelion.invocation_totals import InvocationTotals
from dandelion.memory import Context
from dandelion.shared_regions import SharedRegion

_T = TypeVar("_T")
_signature = msgspec.msgpack.Decoder(WireSignature)
_records = msgspec.msgpack.Decoder(list[WireRecord])
_record = msgspec.msgpack.Decoder(WireRecord)
_versions = msgspec.msgpack.Decoder(list[int])
_registered = msgspec.msgpack.Decoder(list[Registered])
_activity = msgspec.msgpack.Decoder(Activity)
_planned = msgspec.msgpack.Decoder(list[PlannedChange])
_cluster: msgspec.msgpack.Decoder[ClusterInfo | None] = msgspec.msgpack.Decoder(ClusterInfo | None)
_capacity = msgspec.msgpack.Decoder(NodeCapacity)
_page = msgspec.msgpack.Decoder(LogPage)
_engines = msgspec.msgpack.Decoder(list[EngineEntry])
_none = msgspec.msgpack.Decoder(None)
_totals = msgspec.msgpack.Decoder(list[InvocationTotals])
_regions = msgspec.msgpack.Decoder(list[SharedRegion])
_name = msgspec.msgpack.Decoder(str)
_bytes = msgspec.msgpack.Decoder(bytes)
_bytes_or_none: msgspec.msgpack.Decoder[bytes | None] = msgspec.msgpack.Decoder(bytes | None)


class RemoteQueries(abc.ABC):
    """The methods of `dandelion.frontend.service.Service` that wait for the node."""

    def reload(self) -> None:
        """See `Service`. The node's process does it, which gets the signal."""

    def signature(self, name: str, version: int | None = None, *, tenant: str) -> WireSignature:
        """See `Service`."""
        return self._ask(GetSignature(name, version, tenant), _signature)

    def records(self, *, tenant: str) -> list[Record]:
        """See `Service`."""
        return [one.record() for one in self._ask(GetRecords(tenant), _records)]

    def versions(self, kind: type[Record], name: str, *, tenant: str) -> list[int]:
        """See `Service`."""
        return self._ask(GetVersions(kind_of(kind), name, tenant), _versions)

    def describe(
        self, name: str, version: int | None = None, *, tenant: str
    ) -> FunctionSpec | CompositionRecord:
        """See `Service`."""
        record = self._ask(Describe(name, version, tenant), _record).record()
        assert isinstance(record, FunctionSpec | CompositionRecord)
        return record

    def register(self, document: RegistrationDocument, /, *, tenant: str) -> list[Registered]:
        """See `Service`."""
        return self._asked_about(document, tenant, False, _registered)

    def compare(self, document: RegistrationDocument, /, *, tenant: str) -> list[PlannedChange]:
        """See `Service`."""
        return self._asked_about(document, tenant, True, _planned)

    def _asked_about(
        self,
        document: RegistrationDocument,
        tenant: str,
        only_compare: bool,
        decoder: msgspec.msgpack.Decoder[_T],
    ) -> _T:
        contents: list[bytes] = []

        def take(content: Content) -> Content:
            contents.append(content.bytes())
            return Content(text=str(len(contents[-1])))

        try:
            bare = encode_document(with_contents(document, take))
        except OverflowError as error:
            raise InvalidInput("body", f"a number is too large: {error}") from None
        kept: list[Context] = []
        placed = self._blob([bare], kept), self._blob(contents, kept)
        return self._ask(Register(*placed, tenant, only_compare), decoder)

    def prepare(self, text: str, *, tenant: str) -> str:
        """See `Service`."""
        return self._ask(Prepare(text, tenant), _name)

    def remove_together(self, removals: Sequence[Removal], *, tenant: str) -> list[Record]:
        """See `Service`."""
        removed = self._ask(Remove(tuple(removals), tenant), _records)
        return [one.record() for one in removed]

    def engines(self) -> list[EngineEntry]:
        """See `Service`."""
        return self._ask(GetEngines(), _engines)

    def capacity(
        self, tenant: str | None, function: str | None = None, version: int | None = None
    ) -> NodeCapacity:
        """See `Service`."""
        return self._ask(GetCapacity(tenant, function, version), _capacity)

    def cluster(self) -> ClusterInfo | None:
        """See `Service`."""
        return self._ask(GetCluster(), _cluster)

    def activity(self, tenant: str, query: ActivityQuery) -> Activity:
        """See `Service`."""
        return self._ask(GetActivity(tenant, query), _activity)

    def trace(self, invocation: str, *, tenant: str) -> bytes | None:
        """See `Service`."""
        return self._ask(GetTrace(invocation, tenant), _bytes_or_none)

    def totals(self, *, tenant: str) -> list[InvocationTotals]:
        """See `Service`."""
        return self._ask(GetTotals(tenant), _totals)

    def register_region(self, region: SharedRegion, /, *, tenant: str) -> None:
        """See `Service`."""
        self._ask(RegisterRegion(region, tenant), _none)

    def unregister_region(self, name: str | None, /, *, tenant: str) -> None:
        """See `Service`."""
        self._ask(UnregisterRegion(name, tenant), _none)

    def regions(self, *, tenant: str) -> list[SharedRegion]:
        """See `Service`."""
        return self._ask(GetRegions(tenant), _regions)

    def logs(
        self,
        function: str | None = None,
        invocation: str | None = None,
        after: int = 0,
        limit: int = PAGE_LINES,
        *,
        tenant: str,
    ) -> LogPage:
        """See `Service`."""
        return self._ask(GetLogs(function, invocation, after, limit, tenant), _page)

    def record(
        self,
        name: str,
        sets: Mapping[str, ItemSet | None],
        *,
        version: int | None = None,
        deadline_s: float | None = None,
        tenant: str,
    ) -> Bytes:
        """See `Service`."""
        given = [
            WireSet(set_name)
            if one is None
            else WireSet(
                set_name,
                tuple([inline_item(item, item.bytes()) for item in one.items]),
                one.dtype,
                one.shape,
            )
            for set_name, one in sets.items()
        ]
        kept: list[Context] = []
        placed = self._blob([msgspec.msgpack.encode(given)], kept)
        query = RecordInvocation(name, version, deadline_s, placed, tenant)
        return self._ask(query, _bytes)

    def metrics(self) -> bytes:
        """See `Service`."""
        return self._ask(GetMetrics(), _bytes)

    def _ask(self, query: Query, decoder: msgspec.msgpack.Decoder[_T]) -> _T:
        return decoder.decode(self._answer(query))

    @abc.abstractmethod
    def _answer(self, query: Query) -> Bytes:
        """Send a query and wait for its answer."""

    @abc.abstractmethod
    def _lease_now(self, size_bytes: int) -> tuple[int, Context]:
        """Wait for a lease; give its number and its context."""

    def _blob(self, pieces: list[bytes], kept: list[Context]) -> Blob:
        """Name bytes for a message; if they are large, in a context that is added to `kept`."""
        size = sum(map(len, pieces))
        if size <= BLOB_BYTES:
            return Blob(b"".join(pieces))
        number, context = self._lease_now(size)
        kept.append(context)
        end = 0
        for piece in pieces:
            context.write(end, piece)
            end += len(piece)
        return Blob(None, 0, size, number)
