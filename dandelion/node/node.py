"""`Node`: a Dandelion node, embedded in a program or behind the frontend.

    with Node() as node:
        node.register(document)
        html = node.invoke("render", page=b"...").html.text()

The node has one event loop, its own or the caller's. The scheduler runs there and nowhere else
(`runtime`); blocking callers wait in their threads until it has their result. No user code runs in
this process and no device is opened in it.
"""

from __future__ import annotations

import asyncio
import atexit
import enum
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Self

from dandelion.activity import Activity, ActivityQuery
from dandelion.asynchronous.handle import AsyncInvocationHandle, InvocationHandle
from dandelion.asynchronous.records import KeptRequest
from dandelion.asynchronous.store import KeptStore, open_kept_store
from dandelion.call_logs import PAGE_LINES, LogPage
from dandelion.capacity import ClusterInfo, NodeCapacity
from dandelion.catalog import Catalog, CompositionRecord, Record, kind_of, open_catalog
from dandelion.data import ItemSet, Sets, Value, item_set
from dandelion.dataflow.sharding import Partitioning
from dandelion.dispatcher import CompositionPlan
from dandelion.documents import (
    ContentLike,
    FunctionDocument,
    Named,
    PlannedChange,
    Registered,
    Registrable,
    RegistrationDocument,
    collect,
    name_of,
)
from dandelion.driver import Driver, Hosting, InstanceSets
from dandelion.errors import (
    BackendUnavailable,
    Cancelled,
    CapacityError,
    DandelionError,
    InvalidInput,
)
from dandelion.executors import Surroundings, to_dandelion_error
from dandelion.function import FunctionSpec
from dandelion.memory import ArenaMap, Context, SharedDomain, Transfers
from dandelion.namespaces import DEFAULT_TENANT, check_tenant, split_name
from dandelion.node.activity import ActivityLog, activity_of
from dandelion.node.attachment import ClusterPart, NodeParts
from dandelion.node.cache import ResultCache
from dandelion.node.call_logs import CallLogs
from dandelion.node.callback_sender import CallbackRules
from dandelion.node.capacity import (
    capacity_of,
    cores_capacity,
    tenant_capacities,
    workers_capacities,
)
from dandelion.node.functions import FunctionStore
from dandelion.node.info import EngineInfo, NodeInfo, Signature, engine_info, output_specs
from dandelion.node.inputs import InputStager, positional
from dandelion.node.invocation import Invocation, InvocationResult
from dandelion.node.invoker import CallerSpan, Invoker
from dandelion.node.jobs import Jobs
from dandelion.node.kept_access import BlockingKept, NodeKept, TenantKept
from dandelion.node.kept_service import KeptService
from dandelion.node.loop import NodeLoop
from dandelion.node.metrics import exposition
from dandelion.node.observer import Recorder
from dandelion.node.packages import NodePackages, package_source
from dandelion.node.regions import SharedRegion, SharedRegions
from dandelion.node.runtime import Runtime
from dandelion.node.spaces import Spaces, quota_of
from dandelion.node.spans import span_sender
from dandelion.node.starting import (
    Backend,
    EngineStarter,
    check_names,
    load_backends,
    load_checkers,
    load_offered,
    targets,
)
from dandelion.node.totals import InvocationTotals
from dandelion.node.traces import TraceStore
from dandelion.planned_changes import planned_changes
from dandelion.recording.code import code_of
from dandelion.recording.recorder import RECORDING_LIMIT_BYTES, InvocationRecorder
from dandelion.registration import Target, blobs_of
from dandelion.scheduler import InvocationState, Scheduler, Tenant, policy_of
from dandelion.scheduler.concurrency import is_extra
from dandelion.scheduler.cores import core_division
from dandelion.scheduler.counts import FlowCounts
from dandelion.scheduler.records import EnginePhase
from dandelion.secrets import SecretStore
from dandelion.settings import Settings, TenantSettings, tracing_of
from dandelion.trace_context import current_context
from dandelion.traces import TraceDocument

_JOB_THREADS = 8


class NodeState(enum.Enum):
    """What a node is doing."""

    NEW = "new"
    RUNNING = "running"
    CLOSED = "closed"


class Node:
    """Registers and invokes. Safe to use from any thread.

    Args:
        settings: see `Settings`; by default everything that works here, a catalogue in memory.
        drivers: further backends, made by the embedding program.
        cluster: makes the node one of several, see `dandelion.cluster.Cluster`.

    Raises:
        InvalidInput: a setting, or a backend or option that it names, does not exist or is bad.
        BackendUnavailable: spans are to be exported, and OpenTelemetry is not installed.
        CatalogCorrupt, CatalogUnavailable, Conflict, DiskFull: the catalogue
            cannot be opened.
    """

    def __init__(
        self,
        settings: Settings | None = None,
        drivers: Sequence[Driver] = (),
        cluster: ClusterPart | None = None,
    ) -> None:
        self.settings = settings = settings or Settings()
        partitioning, caps = _partitioning(settings.partitioning), settings.caps
        check_names(settings, [driver.name for driver in drivers])
        self._regions = SharedRegions(settings)
        self._spans = span_sender(settings)
        policy = policy_of(settings.policy)
        division = core_division(settings.cores, len(os.sched_getaffinity(0)))
        if division is not None and not policy.elastic:
            raise InvalidInput(
                "cores", f"the policy '{settings.policy}' fixes engines", "use cores = 'shared'"
            )
        callbacks = CallbackRules.of(settings)
        package_source(settings)  # before anything is open
        for name in settings.tenants:
            check_tenant(name)
        self._backends, self._missing = load_backends(settings)
        self._backends += [Backend(d.name, (d.name,), d) for d in drivers]
        self._cluster = cluster
        self._all = self._opened_catalog(settings.catalog)
        self._kept_store = self._opened_store(settings.catalog)
        self._arena = SharedDomain(settings.arena_bytes)
        self._transfers = Transfers()
        self._checkers = load_checkers(self._backends)
        self._platform = platform = {
            f.name: f for b in self._backends for f in b.driver.platform_functions
        }
        in_arena = frozenset[str]().union(
            *(b.driver.formats for b in self._backends if b.driver.hosting is Hosting.PROCESS)
        )
        self._pool = ThreadPoolExecutor(_JOB_THREADS, "dandelion-job")
        self._cache = ResultCache(min(settings.cache_bytes, settings.arena_bytes // 2))
        self._traces = TraceStore(settings.keep_traces)
        self._logs = CallLogs(settings.log_bytes)
        self._activity = ActivityLog(settings.keep_invocations)
        self._recorder = Recorder(self._traces, self._activity, self._logs, self._spans)
        self._secrets = SecretStore(settings.secrets)
        taking = frozenset(f for f, checker in self._checkers.items() if checker.takes_packages)
        self._packages = NodePackages(settings, self._all, taking)
        store = FunctionStore(
            lambda tenant: self._spaces.of(tenant).catalog,
            self._arena,
            self._transfers,
            in_arena,
            self._secrets,
            self._packages.environment,
        )
        memory_bytes = settings.functions_bytes or settings.arena_bytes // 2
        scheduler = Scheduler(policy, memory_bytes, store.sizes, settings.max_waiting, division)
        jobs = Jobs(store, self._cache, self._pool, lambda event: self._runtime.post(event))
        self._runtime = Runtime(
            scheduler, jobs, self._recorder, settings.spins_us[0], self._arena.recycle_some
        )
        self._runtime.ended = _ended
        self._runtime.changed = self._notify
        self._around = Surroundings(self._runtime, store, self._arena, self._transfers, self._pool)
        self._loop = NodeLoop(self._runtime, self._arena, self._pool)
        self._starter = EngineStarter(settings, self._around, self._runtime, division)
        self._spaces = Spaces(
            self._all,
            platform,
            self._checkers,
            self._targets,
            caps,
            settings.fuse,
            self._secrets,
            load_offered(platform),
            self._packages.planned,
        )
        self._invoker = Invoker(
            self._spaces,
            self._loop,
            self._runtime,
            InputStager(in_arena, self._arena, self._transfers),
            partitioning,
            settings.default_deadline_s,
            tracing_of(settings),
        )
        self._kept = KeptService(
            settings,
            self._kept_store,
            self._invoker,
            self._runtime,
            ThreadPoolExecutor(1, "dandelion-kept"),
            self._pool,
            callbacks,
        )
        self.kept = NodeKept(self._kept, self._loop, self._invoker, cluster)
        self._registering = threading.Lock()
        self._closing = threading.Lock()
        self._changed = threading.Condition()
        self._state = NodeState.NEW
        self._lines_dropped = 0
        self.catalog = self._spaces.of(DEFAULT_TENANT).catalog

    def _opened_catalog(self, url: str) -> Catalog:
        opened = open_catalog(url)
        if self._cluster is None:
            return opened
        try:
            return self._cluster.wrap(opened, url, lambda event: self._runtime.post(event))
        except BaseException:
            opened.close()
            self._cluster.close()
            raise

    def _opened_store(self, catalog: str) -> KeptStore:
        try:
            store = open_kept_store(catalog)
            return store if self._cluster is None else self._cluster.wrap_store(store)
        except BaseException:
            self._all.close()
            if self._cluster is not None:
                self._cluster.close()
            raise

    # --- life -----------------------------------------------------------------------------------

    def start(self, loop: asyncio.AbstractEventLoop | None = None) -> None:
        """Start the engines; they come up in the background, see `ready`.

        Args:
            loop: the running loop of the calling thread, to be used by the node. Without one the
                node runs a loop in a thread of its own, and is closed when the program ends.
        """
        self._loop.start(loop)
        if loop is None:
            atexit.register(self.close)
        self._loop.call(self._start_engines)
        self._state = NodeState.RUNNING
        self._invoker.running = True
        self._loop.call(lambda: self._kept.start(self._loop.loop))
        self._pool.submit(self._packages.restore)

    def _start_engines(self) -> None:
        for name, given in self.settings.tenants.items():
            self._set_tenant(name, given)
        for backend in self._backends:
            try:
                self._starter.start(backend)
            except BackendUnavailable as error:
                self._missing.append(error)
            except Exception as error:  # a backend's bug is no reason for the node not to start
                reason = str(to_dandelion_error(error, backend.entry))
                self._missing.append(BackendUnavailable(backend.entry, reason))
        if self._cluster is not None:
            self._cluster.start(
                NodeParts(
                    self._runtime,
                    self._around,
                    self._spaces,
                    self.settings.caps,
                    self._forget_removed,
                    self._kept,
                )
            )

    def _forget_removed(self, records: Sequence[Record]) -> None:
        """Forget functions that were removed from the catalogue of the cluster."""
        for record in records:
            if isinstance(record, FunctionSpec):
                tenant, name = split_name(record.name)
                owner = self._spaces.of(tenant).tenant
                self._runtime.post(partial(self._removed, owner, name, (record.version,)))

    def _notify(self) -> None:
        with self._changed:
            self._changed.notify_all()

    def close(self) -> None:
        """End all invocations and engines and wait for them. Not from the node's own loop."""
        with self._closing:
            if self._state is NodeState.CLOSED:
                return
            was, self._state = self._state, NodeState.CLOSED
            self._invoker.running = False
            self._packages.stop()
            atexit.unregister(self.close)
            if was is not NodeState.RUNNING and self._cluster is not None:
                _closed(self._cluster.close)
            if was is NodeState.RUNNING:
                _closed(self._close_kept)
                if self._cluster is not None:
                    _closed(self._cluster.close)
                self._loop.call(self._runtime.shut)
                self._close_executors()
            if self._spans is not None:
                _closed(self._spans.close)
            self._end_checks()
            for sharing in self._starter.sharings:
                _closed(sharing.close)
            _closed(self._loop.stop)
            self._pool.shutdown()
            _closed(self._kept.close)
            with self._registering:
                _closed(self._packages.close)
                _closed(self._all.close)
            self._arena.close()

    def _close_kept(self) -> None:
        """Have the store of asynchronous invocations take everything."""
        idle: Future[None] = Future()
        self._loop.call(partial(self._kept.closing, idle))
        idle.result()

    def _close_executors(self) -> None:
        """Close all executors, also those that an engine added as it came up just now."""
        executors, closed = self._runtime.executors, 0
        while closed < len(executors):
            batch = list(executors.values())[closed:]
            threads = []
            for executor in batch:
                thread = threading.Thread(target=_closed, args=(executor.close,))
                try:
                    thread.start()
                except RuntimeError:  # as a program ends, Python 3.12 and later start no threads
                    thread.run()
                else:
                    threads.append(thread)
            for thread in threads:
                thread.join()
            closed += len(batch)
            self._loop.call(lambda: None)

    def _end_checks(self) -> None:
        for checker in self._checkers.values():
            _closed(checker.close)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        self.start(asyncio.get_running_loop())
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await asyncio.to_thread(self.close)

    def alive(self) -> bool:
        """Whether the event loop runs; it is asked there, so it does."""
        return True

    def ready(self) -> bool:
        """Whether every engine that is to be started is up, or known not to work here.

        Workers that are started under load do not count.
        """
        if self._state is not NodeState.RUNNING or self._runtime.starting:
            return False
        executors = list(self._runtime.executors.values())
        engines = [executor.engine for executor in executors]
        return not any(e.phase is EnginePhase.STARTING and not is_extra(e) for e in engines)

    def wait_ready(self, timeout_s: float = 60.0) -> bool:
        """Wait until `ready`. False if that takes longer than the timeout.

        On the node's own loop, as in a coroutine, other work of the loop waits meanwhile.
        """
        if self._loop.is_current:
            self._runtime.wait(self.ready, timeout_s)
            return self.ready()
        with self._changed:
            return self._changed.wait_for(self.ready, timeout_s)

    # --- tenants --------------------------------------------------------------------------------

    def set_tenant(self, name: str, settings: TenantSettings) -> None:
        """Give a tenant other quotas and another weight; it need not exist before.

        Raises:
            InvalidInput: the name cannot be one.
        """
        check_tenant(name)
        self._loop.call(partial(self._set_tenant, name, settings))

    def _set_tenant(self, name: str, settings: TenantSettings) -> None:
        tenant = self._spaces.of(name).tenant
        tenant.quota, tenant.weight = quota_of(settings), settings.weight
        tenant.share_constants = settings.share_constants
        self._runtime.tenant_changed(tenant)

    def reload(self) -> None:
        """Read the file of secrets again; functions that use changed ones are loaded again.

        Calls that run, or wait for an engine, still get the old values.

        Raises:
            InvalidInput: the file cannot be used; the old secrets stay.
        """
        changed = self._secrets.reload()
        if changed and self._state is NodeState.RUNNING:
            self._loop.call(partial(self._runtime.reload_functions, changed))

    # --- the catalogue --------------------------------------------------------------------------

    def register(
        self,
        *things: Registrable,
        functions: Iterable[FunctionDocument] = (),
        libraries: Mapping[str, ContentLike | bytes | Path] | None = None,
        tenant: str = DEFAULT_TENANT,
    ) -> list[Registered]:
        """Register functions, libraries and compositions, all or nothing.

        Code for devices that are up is compiled for them before.

        Args:
            things: registration documents, functions, compositions of the DSL, texts in the
                composition language.
            functions: further functions.
            libraries: code objects by name: text, bytes, or the path of a file.
            tenant: whose they are.

        Returns:
            Kind, name and version of each: libraries, functions, compositions.

        Raises:
            InvalidFunction, InvalidBlueprint, InvalidComposition: what is wrong, all of it.
            Conflict, InvalidInput, Unknown: see `Registrar` and `Catalog`.
            BackendUnavailable, EnvironmentsFull: packages of functions cannot be prepared.
        """
        document = collect(things, functions, libraries)
        with self._packages.prepared(document) as completed:
            return self._register(completed, tenant)

    def _register(self, document: RegistrationDocument, tenant: str) -> list[Registered]:
        """Register a document whose packages are prepared."""
        blobs = blobs_of(document)
        space = self._spaces.of(tenant)
        with self._registering:
            self._refuse_if_closed()
            draft = space.registrar.draft(document, blobs)
        try:
            draft.look_into_code()  # takes long, so no lock is held meanwhile
        finally:
            if self._state is NodeState.CLOSED:  # it may have started again what close() had ended
                self._end_checks()
        with self._registering:
            self._refuse_if_closed()
            records = space.catalog.register(space.registrar.batch(draft))
        return [Registered(kind_of(r), r.name, r.version) for r in records]

    def compare(
        self, document: RegistrationDocument, /, tenant: str = DEFAULT_TENANT
    ) -> list[PlannedChange]:
        """Tell what registering a document would change. Code is not looked into.

        Raises:
            InvalidFunction, InvalidBlueprint, InvalidComposition, Conflict: as `register`.
        """
        document = self._packages.resolved(document)
        space = self._spaces.of(tenant)
        blobs = blobs_of(document)
        with self._registering:
            self._refuse_if_closed()
            batch = space.registrar.draft(document, blobs).batch
            return planned_changes(batch, space.catalog)

    def _refuse_if_closed(self) -> None:
        if self._state is NodeState.CLOSED:
            raise Cancelled("the node is closed")

    def _targets(self, format_name: str) -> list[Target]:
        return targets(self._backends, list(self._runtime.executors.values()), format_name)

    def records(self, tenant: str = DEFAULT_TENANT) -> list[Record]:
        """All registered records in their newest versions, and the platform's functions."""
        return [*self._platform.values(), *self._spaces.of(tenant).catalog.records()]

    def versions(self, kind: type[Record], name: str, tenant: str = DEFAULT_TENANT) -> list[int]:
        """Versions of a name, ascending."""
        return self._spaces.of(tenant).catalog.versions(kind, name)

    def describe(
        self, name: str, version: int | None = None, tenant: str = DEFAULT_TENANT
    ) -> FunctionSpec | CompositionRecord:
        """Find a function or composition.

        Raises:
            Unknown: with the nearest name.
        """
        return self._spaces.of(tenant).library.find(name, version)

    def signature(
        self, name: str, version: int | None = None, tenant: str = DEFAULT_TENANT
    ) -> Signature:
        """Tell what a function or composition takes and gives.

        Raises:
            Unknown: with the nearest name.
        """
        library = self._spaces.of(tenant).library
        found = library.find(name, version)
        plan = library.plan(name, version)
        static = found.fixed if isinstance(found, FunctionSpec) else ()
        return Signature(
            name, kind_of(found), found.version, plan.inputs, output_specs(plan), static
        )

    def prepare(self, text: str, tenant: str = DEFAULT_TENANT) -> str:
        """Compile a composition that is invoked without being registered.

        Args:
            text: one composition in the composition language.
            tenant: whose functions it applies.

        Returns:
            A name to invoke it by. After a change of the catalogue, or when other compositions
            were prepared since, it is unknown and has to be prepared again.

        Raises:
            InvalidComposition, InvalidInput, TooLarge: see `Registrar.composition`.
        """
        space = self._spaces.of(tenant)
        return space.library.prepare(text, space.registrar.composition)

    def remove(
        self,
        kind: type[Record],
        name: str,
        version: int | None = None,
        tenant: str = DEFAULT_TENANT,
    ) -> list[Record]:
        """Remove one version of a name, or all.

        Raises:
            Unknown, Conflict: there is no such thing, or a composition uses it.
        """
        space = self._spaces.of(tenant)
        with self._registering:  # or a composition may be registered that uses it meanwhile
            removed = space.catalog.remove(kind, name, version)
        self._packages.release_unused()
        if kind is FunctionSpec and self._state is NodeState.RUNNING:
            versions = [record.version for record in removed]
            self._loop.call(partial(self._removed, space.tenant, name, versions))
        return removed

    def _removed(self, tenant: Tenant, name: str, versions: Sequence[int]) -> None:
        self._cache.drop(f"{tenant.name}/{name}")
        for version in versions:
            self._runtime.removed(tenant, name, version)

    # --- invoking -------------------------------------------------------------------------------

    def invoke(
        self,
        name: str | Named,
        /,
        *,
        version: int | None = None,
        deadline_s: float | None = None,
        priority: int = 0,
        tenant: str = DEFAULT_TENANT,
        trace_context: CallerSpan = None,
        **sets: Value,
    ) -> Sets:
        """Invoke a function or composition with Python values; see `dandelion.data.item_set`.

        Args:
            name: what to invoke: a name, or a decorated function or composition.
            version: which version; by default the newest.
            deadline_s: seconds until the invocation is given up.
            priority: from -1000 to 1000. Of the waiting calls of this tenant, those of the highest
                priority are next. Calls of other tenants are not affected.
            tenant: whose function or composition it is; its quotas and share hold.
            trace_context: the caller's span. By default OpenTelemetry's current span, if the
                program uses OpenTelemetry.
            **sets: the input sets. All must be named; None is an absent set.

        Returns:
            The output sets by name.

        Raises:
            Unknown, InvalidInput: the call does not fit.
            ApplicationFailed, FunctionError: a function failed.
            DeadlineExceeded, Overloaded, CapacityError, NoEngine: not now, or not here.
        """
        plan = self._spaces.of(tenant).library.plan(name_of(name), version)
        inputs = positional(plan, _converted(plan, sets))
        trace_context = trace_context or current_context()
        return self._invoker.call(plan, inputs, deadline_s, tenant, priority, trace_context).sets

    async def invoke_async(
        self,
        name: str | Named,
        /,
        *,
        version: int | None = None,
        deadline_s: float | None = None,
        priority: int = 0,
        tenant: str = DEFAULT_TENANT,
        trace_context: CallerSpan = None,
        **sets: Value,
    ) -> Sets:
        """Invoke as `invoke` does, from any event loop; cancelling it cancels the invocation."""
        plan = await self._invoker.plan(name_of(name), version, tenant)
        inputs = positional(plan, _converted(plan, sets))
        trace_context = trace_context or current_context()
        result = await self._invoker.await_result(
            plan, inputs, deadline_s, tenant, priority, trace_context
        )
        return result.sets

    def invoke_sets(
        self,
        name: str | Named,
        sets: Mapping[str, ItemSet | None],
        *,
        version: int | None = None,
        deadline_s: float | None = None,
        priority: int = 0,
        tenant: str = DEFAULT_TENANT,
        trace_context: CallerSpan = None,
    ) -> InvocationResult:
        """Invoke with sets; gives the result with its trace. Raises as `invoke`."""
        plan = self._spaces.of(tenant).library.plan(name_of(name), version)
        inputs = positional(plan, sets)
        trace_context = trace_context or current_context()
        return self._invoker.call(plan, inputs, deadline_s, tenant, priority, trace_context)

    async def invoke_sets_async(
        self,
        name: str,
        sets: Mapping[str, ItemSet | None],
        *,
        version: int | None = None,
        deadline_s: float | None = None,
        priority: int = 0,
        tenant: str = DEFAULT_TENANT,
        trace_context: CallerSpan = None,
        on_wait: Callable[[], None] | None = None,
    ) -> InvocationResult:
        """Invoke with sets, from any event loop; cancelling it cancels the invocation.

        Args:
            name, sets, version, deadline_s, priority, tenant: as of `invoke`.
            trace_context: the caller's span, or the span that a frontend has begun. Unlike with the
                other methods, OpenTelemetry's current span is not used: a server's loop may have
                been started in one.
            on_wait: called if the result is not there at once, before this waits for it.
        """
        plan = await self._invoker.plan(name, version, tenant)
        inputs = positional(plan, sets)
        return await self._invoker.await_result(
            plan, inputs, deadline_s, tenant, priority, trace_context, on_wait
        )

    def record(
        self,
        name: str | Named,
        sets: Mapping[str, ItemSet | None],
        *,
        version: int | None = None,
        deadline_s: float | None = None,
        tenant: str = DEFAULT_TENANT,
        limit_bytes: int = RECORDING_LIMIT_BYTES,
    ) -> bytes:
        """Invoke with sets, and record the invocation: code, inputs, calls, and the result.

        Functions are called one by one, also those that `fuse` would join. A failure of the
        invocation is part of the recording.

        Args:
            name, sets, version, deadline_s, tenant: as of `invoke_sets`.
            limit_bytes: of data in the recording, see `InvocationRecorder`.

        Returns:
            The recording, see `dandelion.recording.records.decode_recording`.

        Raises:
            Unknown, InvalidInput, CapacityError, Cancelled: it was not run, or not to its end.
            TooLarge: what a replay needs exceeds the limit.
        """
        name = name_of(name)
        space = self._spaces.of(tenant)
        plan = space.library.separate_plan(name, version)
        code = code_of(name, version, space.library.find, space.catalog)
        inputs = positional(plan, sets)
        recorder = InvocationRecorder(limit_bytes)
        started_ns = time.monotonic_ns()
        answer: InstanceSets | DandelionError
        try:
            result = self._invoker.call(plan, inputs, deadline_s, tenant, 0, recorder=recorder)
            id_, answer = result.id, tuple(result.sets.values())
        except DandelionError as error:
            if not error.invocation or isinstance(error, CapacityError | Cancelled):
                raise
            id_, answer = error.invocation, error
        names = tuple(spec.name for spec in plan.inputs)
        return recorder.recording(name, id_, started_ns, code, names, inputs, answer).encode()

    def begin(
        self,
        name: str,
        sets: Mapping[str, ItemSet | None],
        *,
        version: int | None = None,
        deadline_s: float | None = None,
        priority: int = 0,
        tenant: str = DEFAULT_TENANT,
        trace_context: CallerSpan = None,
        ended: Callable[[Invocation], None],
    ) -> Invocation:
        """Begin an invocation, on the node's own loop only.

        Args:
            name, sets, version, deadline_s, priority, tenant, trace_context: as of
                `invoke_sets_async`.
            ended: called on the loop at the end, perhaps before this returns.

        Raises:
            Unknown, InvalidInput, Overloaded, CapacityError, Cancelled: it did not begin.
        """
        return self._invoker.begin(
            name, sets, version, deadline_s, tenant, priority, ended, trace_context
        )

    def gathering(self) -> AbstractContextManager[None]:
        """Work at the end of a block on all that `begin` and `cancel` do in it; on the loop only.

        For a caller that has many of them at hand: one by one, each costs a look for more work.
        """
        return self._runtime.gathering()

    def cancel(self, invocation: Invocation, error: DandelionError) -> None:
        """End an invocation that `begin` began, on the node's own loop only."""
        self._runtime.cancel(invocation, error)

    # --- invoking asynchronously ------------------------------------------------------------------

    def submit(
        self,
        name: str | Named,
        /,
        *,
        version: int | None = None,
        deadline_s: float | None = None,
        priority: int = 0,
        key: str = "",
        callback: str = "",
        tenant: str = DEFAULT_TENANT,
        **sets: Value,
    ) -> InvocationHandle:
        """Accept an asynchronous invocation, and return at once; see ``docs/asynchronous.md``.

        Args:
            name, version, priority, tenant, sets: as of `invoke`.
            deadline_s: of each attempt, in seconds; by default the setting `async_deadline_s`.
            key: a second submission with the same key and the same request gives the first
                invocation.
            callback: a URL that is called at the end, if the operator allows it.

        Raises:
            Unknown, InvalidInput: the call does not fit.
            KeyReused: the key belongs to another request.
            Overloaded, KeptFull, DiskFull, CatalogUnavailable: it cannot be kept now.
        """
        request = KeptRequest(
            name=name_of(name),
            version=version,
            deadline_s=deadline_s,
            priority=priority,
            key=key,
            callback=callback,
        )
        plan = self._spaces.of(tenant).library.plan(name_of(name), version)
        access = BlockingKept(self.kept, tenant)
        return InvocationHandle(access.submit(request, _converted(plan, sets)), access)

    async def submit_async(
        self,
        name: str | Named,
        /,
        *,
        version: int | None = None,
        deadline_s: float | None = None,
        priority: int = 0,
        key: str = "",
        callback: str = "",
        tenant: str = DEFAULT_TENANT,
        **sets: Value,
    ) -> AsyncInvocationHandle:
        """Accept an asynchronous invocation as `submit` does, from any event loop."""
        request = KeptRequest(
            name=name_of(name),
            version=version,
            deadline_s=deadline_s,
            priority=priority,
            key=key,
            callback=callback,
        )
        plan = await self._invoker.plan(name_of(name), version, tenant)
        view = await self.kept.submit(request, _converted(plan, sets), tenant=tenant)
        return AsyncInvocationHandle(view.id, TenantKept(self.kept, tenant))

    def submitted(self, id_: str, tenant: str = DEFAULT_TENANT) -> InvocationHandle:
        """Give the handle of an asynchronous invocation that was submitted before, by its id."""
        return InvocationHandle(id_, BlockingKept(self.kept, tenant))

    # --- shared memory of clients -----------------------------------------------------------------

    def register_region(self, region: SharedRegion, tenant: str = DEFAULT_TENANT) -> None:
        """Let requests of a tenant refer to shared memory; raises as `SharedRegions.register`."""
        self._regions.register(region, tenant)

    def unregister_region(self, name: str | None, tenant: str = DEFAULT_TENANT) -> None:
        """Remove a region of a tenant; None removes all. One that is not there is no error."""
        self._regions.unregister(name, tenant)

    def regions(self, tenant: str = DEFAULT_TENANT) -> list[SharedRegion]:
        """List the regions of a tenant."""
        return self._regions.of(tenant)

    # --- looking --------------------------------------------------------------------------------

    def acquire(self, size_bytes: int) -> Context:
        """Give a context in the arena, for data that is about to be invoked with.

        Raises:
            ContextFull: the arena has no room.
        """
        return self._arena.acquire(size_bytes)

    async def acquire_async(self, size_bytes: int) -> Context:
        """Give a context as `acquire` does; a node in another process has to be waited for."""
        return self._arena.acquire(size_bytes)

    @property
    def arena(self) -> ArenaMap:
        """The arena, for processes that are trusted with it."""
        return self._arena.map

    @property
    def arena_descriptors(self) -> tuple[int, ...]:
        """Descriptors that such processes inherit beside the arena's: none."""
        return ()

    @property
    def generation(self) -> int:
        """A number that changes with every change of the catalogue."""
        return self.catalog.generation

    def trace(self, invocation: str, tenant: str | None = None) -> TraceDocument | None:
        """Give the trace of an invocation that ended lately, as Chrome and Perfetto read it.

        With a tenant, traces of other tenants are not found.
        """
        trace = self._traces.get(invocation, tenant)
        return None if trace is None else trace.chrome_json()

    def logs(
        self,
        function: str | None = None,
        invocation: str | None = None,
        after: int = 0,
        limit: int = PAGE_LINES,
        tenant: str = DEFAULT_TENANT,
    ) -> LogPage:
        """Give lines that functions wrote lately to their standard streams and to `logging`.

        Args:
            function: only lines of this function.
            invocation: only lines of this invocation.
            after: only later lines than those of an earlier page; its `last`.
            limit: how many, the newest.
            tenant: whose functions.
        """
        return self._logs.page(tenant, function, invocation, after, limit)

    def engines(self) -> list[EngineInfo]:
        """All engines, and backends that do not work here with their reason."""
        infos = [engine_info(executor) for executor in list(self._runtime.executors.values())]
        infos += [
            EngineInfo("", e.backend, "", "", EnginePhase.UNAVAILABLE.value, str(e), 0, 0, 0)
            for e in self._missing
        ]
        return infos

    def info(self) -> NodeInfo:
        """Take a snapshot of what metrics are made of."""
        if self._state is NodeState.RUNNING:
            return self._loop.call(self._info)
        return self._info()

    def _info(self) -> NodeInfo:
        scheduler = self._runtime.scheduler
        functions: dict[tuple[str, str], FlowCounts] = {}  # of all versions
        queued: Counter[tuple[str, str]] = Counter()
        for flow in scheduler.calls.flows.values():
            key = (flow.tenant.name, flow.spec.name)
            functions.setdefault(key, FlowCounts()).add(flow.counts)
            queued[key] += sum(len(queue.calls) for queue in flow.queues.values())
        memory = scheduler.calls.residency.node.by_tenant
        tenants = self._spaces.tenants()
        return NodeInfo(
            {name: counts.copy() for name, counts in self._recorder.counts.items()},
            len(scheduler.invocations),
            scheduler.calls.lines.waiting,
            functions,
            {key: count for key, count in queued.items() if count},
            tuple(self.engines()),
            self._arena.stats(),
            self._transfers.counts(),
            replace(self._cache.counts),
            {tenant.name: size for tenant, size in memory.items()},
            self._runtime.longest_turn_ns / 1e9,
            tenant_capacities(scheduler, tenants, tenants),
            replace(scheduler.calls.residency.counts),
            workers_capacities(scheduler, shows_all=True),
            len(scheduler.pauses),
            None if self._spans is None else self._spans.counts(),
            self._lines_dropped,
            self._cluster_info(),
            cores_capacity(scheduler),
        )

    def totals(self, tenant: str = DEFAULT_TENANT) -> list[InvocationTotals]:
        """Tell how many invocations of each name of a tenant ended, and how long they took."""
        count = partial(self._recorder.totals.of, tenant)
        return self._loop.call(count) if self._state is NodeState.RUNNING else count()

    def activity(
        self, tenant: str = DEFAULT_TENANT, query: ActivityQuery | None = None
    ) -> Activity:
        """Tell what a tenant did lately: invocations, and calls by function."""
        scheduler = self._runtime.scheduler
        asked = query or ActivityQuery()

        def ask() -> Activity:
            invocations, flows = scheduler.invocations.values(), scheduler.calls.flows.values()
            return activity_of(self._activity, tenant, asked, invocations, flows)

        return self._loop.call(ask) if self._state is NodeState.RUNNING else ask()

    def capacity(
        self, tenant: str | None = None, function: str | None = None, version: int | None = None
    ) -> NodeCapacity:
        """Tell what the node has and what is free.

        Args:
            tenant: who asks: only its own row is shown, and engines in total. None shows all.
            function: also tell what would happen to a call of this function of the tenant (by
                default of the default tenant); see `Admission`.
            version: of the function; by default the newest.

        Raises:
            Unknown: there is no such function.
            InvalidInput: it is a composition.
        """
        asking = self._spaces.of(tenant or DEFAULT_TENANT)
        spec = None if function is None else asking.library.find(function, version)
        if isinstance(spec, CompositionRecord):
            hint = f"ask for one of the functions that it uses: {', '.join(spec.uses)}"
            raise InvalidInput("function", f"'{function}' is a composition", hint)
        tenants = self._spaces.tenants()
        ask = partial(
            capacity_of, self._runtime, self._arena, tenants, asking.tenant, spec, tenant is None
        )
        return self._loop.call(ask) if self._state is NodeState.RUNNING else ask()

    def cluster(self) -> ClusterInfo | None:
        """Tell what the node knows of its cluster; None if it is in none."""
        ask = self._cluster_info
        return self._loop.call(ask) if self._state is NodeState.RUNNING else None

    def _cluster_info(self) -> ClusterInfo | None:
        return None if self._cluster is None else self._cluster.info()

    def lines_dropped(self, count: int) -> None:
        """Count lines of an access log that were lost."""
        with self._changed:  # servers may have loops of their own
            self._lines_dropped += count

    def metrics(self) -> bytes:
        """Write the metrics in Prometheus' text format."""
        return exposition(self.info())


def _ended(invocation: InvocationState) -> None:
    assert isinstance(invocation, Invocation), "the node makes them"
    invocation.notify()


def _converted(plan: CompositionPlan, sets: Mapping[str, Value]) -> dict[str, ItemSet | None]:
    specs = {s.name: s for s in plan.inputs}
    return {n: item_set(n, value, specs.get(n)) for n, value in sets.items()}


def _partitioning(text: str) -> Partitioning:
    mode, _, number = text.partition(":")
    cores = os.cpu_count() or 1
    if mode in ("max", "auto") or (mode == "fixed" and number.isdigit() and int(number) > 0):
        return Partitioning(mode, int(number) if mode == "fixed" else 1, cores)
    raise InvalidInput("partitioning", f"'{text}'", "use max, auto or fixed:N")


def _closed(close: Callable[[], None]) -> None:
    """Close something; a failure must not keep the rest from being closed."""
    try:
        close()
    except Exception as error:
        to_dandelion_error(error, "closing")
