"""Hosts carry engines: in the dispatcher's own step, in a thread, in a process, on the event loop.

This is what they have in common, and the simplest of them; the others are `ThreadHost`,
`ProcessHost` and `LoopHost`, each in a module of its own.

A host takes `Work` when it has a free place and calls ``work.done`` exactly once, from whatever
thread it likes. It is made at once and becomes ready, or unavailable, in the background. Places are
counted by the node alone (`EngineHost.submit`, `EngineHost.vacate`), one thread at a time.
"""

from __future__ import annotations

import abc
import enum
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeAlias

from dandelion.driver import Call, Capacity, Driver, Engine, InstanceSets
from dandelion.errors import DandelionError
from dandelion.function import Function
from dandelion.node.failures import typed

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
        alone: it may not run where others share its fate.
        begun: False if its engine died before it began with this call.
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
    alone: bool = False
    begun: bool = True
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
        worker: it shares its resource with others, and runs at the same time as they.
        shared_fault_domain: a fault of one worker ends the calls of all.
    """

    backend: str
    resource: str
    name: str = ""
    description: str = ""
    capacity: Capacity = field(default_factory=Capacity)
    worker: bool = False
    shared_fault_domain: bool = False
    counts: HostCounts = field(default_factory=HostCounts)

    @property
    def device(self) -> tuple[str, str]:
        """What it shares with other hosts: its resource, of its backend."""
        return self.backend, self.resource


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
    def driver(self) -> Driver | None:
        """The driver that tells what a call will need there; None where every call fits."""
        return None

    @property
    def free(self) -> int:
        """How many more calls it takes now."""
        return self.places - self.busy if self.state is State.READY else 0

    def submit(self, work: Work) -> None:
        """Take a call; there was a free place. Called by one thread at a time."""
        self.busy += 1  # it was free when it was chosen; its engine may have been lost meanwhile
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

    def knows(self, function: str) -> int:
        """Tell whether the engine ran a function last (2), has it (1), or neither (0)."""
        return 0

    def doubt(self) -> None:
        """One that shares its fate was lost: if it runs nothing that would tell, begin anew."""

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


Result: TypeAlias = "tuple[InstanceSets | None, DandelionError | None]"


def run_call(engine: Engine, work: Work) -> Result:
    """Run a call to its outputs or its error; nothing else can come out."""
    work.started_ns = time.monotonic_ns()
    return result_of(engine, engine.run, work.call)


def result_of(engine: Engine, run: Callable[[Call], InstanceSets], call: Call) -> Result:
    """Turn what an engine gives or raises into outputs or an error."""
    try:
        return run(call), None
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
