"""Engines: when they are started, and what follows when one is lost or restarted."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from dandelion.driver import Capacity
from dandelion.errors import DandelionError, EngineDied
from dandelion.scheduler.actions import Action, Check, Start
from dandelion.scheduler.calls import Calls
from dandelion.scheduler.concurrency import is_extra
from dandelion.scheduler.engine import EnginePhase, EngineState
from dandelion.scheduler.retries import restart_delay_ns
from dandelion.timers import Timers


class Fleet:
    """All engines of a node.

    Args:
        calls: the calls of the node.
        actions: receives the actions for executors.

    Attributes:
        restarts: of engines that wait before they are started again.
    """

    def __init__(self, calls: Calls, actions: Callable[[Action], None]) -> None:
        self._calls = calls
        self._engines = calls.engines
        self._residency = calls.residency
        self._act = actions
        self.restarts: Timers[EngineState] = Timers()

    def added(self, engine: EngineState) -> None:
        """Add an engine; it is started now, or when it is needed."""
        self._engines.all[engine.id] = engine
        if engine.on_demand:
            engine.phase = EnginePhase.DORMANT
            self._engines.dormant.append(engine)
        if self._calls.sending.cores is not None:
            self._calls.sending.cores.choose()
        if not engine.on_demand and self._calls.sending.concurrency.added(engine):
            self._act(Start(engine))

    def up(self, engine: EngineState, name: str, capacity: Capacity, now_ns: int) -> None:
        """An engine is ready for calls.

        Args:
            engine: the engine, which was added before.
            name: for errors, metrics and traces.
            capacity: for one call, and for constants that stay.
            now_ns: now.
        """
        engine.name = name
        engine.capacity = capacity
        engine.phase = EnginePhase.READY
        engine.error = None
        engine.failed_starts = 0
        self._cancel_restart(engine)
        self._residency.add_device(engine, capacity)
        self._calls.engines_changed(now_ns)

    def resized(self, engine: EngineState, places: int, now_ns: int) -> None:
        """The engine, which stands for several, takes another number of calls at once."""
        engine.places = places or -1  # 0 would stand for a number that depends on the calls
        if self._calls.lines.waiting and engine.free > 0:
            self._calls.sending.feed_remote(now_ns)

    def failed(self, engine: EngineState, error: DandelionError, now_ns: int) -> None:
        """An engine could not be started.

        One that was never up is tried again only if its process ended: anything else, such as a
        device that is missing, stays as it is. Calls wait for its first retry, which is at once:
        its process may have been killed from outside.
        """
        engine.error = error
        if engine.pool is not None and is_extra(engine):
            engine.phase = EnginePhase.DORMANT
            engine.pool.failed(now_ns)
        elif engine.name or (isinstance(error, EngineDied) and not engine.remote):
            engine.failed_starts += 1
            tried = engine.failed_starts if engine.name else engine.failed_starts - 1  # again
            delay_ns, unavailable = restart_delay_ns(tried)
            if unavailable or (tried and not engine.name):
                engine.phase = EnginePhase.UNAVAILABLE
            else:
                engine.phase = EnginePhase.STARTING
            self._retry(engine, now_ns + delay_ns)
        else:
            engine.phase = EnginePhase.UNAVAILABLE
        self._calls.engines_changed(now_ns)

    def _retry(self, engine: EngineState, at_ns: int) -> None:
        """Start an engine again later."""
        self._cancel_restart(engine)
        engine.restart = self.restarts.add(at_ns, engine)

    def _cancel_restart(self, engine: EngineState) -> None:
        if engine.restart is not None:
            self.restarts.cancel(engine.restart)

    def lost(
        self,
        engine: EngineState,
        error: EngineDied,
        begun: Mapping[int, DandelionError],
        now_ns: int,
    ) -> None:
        """A running engine was lost, with all its calls.

        Args:
            engine: the engine.
            error: the cause.
            begun: calls that it may have started, by id, with the error of each; the others were
                not started.
            now_ns: now.
        """
        if engine.phase is not EnginePhase.READY:
            return
        engine.phase = EnginePhase.STARTING
        engine.error = error
        engine.last = None
        engine.mean_ns = 0.0
        self._residency.drop_device(engine)
        lost = list(engine.sent.values())
        self._act(Start(engine))
        if engine.shared_fault_domain:
            for other in self._engines.siblings(engine):
                if other.phase is EnginePhase.READY and not other.sent:
                    self._act(Check(other))
        self._calls.engines_changed(now_ns)
        for call in lost:
            own = begun.get(call.id)
            self._calls.failed(call, own or replace(error), now_ns, begun=own is not None)

    def closed(self, engine: EngineState, now_ns: int) -> None:
        """An engine was stopped permanently; it has no calls."""
        assert not engine.sent, "its calls ended before"
        engine.phase = EnginePhase.CLOSED
        self._cancel_restart(engine)
        self._residency.drop_device(engine)
        self._calls.sending.concurrency.closed(engine)
        del self._engines.all[engine.id]
        self._calls.engines_changed(now_ns)

    def tick(self, now_ns: int) -> None:
        """Start engines whose pause has ended."""
        while (engine := self.restarts.take_due(now_ns)) is not None:
            self._act(Start(engine))
