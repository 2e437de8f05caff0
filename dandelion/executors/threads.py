"""An engine in a thread of its own: it is made, used, recovered and closed there."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import ClassVar

from dandelion.driver import Engine
from dandelion.errors import Cancelled, DandelionError, EngineDied
from dandelion.executors.contract import (
    Executor,
    StartedEngine,
    Surroundings,
    begin_call,
    finish,
    run_call,
)
from dandelion.executors.failures import to_dandelion_error
from dandelion.executors.worker import Worker
from dandelion.function import Function
from dandelion.scheduler import CallState, EngineState, Flow

log = logging.getLogger("dandelion.node")


class ThreadExecutor(Executor):
    """Runs one call at a time in a thread.

    Args:
        make: makes the engine; may take seconds.
    """

    in_thread: ClassVar[bool] = True

    def __init__(
        self,
        engine: EngineState,
        info: StartedEngine,
        around: Surroundings,
        make: Callable[[], Engine],
    ) -> None:
        super().__init__(engine, info, around)
        self._make = make
        self._engine: Engine | None = None
        self._worker = Worker(f"engine-{info.backend}")
        self._closing = False
        self._broken = False  # what comes before the next `_open` was taken back

    def start(self) -> None:
        self._worker.submit(self._open)

    def send(self, call: CallState, evict: tuple[Flow, ...] = (), keep: bool = False) -> None:
        self._worker.submit(partial(self._run, call))

    def stop(self, call: CallState) -> None:
        if self._engine is not None:
            self._engine.cancel(call.id)

    def forget(self, flow: Flow) -> None:
        for function in flow.functions.values():
            self._worker.submit(partial(self._forget, function))

    def close(self) -> None:
        self._closing = True
        self._worker.submit(self._shut)
        self._worker.close()

    # in the thread

    def _shut(self) -> None:
        if self._engine is not None:
            try:
                self._engine.close()
            except Exception:
                log.exception("engine %s could not be closed", self.info.name)

    def _open(self) -> None:
        """Make the engine, or make a new one after it was lost."""
        if self._closing:
            return
        try:
            if self._engine is None:
                self._engine = self._make()
            else:
                self._engine.recover()
        except Exception as error:
            failure = to_dandelion_error(error, self.info.backend)
            self.events.post(partial(self.events.start_failed, self.engine, failure))
            return
        self._broken = False
        self.info.name = self._engine.name
        self.info.capacity = self._engine.capacity
        self.events.post(partial(self.events.up, self.engine, self.info))

    def _run(self, call: CallState) -> None:
        engine = self._engine
        assert engine is not None, "it is up"
        if self._broken:
            return
        if call.cancelled or self._closing:
            self._answer(call, Cancelled("before it began"))
            return
        try:
            begun = begin_call(self, call)
        except DandelionError as full:
            self._answer(call, full)
            return
        outputs, error = run_call(engine, begun)
        call.printed = begun.printed
        del begun
        if engine.lost and error is not None:
            self._lost(engine, {call.id: error})
            return
        self.events.post(partial(finish, self.events, call, outputs, error))
        del outputs, error
        if engine.lost:
            self._lost(engine, {})
        else:
            self._clean_up(engine)

    def _answer(self, call: CallState, error: DandelionError) -> None:
        self.events.post(partial(finish, self.events, call, None, error))

    def _lost(self, engine: Engine, begun: dict[int, DandelionError]) -> None:
        self._broken = True
        error = EngineDied(engine.name, "it cannot be used any more")
        self.events.post(partial(self.events.lost, self.engine, error, begun))

    def _clean_up(self, engine: Engine) -> None:
        """Do what may wait until a call was answered. An engine that cannot must not go on."""
        try:
            engine.clean_up()
        except Exception as error:
            to_dandelion_error(error, self.info.name)  # for the log
            self._lost(engine, {})

    def _forget(self, function: Function) -> None:
        engine = self._engine
        if engine is None or self._broken:
            return
        try:
            engine.forget(function)
        except Exception as error:
            to_dandelion_error(error, self.info.name)
            self._lost(engine, {})
