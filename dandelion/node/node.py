"""`Node`: a Dandelion node, embedded in a program or behind the frontend.

    with Node() as node:
        node.register(document)
        html = node.invoke("render", page=b"...").html.text()

Threads: the caller's, which pump what completes at once; one for each engine that blocks; one for
the event loop (I/O functions, the frontend), unless the caller brings a loop. No user code runs in
this process and no device is opened in it, unless a backend's hosting says otherwise.
"""

from __future__ import annotations

import asyncio
import atexit
import itertools
import os
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Self

from dandelion.catalog import (
    CompositionRecord,
    Record,
    kind_of,
    open_catalog,
)
from dandelion.data import ItemSet, Sets, Value, item_set
from dandelion.dataflow.sharding import Partitioning
from dandelion.dispatcher import DirectWalk, Walk
from dandelion.documents import (
    ContentLike,
    FunctionDocument,
    Registered,
    Registrable,
    collect,
)
from dandelion.driver import Driver, Hosting
from dandelion.errors import (
    BackendUnavailable,
    Cancelled,
    DandelionError,
    DeadlineExceeded,
    InvalidInput,
    Overloaded,
)
from dandelion.function import FunctionSpec
from dandelion.memory import ArenaMap, Context, SharedDomain, Transfers
from dandelion.node.cache import ResultCache
from dandelion.node.engines import (
    Backend,
    EngineStarter,
    check_names,
    load_backends,
    load_checkers,
    targets,
)
from dandelion.node.facts import EngineInfo, Signature, engine_info, output_specs
from dandelion.node.failures import typed
from dandelion.node.hosts import EngineHost, State
from dandelion.node.inputs import Bringing, positional
from dandelion.node.invocation import Invocation, Outcome
from dandelion.node.library import Library
from dandelion.node.loop import NodeLoop
from dandelion.node.metrics import NodeFacts, exposition
from dandelion.node.pump import SLICE, Pump
from dandelion.node.replies import Answering, Replies
from dandelion.node.traces import Trace, TraceStore
from dandelion.registration import Registrar, Target, blobs_of
from dandelion.settings import Settings

_MANY_ITEMS = 1024
"""With more, starting an invocation takes milliseconds: it is left to a thread."""


class Node:
    """Registers and invokes. Safe to use from any thread.

    Args:
        settings: see `Settings`; by default everything that works here, a catalogue in memory.
        drivers: further backends, made by the embedding program.

    Raises:
        InvalidInput: a setting, or a backend or option that it names, does not exist or is bad.
        BackendUnavailable, CatalogCorrupt, CatalogUnavailable, Conflict, DiskFull: the catalogue
            cannot be opened.
    """

    def __init__(self, settings: Settings | None = None, drivers: Sequence[Driver] = ()) -> None:
        self.settings = settings or Settings()
        self._partitioning = _partitioning(self.settings.partitioning)
        caps = self.settings.caps
        check_names(self.settings, [driver.name for driver in drivers])
        self._backends, self._missing = load_backends(self.settings)
        self._backends += [Backend(d.name, (d.name,), d) for d in drivers]
        self.catalog = open_catalog(self.settings.catalog)
        self._arena = SharedDomain(self.settings.arena_bytes)
        self._transfers = Transfers()
        self._checkers = load_checkers(self._backends)
        platform = {f.name: f for b in self._backends for f in b.driver.functions()}
        self._library = Library(self.catalog, platform, self._arena, self._transfers, caps)
        self._registrar = Registrar(self.catalog, platform, self._checkers, self._targets, caps)
        self._traces = TraceStore(self.settings.keep_traces)
        self._cache = ResultCache(min(self.settings.cache_bytes, self.settings.arena_bytes // 2))
        self._pump = Pump(self._library, self._arena, self._traces, self._cache)
        self._registering = threading.Lock()
        self._closing = threading.Lock()
        self._changed = threading.Condition()
        self._replies = Replies(self.settings.spins_us[0], self._arena.recycle_some)
        self._loop = NodeLoop(self._arena, self._replies)
        self._starter: EngineStarter | None = None
        self._state = State.STARTING
        self._ids = itertools.count(1)
        self._prefix = os.urandom(6).hex()
        hosted = [b.driver for b in self._backends if b.driver.hosting is Hosting.PROCESS]
        formats = frozenset[str]().union(*(driver.formats for driver in hosted))
        self._bringing = Bringing(formats, self._arena, self._transfers)

    # --- life -----------------------------------------------------------------------------------

    def start(self, loop: asyncio.AbstractEventLoop | None = None) -> None:
        """Start the engines; they come up in the background, see `ready`.

        Args:
            loop: a running loop to use; without one the node runs a loop in a thread of its own,
                and is closed when the program ends, if nobody did before.
        """
        running = self._loop.start(loop)
        if loop is None:
            atexit.register(self.close)
        self._starter = starter = EngineStarter(
            self.settings,
            self._arena,
            self._transfers,
            running,
            self._replies,
            self._host_changed,
            lambda host: self._pump.post(partial(self._pump.add_host, host)),
        )
        for backend in self._backends:
            try:
                starter.start(backend)
            except BackendUnavailable as error:
                self._missing.append(error)
            except Exception as error:  # a backend's bug is no reason for the node not to start
                reason = str(typed(error, backend.entry))
                self._missing.append(BackendUnavailable(backend.entry, reason))
        self._state = State.READY

    def _host_changed(self, host: EngineHost) -> None:
        self._pump.post(partial(self._pump.host_changed, host))
        with self._changed:
            self._changed.notify_all()

    def close(self) -> None:
        """End all invocations and engines and wait for them. Not from the node's own loop."""
        with self._closing:
            if self._state is State.CLOSED:
                return
            self._state = State.CLOSED
            atexit.unregister(self.close)
            self._settle(self._pump.shut)
            self._close_hosts()
            self._end_checks()
            for sharing in self._starter.sharings if self._starter is not None else ():
                _closed(sharing.close)
            _closed(self._loop.stop)
            with self._registering:
                _closed(self.catalog.close)
            self._arena.close()

    def _close_hosts(self) -> None:
        """Close all hosts, also those that an engine brought along as it came up just now."""
        hosts = self._pump.hosts
        closed = 0
        while closed < len(hosts):
            batch = hosts[closed:]
            for host in batch:
                _closed(host.leave)
            for host in batch:
                _closed(host.close)
            closed += len(batch)
            self._settle(lambda: None)

    def _end_checks(self) -> None:
        for driver in self._checkers.values():
            _closed(driver.close)

    def _settle(self, event: Callable[[], None]) -> None:
        """Have an event carried out, and wait until it and all before it are."""
        settled = threading.Event()
        self._pump.post(event)
        self._pump.post(settled.set)
        settled.wait()

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
        """Whether every engine is up, or known not to work here."""
        return self._state is State.READY and all(
            host.state is not State.STARTING for host in self._pump.hosts
        )

    def wait_ready(self, timeout_s: float = 60.0) -> bool:
        """Wait until `ready`. False if that takes longer than the timeout."""
        with self._changed:
            return self._changed.wait_for(self.ready, timeout_s)

    # --- the catalogue --------------------------------------------------------------------------

    def register(
        self,
        *things: Registrable,
        functions: Iterable[FunctionDocument] = (),
        libraries: Mapping[str, ContentLike | bytes | Path] | None = None,
    ) -> list[Registered]:
        """Register functions, libraries and compositions, all or nothing.

        Code for devices that are up is compiled for them before.

        Args:
            things: registration documents, functions, compositions of the DSL, texts in the
                composition language.
            functions: further functions.
            libraries: code objects by name: text, bytes, or the path of a file.

        Returns:
            Kind, name and version of each: libraries, functions, compositions.

        Raises:
            InvalidFunction, InvalidBlueprint, InvalidComposition: what is wrong, all of it.
            Conflict, InvalidInput, Unknown: see `Registrar` and `Catalog`.
        """
        document = collect(things, functions, libraries)
        blobs = blobs_of(document)
        with self._registering:
            self._refuse_if_closed()
            draft = self._registrar.draft(document, blobs)
        try:
            draft.look_into_code()  # takes long, so no lock is held meanwhile
        finally:
            if self._state is State.CLOSED:  # it may have started again what close() had ended
                self._end_checks()
        with self._registering:
            self._refuse_if_closed()
            records = self.catalog.register(self._registrar.batch(draft))
        return [Registered(kind_of(r), r.name, r.version) for r in records]

    def _refuse_if_closed(self) -> None:
        if self._state is State.CLOSED:
            raise Cancelled("the node is closed")

    def _targets(self, format_name: str) -> list[Target]:
        return targets(self._backends, self._pump.hosts, format_name)

    def records(self) -> list[Record]:
        """All registered records in their newest versions, and the platform's functions."""
        return [*self._library.platform.values(), *self.catalog.records()]

    def versions(self, kind: type[Record], name: str) -> list[int]:
        """Versions of a name, ascending."""
        return self.catalog.versions(kind, name)

    def describe(self, name: str, version: int | None = None) -> FunctionSpec | CompositionRecord:
        """Find a function or composition.

        Raises:
            Unknown: with the nearest name.
        """
        return self._library.find(name, version)

    def signature(self, name: str, version: int | None = None) -> Signature:
        """Tell what a function or composition takes and gives.

        Raises:
            Unknown: with the nearest name.
        """
        found = self._library.find(name, version)
        plan = self._library.plan(name, version)
        static = tuple(found.static) if isinstance(found, FunctionSpec) else ()
        return Signature(
            name, kind_of(found), found.version, plan.inputs, output_specs(plan), static
        )

    def remove(self, kind: type[Record], name: str, version: int | None = None) -> list[Record]:
        """Remove one version of a name, or all.

        Raises:
            Unknown, Conflict: there is no such thing, or a composition uses it.
        """
        with self._registering:  # or a composition may be registered that uses it meanwhile
            removed = self.catalog.remove(kind, name, version)
        if kind is FunctionSpec:
            self._pump.post(partial(self._pump.forget, name))
            for function in self._library.drop(name, version):
                for host in self._pump.hosts:
                    host.forget(function)
        return removed

    # --- invoking -------------------------------------------------------------------------------

    def invoke(
        self,
        name: str,
        /,
        *,
        version: int | None = None,
        deadline_s: float | None = None,
        **sets: Value,
    ) -> Sets:
        """Invoke a function or composition with Python values; see `dandelion.data.item_set`.

        Args:
            name: what to invoke.
            version: which version; by default the newest.
            deadline_s: seconds until the invocation is given up.
            **sets: the input sets. All must be named; None is an absent set.

        Returns:
            The output sets by name.

        Raises:
            Unknown, InvalidInput: the call does not fit.
            ApplicationFailed, FunctionError: a function failed.
            DeadlineExceeded, Overloaded, CapacityError, NoEngine: not now, or not here.
        """
        return self.invoke_sets(
            name, self._convert(name, version, sets), version=version, deadline_s=deadline_s
        ).sets

    async def invoke_async(
        self,
        name: str,
        /,
        *,
        version: int | None = None,
        deadline_s: float | None = None,
        **sets: Value,
    ) -> Sets:
        """Invoke as `invoke` does, from any event loop; cancelling it cancels the invocation."""
        outcome = await self.invoke_sets_async(
            name, self._convert(name, version, sets), version=version, deadline_s=deadline_s
        )
        return outcome.sets

    def _convert(
        self, name: str, version: int | None, sets: Mapping[str, Value]
    ) -> dict[str, ItemSet | None]:
        specs = {s.name: s for s in self._library.plan(name, version).inputs}
        return {n: item_set(n, value, specs.get(n)) for n, value in sets.items()}

    def invoke_sets(
        self,
        name: str,
        sets: Mapping[str, ItemSet | None],
        *,
        version: int | None = None,
        deadline_s: float | None = None,
    ) -> Outcome:
        """Invoke with sets; gives the result with its trace. Raises as `invoke`."""
        invocation, inputs = self._admit(name, sets, version, deadline_s)
        inputs, size = self._bringing.bring(invocation.walk.plan, inputs)
        expected = self._replies.begin()
        try:
            self._pump.post(partial(self._pump.start, invocation, inputs))
            del inputs
            if not invocation.done:
                self._wait(invocation, expected)
        except BaseException:  # a signal, such as Ctrl-C: the caller leaves
            self._end(invocation, Cancelled("its caller was interrupted"))
            raise
        finally:
            self._replies.end(expected)
            self._bringing.ended(size)
        return invocation.outcome()

    def _wait(self, invocation: Invocation, expected: list[Answering]) -> None:
        self._replies.spin(expected, invocation)
        sleeper = self._replies.sleeper(expected)
        if not invocation.when_done(sleeper.wake):
            return
        left_s = max(0.0, (invocation.deadline_ns - time.monotonic_ns()) / 1e9)
        if not sleeper.sleep(left_s):
            self._expire(invocation)
            sleeper.sleep()

    async def invoke_sets_async(
        self,
        name: str,
        sets: Mapping[str, ItemSet | None],
        *,
        version: int | None = None,
        deadline_s: float | None = None,
        on_wait: Callable[[], None] | None = None,
    ) -> Outcome:
        """Invoke with sets, from any event loop; cancelling it cancels the invocation.

        `on_wait` is called if the result is not there at once, before this waits for it.
        """
        invocation, inputs = self._admit(name, sets, version, deadline_s)
        start = partial(self._pump.start, invocation, inputs)
        if sum(len(s.items) for s in inputs if s is not None) > _MANY_ITEMS:
            try:
                await asyncio.to_thread(self._pump.post, start)
            except asyncio.CancelledError:
                self._end(invocation, Cancelled("its caller left"))
                raise
        else:
            self._pump.post(start)
        del inputs, start
        if not invocation.done:
            if on_wait is not None:
                on_wait()
            await self._wait_async(invocation)
        return invocation.outcome()

    async def _wait_async(self, invocation: Invocation) -> None:
        loop = asyncio.get_running_loop()
        finished: asyncio.Future[None] = loop.create_future()
        me = threading.get_ident()

        def on_done() -> None:
            if threading.get_ident() == me:
                _resolve(finished)
            else:
                loop.call_soon_threadsafe(_resolve, finished)

        if not invocation.when_done(on_done):
            return
        left_s = max(0.0, (invocation.deadline_ns - time.monotonic_ns()) / 1e9)
        timer = loop.call_later(left_s, self._expire, invocation)
        try:
            await finished
        except asyncio.CancelledError:
            self._end(invocation, Cancelled("its caller left"))
            raise
        finally:
            timer.cancel()

    def _admit(
        self,
        name: str,
        sets: Mapping[str, ItemSet | None],
        version: int | None,
        deadline_s: float | None,
    ) -> tuple[Invocation, tuple[ItemSet | None, ...]]:
        if self._state is not State.READY:
            raise Cancelled("the node is not running")
        if len(self._pump.running) >= self.settings.max_waiting:
            raise Overloaded(len(self._pump.running), self.settings.max_waiting)
        if deadline_s is None:
            deadline_s = self.settings.default_deadline_s
        elif not 0 < deadline_s < 1e9:
            raise InvalidInput("deadline_s", f"{deadline_s} is no positive number of seconds")
        plan = self._library.plan(name, version)
        inputs = positional(plan, sets)
        now = time.monotonic_ns()
        invocation = Invocation(
            DirectWalk(plan)
            if plan.taken is not None
            else Walk(plan, self._partitioning, slice_=SLICE),
            Trace(f"{self._prefix}-{next(self._ids):x}", plan.name, now),
            now + int(deadline_s * 1e9),
            deadline_s,
        )
        return invocation, inputs

    def _expire(self, invocation: Invocation) -> None:
        self._end(invocation, DeadlineExceeded(invocation.deadline_s))

    def _end(self, invocation: Invocation, error: DandelionError) -> None:
        self._pump.post(partial(self._pump.cancel, invocation, error))

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

    def trace(self, invocation: str) -> bytes | None:
        """Give the trace of an invocation that ended lately, as Chrome and Perfetto read it."""
        trace = self._traces.get(invocation)
        return None if trace is None else trace.chrome_json()

    def engines(self) -> list[EngineInfo]:
        """All engines, and backends that do not work here with their reason."""
        infos = [engine_info(host) for host in self._pump.hosts]
        infos += [
            EngineInfo("", e.backend, "", "", State.UNAVAILABLE.value, str(e), 0, 0, 0)
            for e in self._missing
        ]
        return infos

    def facts(self) -> NodeFacts:
        """Take a snapshot of what metrics are made of."""
        return NodeFacts(
            self._pump.counts,
            len(self._pump.running),
            self._pump.waiting,
            tuple(self._pump.hosts),
            self._arena.stats(),
            self._transfers.counts(),
            replace(self._cache.counts),
        )

    def metrics(self) -> bytes:
        """Write the metrics in Prometheus' text format."""
        return exposition(self.facts())


def _partitioning(text: str) -> Partitioning:
    mode, _, number = text.partition(":")
    cores = os.cpu_count() or 1
    if mode in ("max", "auto") or (mode == "fixed" and number.isdigit() and int(number) > 0):
        return Partitioning(mode, int(number) if mode == "fixed" else 1, cores)
    raise InvalidInput("partitioning", f"'{text}'", "use max, auto or fixed:N")


def _closed(close: Callable[[], None]) -> None:
    """Close something; what fails must not keep the rest from being closed."""
    try:
        close()
    except Exception as error:
        typed(error, "closing")


def _resolve(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
