"""Hosts carry engines: in the dispatcher's own step, in a thread, in a process, on the event loop.

A host takes `Work` when it has a free place and calls ``work.done`` exactly once, from whatever
thread it likes. It is made at once and becomes ready, or unavailable, in the background. Places are
counted by the node alone (`EngineHost.submit`, `EngineHost.vacate`), one thread at a time.
"""

from __future__ import annotations

import abc
import asyncio
import enum
import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from queue import SimpleQueue
from typing import TypeAlias

from dandelion.driver import AsyncEngine, Call, Capacity, Demand, Engine, InstanceSets
from dandelion.errors import Cancelled, DandelionError, EngineDied, TimedOut
from dandelion.function import Function
from dandelion.node.failures import typed

log = logging.getLogger("dandelion.node")

Done: TypeAlias = "Callable[[Work, InstanceSets | None, DandelionError | None], None]"


class State(enum.Enum):
    """What a host is doing."""

    STARTING = "starting"
    READY = "ready"
    UNAVAILABLE = "unavailable"  # its backend does not work here; see `EngineHost.error`
    CLOSED = "closed"


@dataclass(slots=True, eq=False)
class Work:
    """A call on its way through a host.

    Attributes:
        call: what to run.
        done: called once, with the outputs or the error.
        queued_ns: since when it waited for an engine, on `time.monotonic_ns`; 0 if it did not.
        started_ns, ended_ns: on `time.monotonic_ns`.
        attempt: 1, and more if engines died under it.
        cache_key: under which its result is kept, if it is.
        cancelled: its result is no longer wanted.
        host: who runs it.
    """

    call: Call
    done: Done
    queued_ns: int = 0
    attempt: int = 1
    cache_key: bytes = b""
    started_ns: int = 0
    ended_ns: int = 0
    cancelled: bool = False
    host: EngineHost | None = None


@dataclass(slots=True)
class HostCounts:
    """What a host has done since it was made."""

    calls: int = 0
    failures: int = 0
    busy_ns: int = 0


@dataclass(slots=True, eq=False)
class HostFacts:
    """Who a host is, for people, metrics and placement.

    Attributes:
        name, description: known when it is ready.
        capacity: what its engine has, known when it is ready.
        demand: tells what a call will need there; None where every call fits.
        worker: it shares its resource with others, and runs at the same time as they.
        shared_fate: a fault of one worker ends the calls of all.
    """

    backend: str
    resource: str
    name: str = ""
    description: str = ""
    capacity: Capacity = field(default_factory=Capacity)
    demand: Callable[[Function, InstanceSets], Demand] | None = None
    worker: bool = False
    shared_fate: bool = False
    counts: HostCounts = field(default_factory=HostCounts)


class EngineHost(abc.ABC):
    """Carries one engine.

    Args:
        facts: who it is; the name may become known only when it is ready.
        formats: formats of code objects that the engine runs.
        places: how many calls it takes at once.
        changed: called whenever the state changed or a place became free.
    """

    def __init__(
        self,
        facts: HostFacts,
        formats: frozenset[str],
        places: int,
        changed: Callable[[EngineHost], None],
    ) -> None:
        self.facts = facts
        self.formats = formats
        self.places = places
        self.state = State.STARTING
        self.error: DandelionError | None = None
        self.busy = 0
        self._changed = changed

    @property
    def free(self) -> int:
        """How many more calls it takes now."""
        return self.places - self.busy if self.state is State.READY else 0

    def submit(self, work: Work) -> None:
        """Take a call; there must be a free place. Called by one thread at a time."""
        assert self.free > 0, "the node hands out free places only"
        self.busy += 1
        work.host = self
        try:
            self._submit(work)
        except BaseException:
            self.busy -= 1
            raise

    def vacate(self) -> None:
        """Free the place of a call whose ``done`` was called."""
        self.busy -= 1

    @abc.abstractmethod
    def _submit(self, work: Work) -> None: ...

    def cancel(self, work: Work) -> None:
        """Stop a call that was submitted, if that is easy. ``done`` is called all the same."""
        work.cancelled = True

    def leave(self) -> None:
        """Begin to close, without waiting; calls under way may end with an error."""
        self.state = State.CLOSED

    @abc.abstractmethod
    def close(self) -> None:
        """Stop the engine and wait until everything of it is gone."""

    def forget(self, function: Function) -> None:
        """Drop what the engine keeps of a function that is no longer registered."""

    def _settle_state(self, state: State, error: DandelionError | None = None) -> None:
        if self.state is not State.CLOSED:
            self.state = state
        self.error = error
        self._changed(self)

    def _finish(
        self, work: Work, outputs: InstanceSets | None, error: DandelionError | None
    ) -> None:
        work.ended_ns = time.monotonic_ns()
        counts = self.facts.counts
        counts.calls += 1
        counts.busy_ns += work.ended_ns - work.started_ns
        if error is not None:
            counts.failures += 1
        work.done(work, outputs, error)


def run_call(engine: Engine, work: Work) -> tuple[InstanceSets | None, DandelionError | None]:
    """Run a call to its outputs or its error; nothing else can come out."""
    work.started_ns = time.monotonic_ns()
    try:
        return engine.run(work.call), None
    except DandelionError as error:
        return None, typed(error)
    except (Exception, SystemExit) as error:  # an engine that overrides `run`, or that leaves
        return None, typed(error, engine.name)


class InlineHost(EngineHost):
    """Runs a call where it is submitted. For functions that cost less than a thread switch."""

    def __init__(
        self,
        facts: HostFacts,
        formats: frozenset[str],
        changed: Callable[[EngineHost], None],
        engine: Engine,
    ) -> None:
        super().__init__(facts, formats, 1 << 30, changed)
        self._engine = engine
        facts.name = engine.name
        self._settle_state(State.READY)

    def _submit(self, work: Work) -> None:
        self._finish(work, *run_call(self._engine, work))

    def close(self) -> None:
        self.state = State.CLOSED
        self._engine.close()


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
        self._inbox: SimpleQueue[Work | Function | None] = SimpleQueue()
        self._make = make
        self._describe = describe
        self._abandon = abandon
        self._engine: Engine | None = None
        self._closing = False
        self._thread = threading.Thread(target=self._main, name=f"engine-{facts.backend}")
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
        """Run what comes, until the order to leave. An engine beyond recovery refuses it all."""
        works = True
        while True:
            work = self._inbox.get()
            if work is None:
                return
            if isinstance(work, Function):
                works = works and self._forgotten(engine, work)
            elif work.cancelled or not works:
                work.started_ns = time.monotonic_ns()
                died = EngineDied(self.facts.name, "it cannot be used any more")
                self._finish(work, None, died if not works else Cancelled("before it began"))
            else:
                outputs, error = run_call(engine, work)
                if engine.lost and not self._closing:
                    self.state = State.STARTING  # before its place is free again
                self._finish(work, outputs, error)
                del outputs, error
                works = self._ready_again(engine)
            del work  # the loop's next wait must not keep the last call's memory

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
            engine.settle()
        except Exception as error:
            return self._recovered(engine, error)
        return True

    def _recovered(self, engine: Engine, reason: Exception | None = None) -> bool:
        """Bring an engine back; one that could not tidy up must not run anything before that."""
        if reason is not None:
            typed(reason, self.facts.name)  # for the log
        if not self._closing:
            self._settle_state(State.STARTING)
        try:
            engine.recover()
        except Exception as error:
            self._settle_state(State.UNAVAILABLE, typed(error, self.facts.name))
            return False
        self._settle_state(State.READY)
        return True

    def _submit(self, work: Work) -> None:
        self._inbox.put(work)

    def cancel(self, work: Work) -> None:
        super().cancel(work)
        if self._engine is not None:
            self._engine.cancel(work.call.id)

    def forget(self, function: Function) -> None:
        if self.state is State.READY:
            self._inbox.put(function)

    def leave(self) -> None:
        self._closing = True
        super().leave()
        self._inbox.put(None)
        self._abandon()

    def close(self) -> None:
        if not self._closing:
            self.leave()
        self._thread.join()


class LoopHost(EngineHost):
    """Runs an asynchronous engine on the node's event loop, many calls at once.

    Args:
        loop: the loop; `close` must be called from another thread, or `aclose` on the loop.
        engine: what runs.
    """

    def __init__(
        self,
        facts: HostFacts,
        formats: frozenset[str],
        changed: Callable[[EngineHost], None],
        loop: asyncio.AbstractEventLoop,
        engine: AsyncEngine,
        places: int = 1024,
    ) -> None:
        super().__init__(facts, formats, places, changed)
        self._loop = loop
        self._engine = engine
        self._tasks: dict[Work, asyncio.Task[None]] = {}
        facts.name = engine.name
        self._settle_state(State.READY)

    def _submit(self, work: Work) -> None:
        if _running_loop() is self._loop:
            self._spawn(work)
        else:
            self._loop.call_soon_threadsafe(self._spawn, work)

    def _spawn(self, work: Work) -> None:
        running = self._loop.create_task(self._run(work))
        self._tasks[work] = running
        running.add_done_callback(lambda _: self._ended(work))

    def _ended(self, work: Work) -> None:
        del self._tasks[work]
        if not work.ended_ns:  # cancelled before its first step
            work.started_ns = time.monotonic_ns()
            self._finish(work, None, Cancelled("before it began"))

    async def _run(self, work: Work) -> None:
        work.started_ns = time.monotonic_ns()
        outputs: InstanceSets | None = None
        failure: DandelionError | None = None
        try:
            async with asyncio.timeout(work.call.left_s()):
                outputs = await self._engine.run(work.call)
        except TimeoutError:
            failure = TimedOut(work.call.function.spec.name, "wall", work.call.limit_s)
        except asyncio.CancelledError:
            failure = Cancelled("its invocation ended")
        except Exception as error:
            failure = typed(error, self.facts.name)
        self._finish(work, outputs, failure)

    def cancel(self, work: Work) -> None:
        super().cancel(work)
        self._loop.call_soon_threadsafe(self._stop, work)

    def _stop(self, work: Work) -> None:
        running = self._tasks.get(work)
        if running is not None:
            running.cancel()

    async def aclose(self) -> None:
        """Stop all calls and close the engine; on the loop."""
        self.state = State.CLOSED
        running = list(self._tasks.values())
        for one in running:
            one.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        await self._engine.close()

    def close(self) -> None:
        asyncio.run_coroutine_threadsafe(self.aclose(), self._loop).result()


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None
