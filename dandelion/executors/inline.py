"""An engine whose calls run in the scheduler's own step: they cost less than a thread switch."""

from __future__ import annotations

from collections.abc import Callable

from dandelion.driver import Engine
from dandelion.executors.contract import (
    Executor,
    StartedEngine,
    Surroundings,
    begin_call,
    finish,
    run_call,
)
from dandelion.executors.failures import to_dandelion_error
from dandelion.scheduler import CallState, EngineState, Flow


class InlineExecutor(Executor):
    """Runs a call where it is sent.

    Args:
        make: makes the engine; it may not take long.
    """

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

    def start(self) -> None:
        try:
            self._engine = self._make()
        except Exception as error:
            self.events.start_failed(self.engine, to_dandelion_error(error, self.info.backend))
            return
        self.info.name = self._engine.name
        self.info.capacity = self._engine.capacity
        self.events.up(self.engine, self.info)

    def send(self, call: CallState, evict: tuple[Flow, ...] = (), keep: bool = False) -> None:
        assert self._engine is not None, "it is up"
        begun = begin_call(self, call)
        outputs, error = run_call(self._engine, begun)
        call.printed = begun.printed
        finish(self.events, call, outputs, error)

    def forget(self, flow: Flow) -> None:
        if self._engine is not None:
            for function in flow.functions.values():
                self._engine.forget(function)

    def close(self) -> None:
        if self._engine is not None:
            self._engine.close()
