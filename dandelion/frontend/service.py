"""What the frontend needs of a node.

`dandelion.node.Node` offers it in its own process, `dandelion.frontend_process.RemoteNode` in a
frontend process. Nothing in the frontend knows which of the two it talks to.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from dandelion.activity import Activity, ActivityQuery
from dandelion.asynchronous.records import KeptPage, KeptRequest, KeptState, KeptView, Watched
from dandelion.call_logs import PAGE_LINES, LogPage
from dandelion.capacity import ClusterInfo, NodeCapacity
from dandelion.catalog import CompositionRecord, Record, Removal
from dandelion.data import Bytes, ItemSet, Sets, SetSpec
from dandelion.documents import PlannedChange, Registered, RegistrationDocument
from dandelion.function import FunctionSpec
from dandelion.invocation_totals import InvocationTotals
from dandelion.memory import ArenaMap, Context
from dandelion.settings import Settings
from dandelion.shared_regions import SharedRegion
from dandelion.trace_context import InvocationSpan


class Signature(Protocol):
    """What a function or composition takes and gives; see `dandelion.node.Signature`."""

    @property
    def kind(self) -> str:
        """``function`` or ``composition``."""

    @property
    def version(self) -> int:
        """Its version."""

    @property
    def inputs(self) -> tuple[SetSpec, ...]:
        """Sets that a caller gives, in order."""

    @property
    def outputs(self) -> tuple[SetSpec, ...]:
        """Sets that come back, in order."""

    @property
    def static(self) -> tuple[str, ...]:
        """Names of sets that are fixed at registration."""


class ServedResult(Protocol):
    """The result of an invocation, as handlers read it."""

    @property
    def id(self) -> str:
        """Id of the invocation."""

    @property
    def sets(self) -> Sets:
        """The output sets by name; None where empty."""


class KeptInvocations(Protocol):
    """The asynchronous invocations of a node; raises as `dandelion.node.kept_service.KeptService`.

    Invocations of other tenants do not exist.
    """

    async def submit(
        self, request: KeptRequest, sets: Mapping[str, ItemSet | None], *, tenant: str
    ) -> KeptView:
        """Accept one: when this returns, it is as durable as the node's store."""

    async def watch(
        self, id_: str, *, tenant: str, after: str = "", wait_s: float = 0.0, end: bool = False
    ) -> Watched:
        """Tell about one: at once, or when there are events after `after`, or at its end."""

    async def result(self, id_: str, *, tenant: str) -> ServedResult:
        """Give the result of one."""

    async def cancel(self, id_: str, *, tenant: str) -> KeptView:
        """End one, or forget it if it has ended; return its state before."""

    async def list(
        self, *, tenant: str, state: KeptState | None = None, after: str = "", limit: int = 100
    ) -> KeptPage:
        """List those of a tenant, newest first."""


class Service(Protocol):
    """A node, as the frontend sees it.

    Methods that are not coroutines may wait for the node, so they are called in threads. `alive`,
    `ready` and the properties answer at once. All raise the errors that `dandelion.node.Node`
    raises. What a tenant does not own does not exist for it.
    """

    @property
    def settings(self) -> Settings:
        """Settings of the node; limits of connections are those of this frontend."""

    @property
    def arena(self) -> ArenaMap:
        """The arena, for processes that are trusted with it."""

    @property
    def arena_descriptors(self) -> tuple[int, ...]:
        """Descriptors that every further process which maps the arena has to inherit."""

    @property
    def kept(self) -> KeptInvocations:
        """The asynchronous invocations."""

    @property
    def generation(self) -> int:
        """A number that changes with every change of the catalogue."""

    def alive(self) -> bool:
        """Whether the node's event loop runs."""

    def ready(self) -> bool:
        """Whether every engine is up, or known not to work here."""

    def reload(self) -> None:
        """Read again what the operator may change while the node runs, such as secrets."""

    def acquire_to_fill(self, size_bytes: int) -> Context:
        """Give a context in the arena; not on the event loop.

        It may have any content, so only what the caller has written may be passed on.
        """

    async def acquire_to_fill_async(self, size_bytes: int) -> Context:
        """Give a context in the arena, as `acquire_to_fill` does."""

    def signature(self, name: str, version: int | None = None, *, tenant: str) -> Signature:
        """Tell what a function or composition takes and gives."""

    def records(self, *, tenant: str) -> list[Record]:
        """All registered records in their newest versions, and the platform's functions."""

    def versions(self, kind: type[Record], name: str, *, tenant: str) -> list[int]:
        """Versions of a name, ascending."""

    def describe(
        self, name: str, version: int | None = None, *, tenant: str
    ) -> FunctionSpec | CompositionRecord:
        """Find a function or composition."""

    def register(self, document: RegistrationDocument, /, *, tenant: str) -> list[Registered]:
        """Register functions, libraries and compositions, all or nothing."""

    def compare(self, document: RegistrationDocument, /, *, tenant: str) -> list[PlannedChange]:
        """Tell what registering a document would change."""

    def prepare(self, text: str, *, tenant: str) -> str:
        """Compile a composition without registering it; give a name that holds for a while."""

    def remove_together(self, removals: Sequence[Removal], *, tenant: str) -> list[Record]:
        """Remove records, all or nothing."""

    def engines(self) -> Sequence[object]:
        """All engines, as records that can be written as JSON."""

    def capacity(
        self, tenant: str | None, function: str | None = None, version: int | None = None
    ) -> NodeCapacity:
        """Tell what the node has and what is free, as far as a tenant may see it."""

    def cluster(self) -> ClusterInfo | None:
        """Tell what the node knows of its cluster; None if it is in none."""

    def record(
        self,
        name: str,
        sets: Mapping[str, ItemSet | None],
        *,
        version: int | None = None,
        deadline_s: float | None = None,
        tenant: str,
    ) -> Bytes:
        """Invoke with sets, and record the invocation; see `dandelion.node.Node.record`."""

    def activity(self, tenant: str, query: ActivityQuery) -> Activity:
        """Tell what a tenant did lately."""

    def trace(self, invocation: str, *, tenant: str) -> bytes | None:
        """Give the trace of an invocation of the tenant that ended lately."""

    def totals(self, *, tenant: str) -> list[InvocationTotals]:
        """Tell how many invocations of each name of a tenant ended, and how long they took."""

    def register_region(self, region: SharedRegion, /, *, tenant: str) -> None:
        """Let requests of a tenant refer to shared memory."""

    def unregister_region(self, name: str | None, /, *, tenant: str) -> None:
        """Remove a region of a tenant; None removes all."""

    def regions(self, *, tenant: str) -> list[SharedRegion]:
        """List the regions of a tenant."""

    def logs(
        self,
        function: str | None = None,
        invocation: str | None = None,
        after: int = 0,
        limit: int = PAGE_LINES,
        *,
        tenant: str,
    ) -> LogPage:
        """Give lines that functions of the tenant wrote lately."""

    def lines_dropped(self, count: int) -> None:
        """Count lines of an access log that were lost; on the event loop."""

    def metrics(self) -> bytes:
        """Write the metrics in Prometheus' text format."""

    async def invoke_sets_async(
        self,
        name: str,
        sets: Mapping[str, ItemSet | None],
        *,
        version: int | None = None,
        deadline_s: float | None = None,
        priority: int = 0,
        tenant: str,
        trace_context: InvocationSpan | None = None,
        on_wait: Callable[[], None] | None = None,
    ) -> ServedResult:
        """Invoke with sets; cancelling it cancels the invocation.

        `trace_context` is the span that the request has begun, see `Request.begin_span`.
        `on_wait` is called if the result is not there at once, before this waits for it.
        """
