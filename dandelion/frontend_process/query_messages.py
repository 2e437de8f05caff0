"""Queries of a frontend process to its node, and the records in their answers.

A query travels in `Ask`, and its answer in `Answered`; see `messages`.
"""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from dandelion.activity import ActivityQuery
from dandelion.catalog import CompositionRecord, LibraryRecord, Record, Removal
from dandelion.data import SetSpec
from dandelion.frontend_process.wire import Blob
from dandelion.function import FunctionSpec
from dandelion.namespaces import DEFAULT_TENANT
from dandelion.shared_regions import SharedRegion


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
    """Remove records, all or nothing; the answer is a list of `WireRecord`."""

    removals: tuple[Removal, ...]
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
    """Ask for a tenant's totals, a list of `dandelion.invocation_totals.InvocationTotals`."""

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
