"""What a node and a frontend process say to each other; see the package's text.

The node sends `Open` first; the frontend answers `Ready` when it takes connections. Requests of a
frontend carry a number that is unique on the link, and their answers carry it too. The number of a
`Lease`, and of an answer that names memory, stands for that memory until it is in a `Release`.
"""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from dandelion.activity import ActivityQuery
from dandelion.asynchronous.records import KeptRequest, KeptState
from dandelion.catalog import CompositionRecord, LibraryRecord, Record
from dandelion.data import Item, SetSpec
from dandelion.errors import ErrorRecord
from dandelion.function import FunctionSpec
from dandelion.namespaces import DEFAULT_TENANT
from dandelion.node.regions import SharedRegion
from dandelion.settings import Settings
from dandelion.tokens import TokenRecord
from dandelion.trace_context import InvocationSpan

INLINE_BYTES = 4096
"""Data up to this size travels in the message."""
PART_ITEMS = 512
"""So many items of an invocation travel in one message at most."""
BLOB_BYTES = 64 * 1024
"""A document or an answer up to this size travels in the message."""


class WireItem(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """An item: its data, or where the data lies.

    Attributes:
        name, key, dtype, shape: those of `dandelion.data.Item`.
        data: the bytes; None if they lie in the arena.
        offset, size: from a frontend: within the lease; from the node: within the arena. In bytes.
        lease: number of the lease; 0 from the node.
    """

    name: str
    key: int
    data: bytes | None
    dtype: str | None = None
    shape: tuple[int, ...] | None = None
    offset: int = 0
    size: int = 0
    lease: int = 0


class WireSet(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A set; without items it is absent."""

    name: str
    items: tuple[WireItem, ...] = ()
    dtype: str | None = None
    shape: tuple[int, ...] | None = None
    form: str = ""


WireSets: TypeAlias = tuple[WireSet, ...]


class Blob(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Bytes that are no item; `data`, or a place as in `WireItem`."""

    data: bytes | None
    offset: int = 0
    size: int = 0
    lease: int = 0


# --- queries -------------------------------------------------------------------------------------


class GetSignature(msgspec.Struct, frozen=True, array_like=True, tag="signature"):
    """Ask for a `WireSignature`."""

    name: str
    version: int | None
    tenant: str = DEFAULT_TENANT


class GetRecords(msgspec.Struct, frozen=True, array_like=True, tag="records"):
    """Ask for all records, a list of `WireRecord`."""

    tenant: str = DEFAULT_TENANT


class GetVersions(msgspec.Struct, frozen=True, array_like=True, tag="versions"):
    """Ask for the versions of a name, a list of numbers."""

    kind: str
    name: str
    tenant: str = DEFAULT_TENANT


class Describe(msgspec.Struct, frozen=True, array_like=True, tag="describe"):
    """Ask for one function or composition, a `WireRecord`."""

    name: str
    version: int | None
    tenant: str = DEFAULT_TENANT


class Register(msgspec.Struct, frozen=True, array_like=True, tag="register"):
    """Register a document; the answer is a list of `dandelion.documents.Registered`.

    Attributes:
        document: the document in MessagePack; each content is replaced by its length.
        contents: all contents, one after the other.
        only_compare: register nothing; the answer is a list of `PlannedChange`.
    """

    document: Blob
    contents: Blob
    tenant: str = DEFAULT_TENANT
    only_compare: bool = False


class Prepare(msgspec.Struct, frozen=True, array_like=True, tag="prepare"):
    """Compile a composition that is not registered; the answer is a name to invoke it by."""

    text: str
    tenant: str = DEFAULT_TENANT


class Remove(msgspec.Struct, frozen=True, array_like=True, tag="remove"):
    """Remove a name or one version of it; the answer is a list of `WireRecord`."""

    kind: str
    name: str
    version: int | None
    tenant: str = DEFAULT_TENANT


class GetEngines(msgspec.Struct, frozen=True, array_like=True, tag="engines"):
    """Ask for all engines, a list of `dandelion.frontend.records.EngineEntry`."""


class GetCapacity(msgspec.Struct, frozen=True, array_like=True, tag="capacity"):
    """Ask for a `NodeCapacity`, as far as the tenant may see it; `function` may be None."""

    tenant: str | None
    function: str | None
    version: int | None


class GetCluster(msgspec.Struct, frozen=True, array_like=True, tag="cluster"):
    """Ask for a `ClusterInfo`, or None."""


class GetActivity(msgspec.Struct, frozen=True, array_like=True, tag="activity"):
    """Ask for an `Activity`."""

    tenant: str
    query: ActivityQuery


class GetTrace(msgspec.Struct, frozen=True, array_like=True, tag="trace"):
    """Ask for the trace of an invocation, bytes or None."""

    invocation: str
    tenant: str = DEFAULT_TENANT


class GetLogs(msgspec.Struct, frozen=True, array_like=True, tag="logs"):
    """Ask for lines that functions wrote, a `LogPage`."""

    function: str | None
    invocation: str | None
    after: int
    limit: int
    tenant: str = DEFAULT_TENANT


class RecordInvocation(msgspec.Struct, frozen=True, array_like=True, tag="record"):
    """Invoke and record; the answer is the recording, bytes.

    Attributes:
        sets: all sets with their data, `WireSets` in MessagePack.
    """

    name: str
    version: int | None
    deadline_s: float | None
    sets: Blob
    tenant: str = DEFAULT_TENANT


class GetMetrics(msgspec.Struct, frozen=True, array_like=True, tag="metrics"):
    """Ask for the metrics as text, bytes."""


class GetTotals(msgspec.Struct, frozen=True, array_like=True, tag="totals"):
    """Ask for a tenant's totals, a list of `dandelion.node.totals.InvocationTotals`."""

    tenant: str


class RegisterRegion(msgspec.Struct, frozen=True, array_like=True, tag="register_region"):
    """Register shared memory of a client; the answer is None."""

    region: SharedRegion
    tenant: str


class UnregisterRegion(msgspec.Struct, frozen=True, array_like=True, tag="unregister_region"):
    """Remove a region, or all of a tenant; the answer is None."""

    name: str | None
    tenant: str


class GetRegions(msgspec.Struct, frozen=True, array_like=True, tag="regions"):
    """Ask for the regions of a tenant, a list of `SharedRegion`."""

    tenant: str


Query: TypeAlias = (
    GetSignature
    | GetRecords
    | GetVersions
    | Describe
    | Register
    | Prepare
    | Remove
    | GetEngines
    | GetCapacity
    | GetCluster
    | GetActivity
    | GetTrace
    | GetLogs
    | RecordInvocation
    | GetMetrics
    | GetTotals
    | RegisterRegion
    | UnregisterRegion
    | GetRegions
)


class WireSignature(msgspec.Struct, frozen=True):
    """See `dandelion.frontend.service.Signature`."""

    kind: str
    version: int
    inputs: tuple[SetSpec, ...]
    outputs: tuple[SetSpec, ...]
    static: tuple[str, ...]


class WireRecord(msgspec.Struct, frozen=True, array_like=True):
    """A record of the catalogue: exactly one of the three."""

    function: FunctionSpec | None = None
    composition: CompositionRecord | None = None
    library: LibraryRecord | None = None

    @classmethod
    def of(cls, record: Record) -> WireRecord:
        """Wrap a record."""
        if isinstance(record, FunctionSpec):
            return cls(function=record)
        if isinstance(record, CompositionRecord):
            return cls(composition=record)
        return cls(library=record)

    def record(self) -> Record:
        """Give the record."""
        found = self.function or self.composition or self.library
        assert found is not None
        return found


# --- from a frontend ------------------------------------------------------------------------------


class Ready(msgspec.Struct, frozen=True, array_like=True, tag="ready"):
    """The frontend takes connections."""


class Part(msgspec.Struct, frozen=True, array_like=True, gc=False, tag="part"):
    """Some items of a set of an invocation or a result; its `Submit` or `Ended` follows.

    The items of one set may come in several parts.
    """

    number: int
    set: WireSet


class Submit(msgspec.Struct, frozen=True, array_like=True, gc=False, tag="submit"):
    """Invoke; answered by `Ended` or `Failed`. `sets` has all sets, without the items of parts."""

    number: int
    name: str
    version: int | None
    deadline_s: float | None
    priority: int
    sets: WireSets
    tenant: str = DEFAULT_TENANT
    span: InvocationSpan | None = None


class Cancel(msgspec.Struct, frozen=True, array_like=True, gc=False, tag="cancel"):
    """Cancel an invocation, or drop its parts. Its answer, if there is one, is not read."""

    number: int


class Lease(msgspec.Struct, frozen=True, array_like=True, gc=False, tag="lease"):
    """Ask for memory of the arena; answered by `Leased` or `Failed`."""

    number: int
    size: int


class WatchKept(msgspec.Struct, frozen=True, array_like=True, tag="watch"):
    """Ask about an asynchronous invocation, a `Watched`."""

    id: str
    after: str
    wait_s: float
    end: bool


class CancelKept(msgspec.Struct, frozen=True, array_like=True, tag="cancel"):
    """End or forget an asynchronous invocation; the answer is a `KeptView`."""

    id: str


class ListKept(msgspec.Struct, frozen=True, array_like=True, tag="list"):
    """Ask for some asynchronous invocations, a `KeptPage`."""

    state: KeptState | None
    after: str
    limit: int


KeptQuery: TypeAlias = WatchKept | CancelKept | ListKept


class Keep(msgspec.Struct, frozen=True, array_like=True, gc=False, tag="keep"):
    """Accept an asynchronous invocation; answered by `Answered` with a `KeptView`, or `Failed`.

    `sets` are as of `Submit`.
    """

    number: int
    request: KeptRequest
    sets: WireSets
    tenant: str


class AskKept(msgspec.Struct, frozen=True, array_like=True, gc=False, tag="ask_kept"):
    """Ask about asynchronous invocations; answered by `Answered` or `Failed`.

    It may wait for long, with neither a thread nor memory of the arena. `Cancel` ends it.
    """

    number: int
    query: KeptQuery
    tenant: str


class FetchKept(msgspec.Struct, frozen=True, array_like=True, gc=False, tag="fetch_kept"):
    """Ask for the result of an asynchronous invocation; answered as `Submit`."""

    number: int
    id: str
    tenant: str


class Release(msgspec.Struct, frozen=True, array_like=True, gc=False, tag="release"):
    """Give memory back."""

    numbers: tuple[int, ...]


class LinesDropped(msgspec.Struct, frozen=True, array_like=True, tag="lines_dropped"):
    """Count lines of the access log that were lost."""

    count: int


class Ask(msgspec.Struct, frozen=True, array_like=True, tag="ask"):
    """Ask a query; answered by `Answered` or `Failed`."""

    number: int
    query: Query


# --- from the node --------------------------------------------------------------------------------


class Open(msgspec.Struct, frozen=True, array_like=True, tag="open"):
    """Begin to serve.

    Attributes:
        settings: of the node; limits of connections are this frontend's share.
        host: what the server was asked to listen on.
        drain_s: how long requests may take after `Drain`, in seconds.
        log_level: of the node, as `logging` numbers it.
        status_offset: of the node's status in the arena, see `status`.
        tokens: what callers may do; None without a file of tokens.
    """

    settings: Settings
    host: str
    drain_s: int
    log_level: int
    status_offset: int
    tokens: tuple[TokenRecord, ...] | None = None


class Reload(msgspec.Struct, frozen=True, array_like=True, tag="reload"):
    """Use these tokens from now on, and read other files again.

    Attributes:
        tokens: None without a file of tokens.
        files: whether to read the certificate, and to open the access log again.
    """

    tokens: tuple[TokenRecord, ...] | None
    files: bool


class Drain(msgspec.Struct, frozen=True, array_like=True, tag="drain"):
    """Take no more connections, end the requests under way, and leave."""


class Ended(msgspec.Struct, frozen=True, array_like=True, gc=False, tag="ended"):
    """An invocation gave its outputs. `sets` has all sets, without the items of parts."""

    number: int
    id: str
    sets: WireSets


class Leased(msgspec.Struct, frozen=True, array_like=True, gc=False, tag="leased"):
    """Memory of the arena, all zero."""

    number: int
    offset: int


class Answered(msgspec.Struct, frozen=True, array_like=True, gc=False, tag="answered"):
    """The answer of a query, in MessagePack."""

    number: int
    answer: Blob


class Failed(msgspec.Struct, frozen=True, array_like=True, tag="failed"):
    """What was asked for cannot be had; `id` is that of the invocation, if there was one."""

    number: int
    id: str
    error: ErrorRecord


FromFrontend: TypeAlias = (
    Ready
    | Part
    | Submit
    | Cancel
    | Lease
    | Release
    | LinesDropped
    | Ask
    | Keep
    | AskKept
    | FetchKept
)
FromNode: TypeAlias = Open | Reload | Drain | Part | Ended | Leased | Answered | Failed

from_frontend: msgspec.msgpack.Decoder[list[FromFrontend]] = msgspec.msgpack.Decoder(
    list[FromFrontend]
)
from_node: msgspec.msgpack.Decoder[list[FromNode]] = msgspec.msgpack.Decoder(list[FromNode])


def inline_item(item: Item, data: bytes) -> WireItem:
    """Name an item with its data."""
    return WireItem(item.name, item.key, data, item.dtype, item.shape)


def joined(parts: list[WireSet], sets: WireSets) -> WireSets:
    """Give sets with the items of their parts, which come first."""
    items: dict[str, list[WireItem]] = {one.name: [] for one in sets}
    for part in parts:
        items.setdefault(part.name, []).extend(part.items)
    return tuple(
        WireSet(one.name, (*items[one.name], *one.items), one.dtype, one.shape, one.form)
        for one in sets
    )
