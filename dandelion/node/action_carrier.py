"""Carrying out the scheduler's actions: on executors, on jobs, and towards the callers."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping

from dandelion.driver import InstanceSets
from dandelion.errors import DandelionError
from dandelion.executors import Executor
from dandelion.node.jobs import Jobs
from dandelion.node.observer import Observer
from dandelion.node.reloads import RELOADS, ReloadWatch
from dandelion.scheduler import CallState, Flow, InvocationState, Scheduler
from dandelion.scheduler.actions import (
    Action,
    Check,
    Discard,
    End,
    Fetch,
    Look,
    Plan,
    Send,
    Start,
    Stop,
)

log = logging.getLogger("dandelion.node")
_CROWDED = (
    "functions take turns in memory: %d were loaded again within 10 s, and calls wait for that; "
    "their memory has %d bytes, set a larger 'functions_bytes' (it is part of 'arena_bytes')"
)


class ActionCarrier:
    """Carries out actions of one scheduler, on the loop.

    Args:
        scheduler: gets the answers of jobs.
        executors: by id of the engine.
        jobs: carries out what is requested outside of engines.
        observer: sees what happens.
        ended: called with each invocation that ended.

    Attributes:
        by_kind: what carries out each kind of action.
        sent_to: the executors that have collected something since it was last emptied.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        executors: Mapping[int, Executor],
        jobs: Jobs,
        observer: Observer,
        ended: Callable[[InvocationState], None],
    ) -> None:
        self._scheduler = scheduler
        self._executors = executors
        self._jobs = jobs
        self._observer = observer
        self._ended = ended
        self._reloads = ReloadWatch()
        self.sent_to: dict[Executor, None] = {}
        self.by_kind: dict[type[Action], Callable[[Action], None]] = {
            Send: self._send,  # type: ignore[dict-item]  # each takes its own action
            End: self._end,  # type: ignore[dict-item]
            Plan: self._plan,  # type: ignore[dict-item]
            Stop: self._stop,  # type: ignore[dict-item]
            Fetch: self._fetch,  # type: ignore[dict-item]
            Discard: self._discard,  # type: ignore[dict-item]
            Look: self._look,  # type: ignore[dict-item]
            Start: self._start_engine,  # type: ignore[dict-item]
            Check: self._check,  # type: ignore[dict-item]
        }

    def _flush_later(self, executor: Executor) -> None:
        """Have what an executor collects leave at the end of the turn."""
        if executor.collects:
            self.sent_to[executor] = None

    def _send(self, action: Send) -> None:
        call = action.call
        assert call.engine is not None, "the scheduler chose one"
        executor = self._executors[call.engine.id]
        executor.send(call, action.evict, action.keep)
        self._flush_later(executor)

    def _plan(self, action: Plan) -> None:
        executor = self._executors[action.engine.id]
        executor.plan(action.call)
        self._flush_later(executor)

    def _stop(self, action: Stop) -> None:
        call = action.call
        assert call.engine is not None, "it was sent"
        executor = self._executors[call.engine.id]
        executor.stop(call)
        self._flush_later(executor)

    def _fetch(self, action: Fetch) -> None:
        if self._reloads.loads(action.flow, time.monotonic_ns()):
            log.warning(_CROWDED, RELOADS, self._scheduler.calls.residency.node.capacity_bytes)
        self._jobs.fetch(action.flow, self._fetched)

    def _fetched(self, flow: Flow, error: DandelionError | None) -> None:
        now_ns = time.monotonic_ns()
        if error is None:
            self._scheduler.calls.fetched(flow, now_ns)
        else:
            self._scheduler.calls.fetch_failed(flow, error, now_ns)

    def _discard(self, action: Discard) -> None:
        self._reloads.evicted(action.flow)
        for executor in self._executors.values():
            executor.forget(action.flow)
            self._flush_later(executor)
        action.flow.functions.clear()

    def _look(self, action: Look) -> None:
        self._jobs.look(action.call, self._looked)

    def _looked(self, call: CallState, outputs: InstanceSets | None) -> None:
        now_ns = time.monotonic_ns()
        if outputs is None:
            self._scheduler.calls.missed(call, now_ns)
        else:
            self._observer.found(call, outputs, now_ns)
            self._scheduler.calls.found(call, outputs, now_ns)

    def _start_engine(self, action: Start) -> None:
        self._executors[action.engine.id].start()

    def _check(self, action: Check) -> None:
        self._executors[action.engine.id].check()

    def _end(self, action: End) -> None:
        invocation = action.invocation
        try:
            self._observer.invocation_ended(invocation)
        finally:  # the caller waits for it
            self._ended(invocation)
