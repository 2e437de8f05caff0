"""Answers of executors become events of the scheduler; see `Events` in `executors.contract`."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Protocol, TypeAlias, TypeVarTuple

from dandelion.driver import InstanceSets
from dandelion.errors import DandelionError, EngineDied
from dandelion.executors import StartedEngine
from dandelion.executors.batches import divided
from dandelion.node.jobs import Jobs
from dandelion.node.observer import Observer
from dandelion.scheduler import CallState, EngineState, Scheduler

Happening: TypeAlias = Callable[[], None]
Arguments = TypeVarTuple("Arguments")


class Raise(Protocol):
    """Raises an event at once, or in the next turn."""

    def __call__(self, event: Callable[[*Arguments], None], *given: *Arguments) -> None: ...


class ExecutorAnswers:
    """The `Events` of a node's executors, on the loop.

    Args:
        scheduler: whose events are raised.
        jobs: keeps results of calls that were looked for.
        observer: sees what happens.
        raise_: raises an event, given as function and arguments.
        post: has something done on the loop soon; from any thread.

    Attributes:
        changed: called when an engine is up, lost, or could not be started.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        jobs: Jobs,
        observer: Observer,
        raise_: Raise,
        post: Callable[[Happening], None],
    ) -> None:
        self._scheduler = scheduler
        self._jobs = jobs
        self._observer = observer
        self._raise = raise_
        self.post = post
        self.changed: Callable[[], None] = lambda: None

    def up(self, engine: EngineState, info: StartedEngine) -> None:
        self._raise(self._up, engine, info)

    def _up(self, engine: EngineState, info: StartedEngine) -> None:
        self._scheduler.fleet.up(engine, info.name, info.capacity, time.monotonic_ns())
        self.changed()

    def start_failed(self, engine: EngineState, error: DandelionError) -> None:
        self._raise(self._start_failed, engine, error)

    def _start_failed(self, engine: EngineState, error: DandelionError) -> None:
        self._scheduler.fleet.failed(engine, error, time.monotonic_ns())
        self.changed()

    def lost(
        self, engine: EngineState, error: EngineDied, begun: Mapping[int, DandelionError]
    ) -> None:
        self._raise(self._lost, engine, error, begun)

    def _lost(
        self, engine: EngineState, error: EngineDied, begun: Mapping[int, DandelionError]
    ) -> None:
        for call in engine.sent.values():
            if call.id in begun:
                self._observer.call_ended(call, begun[call.id])
        self._scheduler.fleet.lost(engine, error, begun, time.monotonic_ns())
        self.changed()

    def done(self, call: CallState, outputs: InstanceSets) -> None:
        self._raise(self._done, call, outputs)

    def _done(self, call: CallState, outputs: InstanceSets) -> None:
        if call.members:
            self._batch_done(call, outputs)
            return
        self._observer.call_ended(call)
        self._observer.answered(call, outputs)
        if call.content:
            self._jobs.keep(call, outputs)
        self._scheduler.calls.done(call, outputs, call.ended_ns)

    def _batch_done(self, batch: CallState, outputs: InstanceSets) -> None:
        try:
            parts = divided([call.run for call in batch.members], outputs)
        except DandelionError as error:
            self._failed(batch, error, True)
            return
        self._observer.call_ended(batch)
        for call, part in zip(batch.members, parts, strict=True):
            self._observer.answered(call, part)
            if call.content:
                self._jobs.keep(call, part)
        self._scheduler.calls.batch_done(batch, parts, batch.ended_ns)

    def failed(self, call: CallState, error: DandelionError, begun: bool = True) -> None:
        self._raise(self._failed, call, error, begun)

    def _failed(self, call: CallState, error: DandelionError, begun: bool) -> None:
        if call.engine is not None:
            self._observer.call_ended(call, error)
        if not call.members:
            self._observer.answered(call, error)
        self._scheduler.calls.failed(call, error, time.monotonic_ns(), begun)

    def planned(self, call: CallState) -> None:
        self._raise(self._planned, call)

    def _planned(self, call: CallState) -> None:
        assert call.demand is not None, "its executor wrote it down"
        self._scheduler.calls.planned(call, call.demand, time.monotonic_ns())
