"""An engine in a thread of its own."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from functools import partial
from queue import Empty, SimpleQueue
from typing import TypeAlias

from dandelion.driver import Engine
from dandelion.errors import Cancelled, DandelionError, EngineDied
from dandelion.function import Function
from dandelion.node.failures import typed
from dandelion.node.hosts import EngineHost, HostFacts, Result, State, Work, run_call

log = logging.getLogger("dandelion.node")

RENEW_S = 5.0
"""How often an engine that was lost and could not be brought back is tried again."""

Order: TypeAlias = Callable[[Engine], None]
"""Something to be done on the host's thread, with its engine."""


class ThreadHost(EngineHost):
    """Runs an engine in a thread of its own; the engine is made, used and closed there.

    Args:
        make: makes the engine; may take seconds, may raise `BackendUnavailable`.
        describe: completes `HostFacts` from the finished engine.
        abandon: makes an engine that is starting or runs a call end soon; from another thread.
    """

    def __init__(
        self,
        facts: HostFacts,
        formats: frozenset[str],
        changed: Callable[[EngineHost], None],
        make: Callable[[], Engine],
        describe: Callable[[Engine, HostFacts], None],
        abandon: Callable[[], None] = lambda: None,
    ) -> None:
        super().__init__(facts, formats, 1, changed)
        self._inbox: SimpleQueue[Order | None] = SimpleQueue()
        self._make = make
        self._describe = describe
        self._abandon = abandon
        self._engine: Engine | None = None
        self._closing = False
        self._works = True  # False while the engine is lost and cannot be brought back
        self._thread = threading.Thread(  # a program that ends closes its nodes, see `Node.start`
            target=self._main, name=f"engine-{facts.backend}", daemon=True
        )
        self._thread.start()

    def _main(self) -> None:
        engine = self._started()
        if engine is None:
            return
        self._settle_state(State.READY)
        try:
            self._serve(engine)
        finally:
            self._shut(engine)

    def _started(self) -> Engine | None:
        """Make the engine; without one the host is unavailable."""
        engine: Engine | None = None
        try:
            engine = self._make()
            self._engine = engine
            self.facts.name = engine.name
            self.facts.capacity = engine.capacity
            self._describe(engine, self.facts)
            return engine
        except Exception as error:
            if engine is not None:
                self._shut(engine)
            self._settle_state(State.UNAVAILABLE, typed(error, self.facts.backend))
            return None

    def _shut(self, engine: Engine) -> None:
        try:
            engine.close()
        except Exception:
            log.exception("engine %s could not be closed", self.facts.name)

    def _serve(self, engine: Engine) -> None:
        """Do what comes, until the order to leave; try now and then to bring back a lost engine."""
        while True:
            try:
                order = self._inbox.get(timeout=None if self._works else RENEW_S)
            except Empty:
                self._works = self._closing or self._recovered(engine)
                continue
            if order is None:
                return
            try:
                order(engine)
            except Exception:  # a bug; the thread is needed all the same
                log.exception("engine %s: an order failed", self.facts.name)
            del order  # the next wait must not keep the last call's memory

    def _run(self, work: Work, engine: Engine) -> None:
        refused = self._refused(work)
        if refused is not None:
            self._finish(work, None, refused)
        else:
            self._end(engine, [(work, run_call(engine, work))])

    def _refused(self, work: Work) -> DandelionError | None:
        """Tell why a call is not even begun, if it is not."""
        work.started_ns = time.monotonic_ns()
        if not self._works:
            return EngineDied(self.facts.name, "it cannot be used any more")
        return Cancelled("before it began") if work.cancelled else None

    def _end(self, engine: Engine, ended: list[tuple[Work, Result]]) -> None:
        """Hand over what came of calls, and make the engine ready for the next."""
        if engine.lost and not self._closing:
            self.state = State.STARTING  # before its place is free again
        while ended:  # and nothing of them is kept while the engine gets ready
            work, result = ended.pop(0)
            self._finish(work, *result)
            del work, result
        self._works = self._ready_again(engine)

    def _forget(self, function: Function, engine: Engine) -> None:
        if self._works:
            self._works = self._forgotten(engine, function)

    def _forgotten(self, engine: Engine, function: Function) -> bool:
        try:
            engine.forget(function)
        except Exception as error:
            return self._recovered(engine, error)
        return True

    def _ready_again(self, engine: Engine) -> bool:
        """Let the engine tidy up, or bring it back if it was lost. False if that failed."""
        if engine.lost:
            return self._closing or self._recovered(engine)
        try:
            engine.clean_up()
        except Exception as error:
            return self._recovered(engine, error)
        return True

    def _recovered(self, engine: Engine, reason: Exception | None = None) -> bool:
        """Bring an engine back; one that could not tidy up must not run anything before that."""
        if reason is not None:
            typed(reason, self.facts.name)  # for the log
        if not self._closing and self.state is not State.UNAVAILABLE:  # which says why
            self._settle_state(State.STARTING)
        try:
            engine.recover()
        except Exception as error:
            self._settle_state(State.UNAVAILABLE, typed(error, self.facts.name))
            return False
        self._settle_state(State.READY)
        return True

    def _submit(self, work: Work) -> None:
        self._inbox.put(partial(self._run, work))

    def cancel(self, work: Work) -> None:
        super().cancel(work)
        if self._engine is not None:
            self._engine.cancel(work.call.id)

    def forget(self, function: Function) -> None:
        if self.state is State.READY:
            self._inbox.put(partial(self._forget, function))

    def leave(self) -> None:
        self._closing = True
        super().leave()
        self._inbox.put(None)
        self._abandon()

    def close(self) -> None:
        if not self._closing:
            self.leave()
        self._thread.join()
