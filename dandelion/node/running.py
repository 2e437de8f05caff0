"""Starting a node, waiting until it is ready, and closing it."""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import logging
import os
import threading
import weakref
from collections.abc import Sequence
from concurrent.futures import Future
from functools import partial
from types import TracebackType
from typing import Self

from dandelion import extension_modules
from dandelion.catalog import Record
from dandelion.dataflow.language import parse
from dandelion.errors import BackendUnavailable, DandelionError
from dandelion.executors import to_dandelion_error
from dandelion.function import FunctionSpec
from dandelion.namespaces import split_name
from dandelion.node.attachment import NodeParts
from dandelion.node.closing import close_safely, close_together
from dandelion.node.components import Components, NodeState
from dandelion.scheduler.concurrency import is_extra
from dandelion.scheduler.engine import EnginePhase

log = logging.getLogger("dandelion.node")

_started: weakref.WeakSet[Running] = weakref.WeakSet()
"""All nodes that were started in this process."""


class Running:
    """The life of a node: its methods from `start` to `close`. Safe from any thread."""

    def __init__(self, parts: Components) -> None:
        self._parts = parts
        self._closing = threading.Lock()
        self._changed = threading.Condition()
        parts.runtime.answers.changed = self._notify

    def start(self, loop: asyncio.AbstractEventLoop | None = None) -> None:
        """Start the engines; they come up in the background, see `ready`.

        Args:
            loop: the running loop of the calling thread, to be used by the node. Without one the
                node runs a loop in a thread of its own, and is closed when the program ends.
        """
        parts = self._parts
        outdated = extension_modules.outdated()
        if outdated:
            remedy = extension_modules.REMEDY
            log.warning("%d extension modules are outdated: %s", len(outdated), remedy)
        _started.add(self)
        parts.pool.start()
        parts.kept_threads.start()
        parts.loop.start(loop)
        if loop is None:
            atexit.register(self.close)
        parts.loop.call(self._start_engines)
        parts.state = NodeState.RUNNING
        parts.invoker.running = True
        parts.loop.call(lambda: parts.kept.start(parts.loop.loop))
        parts.pool.submit(parts.packages.restore)
        parts.pool.submit(self._read_composition)

    def _read_composition(self) -> None:
        """Read a composition, if there are some: the first one would take long on the loop."""
        for record in self._parts.stores.catalog.view().compositions()[:1]:
            with contextlib.suppress(DandelionError):  # its callers get the error
                parse(record.text)

    def _start_engines(self) -> None:
        parts = self._parts
        for name, given in parts.settings.tenants.items():
            parts.runtime.tenant_changed(parts.spaces.configured(name, given))
        for backend in parts.backends.all:
            try:
                parts.starter.start(backend)
            except BackendUnavailable as error:
                parts.backends.missing.append(error)
            except Exception as error:  # a backend's bug is no reason for the node not to start
                reason = str(to_dandelion_error(error, backend.entry))
                parts.backends.missing.append(BackendUnavailable(backend.entry, reason))
        if parts.cluster is not None:
            parts.cluster.start(
                NodeParts(
                    parts.runtime,
                    parts.around,
                    parts.spaces,
                    parts.settings.caps,
                    self._forget_removed,
                    parts.kept,
                    self._notify,
                )
            )

    def _forget_removed(self, records: Sequence[Record]) -> None:
        """Forget functions that were removed from the catalogue of the cluster."""
        parts = self._parts
        for record in records:
            if isinstance(record, FunctionSpec):
                tenant, name = split_name(record.name)
                owner = parts.spaces.of(tenant).tenant
                parts.runtime.post(partial(parts.forget, owner, name, (record.version,)))

    def _notify(self) -> None:
        with self._changed:
            self._changed.notify_all()

    def left_behind(self) -> None:
        """This is a forked process, without the node's threads: here the node is closed.

        Its engines belong to the parent, so nothing is ended.
        """
        parts = self._parts
        self._closing, self._changed = threading.Lock(), threading.Condition()
        parts.state = NodeState.CLOSED
        parts.invoker.running = False
        parts.loop.left_behind()

    def close(self) -> None:
        """End all invocations and engines and wait for them. Not from the node's own loop."""
        parts = self._parts
        with self._closing:
            if parts.state is NodeState.CLOSED:
                return
            was, parts.state = parts.state, NodeState.CLOSED
            parts.invoker.running = False
            parts.packages.stop()
            atexit.unregister(self.close)
            if was is not NodeState.RUNNING and parts.cluster is not None:
                close_safely(parts.cluster.close)
            if was is NodeState.RUNNING:
                close_safely(self._close_kept)
                if parts.cluster is not None:
                    close_safely(parts.cluster.close)
                parts.loop.call(parts.runtime.shut)
                self._close_executors()
            if parts.spans is not None:
                close_safely(parts.spans.close)
            parts.backends.close_checkers()
            for sharing in parts.starter.sharings:
                close_safely(sharing.close)
            close_safely(parts.loop.stop)
            parts.pool.shutdown()
            close_safely(parts.kept.close)
            with parts.registering:
                close_safely(parts.packages.close)
                close_safely(parts.stores.catalog.close)
            parts.arena.close()

    def _close_kept(self) -> None:
        """Have the store of asynchronous invocations take everything."""
        idle: Future[None] = Future()
        self._parts.loop.call(partial(self._parts.kept.closing, idle))
        idle.result()

    def _close_executors(self) -> None:
        """Close all executors, also those that an engine added as it came up just now."""
        executors, closed = self._parts.runtime.executors, 0
        while closed < len(executors):
            batch = list(executors.values())[closed:]
            close_together(executor.close for executor in batch)
            closed += len(batch)
            self._parts.loop.call(lambda: None)

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

        Workers that are started under load do not count. In a cluster, the node must also have what
        was registered at others before it was started.
        """
        cluster = self._parts.cluster
        return self._engines_are_up() and (cluster is None or cluster.is_current())

    def _engines_are_up(self) -> bool:
        runtime = self._parts.runtime
        if not self._parts.running or runtime.starting:
            return False
        executors = list(runtime.executors.values())
        engines = [executor.engine for executor in executors]
        return not any(e.phase is EnginePhase.STARTING and not is_extra(e) for e in engines)

    def wait_ready(self, timeout_s: float = 60.0) -> bool:
        """Wait until `ready`. False if that takes longer than the timeout.

        On the node's own loop, as in a coroutine, other work of the loop waits meanwhile, also that
        of a cluster; so there it waits for engines only.
        """
        if self._parts.loop.is_current:
            self._parts.runtime.wait(self._engines_are_up, timeout_s)
            return self._engines_are_up()
        with self._changed:
            return self._changed.wait_for(self.ready, timeout_s)


def _forked() -> None:
    for node in list(_started):
        node.left_behind()


os.register_at_fork(after_in_child=_forked)
