"""The contract of executors: what carries out the scheduler's actions on one engine.

An executor owns all that waits or takes time for its engine: starting and replacing it, loading
functions, copying inputs, sending calls and receiving answers. The node's loop calls it, and it
must not block there: what takes time runs in a thread and comes back with `Events.post`.

Order of what happens to one engine::

    start --> up | start_failed
    send(call) ... flush --> done | failed        once for each call, unless the engine is lost
    lost: the scheduler takes all calls back and asks for `start` again
    close: no event follows

`Events` are the answers. They are raised on the loop; only `post` may be called from any thread.
"""

from __future__ import annotations

import abc
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Executor as Pool
from dataclasses import dataclass, field
from typing import ClassVar, Protocol

from mypy_extensions import mypyc_attr

from dandelion.driver import Call, Capacity, Engine, InstanceSets
from dandelion.errors import DandelionError, EngineDied, TimedOut
from dandelion.executors.batches import join
from dandelion.executors.failures import to_dandelion_error
from dandelion.function import Function
from dandelion.memory import SharedDomain, Transfers
from dandelion.scheduler import CallState, EngineState, Flow


@dataclass(slots=True)
class StartedEngine:
    """What is known of an engine that is up.

    Attributes:
        name: for people, metrics and traces.
        backend: that it belongs to.
        resource: that it runs on.
        description: of the resource, for people.
        capacity: what it has for one call.
    """

    name: str
    backend: str
    resource: str
    description: str = ""
    capacity: Capacity = field(default_factory=Capacity)


class Events(Protocol):
    """What an executor answers with. On the node's loop, except for `post`."""

    def post(self, event: Callable[[], None]) -> None:
        """Have something done on the loop soon; from any thread."""

    def up(self, engine: EngineState, info: StartedEngine) -> None:
        """The engine takes calls."""

    def start_failed(self, engine: EngineState, error: DandelionError) -> None:
        """The engine could not be started."""

    def lost(
        self, engine: EngineState, error: EngineDied, begun: Mapping[int, DandelionError]
    ) -> None:
        """The engine is gone with all its calls; `begun` has the errors of those it had begun."""

    def done(self, call: CallState, outputs: InstanceSets) -> None:
        """A call gave its outputs."""

    def failed(self, call: CallState, error: DandelionError, begun: bool = True) -> None:
        """A call failed; `begun` is False if the engine did nothing for it."""

    def planned(self, call: CallState) -> None:
        """A call's `demand` is known."""


class Functions(Protocol):
    """Where executors find what they run."""

    def loaded(self, flow: Flow, code_format: str) -> Function:
        """Give a function that is in memory, with its code object of a format."""


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What all executors of a node share.

    Attributes:
        events: their answers.
        functions: what they run.
        arena: where inputs and results of engine processes lie.
        transfers: copies inputs there.
        pool: threads for what takes time.
    """

    events: Events
    functions: Functions
    arena: SharedDomain
    transfers: Transfers
    pool: Pool


@mypyc_attr(allow_interpreted_subclasses=True)
class Executor(abc.ABC):
    """Carries out the scheduler's actions for one engine. See the module's text.

    Attributes:
        engine: the scheduler's record of it.
        info: what is known of it; backend and resource before it is up.
        ready: called on the loop when it is up, before `Events.up`.
        collects: what is sent leaves with `flush`.
        in_thread: its calls run in a thread of this process.
    """

    collects: ClassVar[bool] = False
    in_thread: ClassVar[bool] = False

    def __init__(self, engine: EngineState, info: StartedEngine, around: Surroundings) -> None:
        self.engine = engine
        self.info = info
        self.around = around
        self.events = around.events
        self.ready: Callable[[Executor], None] = lambda executor: None

    @abc.abstractmethod
    def start(self) -> None:
        """Start the engine, or replace it after it was lost."""

    @abc.abstractmethod
    def send(self, call: CallState, evict: tuple[Flow, ...] = (), keep: bool = False) -> None:
        """Run a call; see `dandelion.scheduler.actions.Send`."""

    def flush(self) -> None:
        """Let what was sent since the last time leave."""

    def stop(self, call: CallState) -> None:
        """End a call that was sent soon, if that can be done; it is answered all the same."""

    def plan(self, call: CallState) -> None:
        """Find out the demand of a call."""
        raise NotImplementedError("engines of this kind do not differ in what they have")

    def check(self) -> None:
        """Replace the engine if it is idle: one that shares its faults was lost."""

    def forget(self, flow: Flow) -> None:
        """Drop what the engine keeps of a function."""

    def late(self, now_ns: int) -> None:
        """Give up calls that should have been answered before; called several times a second."""

    @abc.abstractmethod
    def close(self) -> None:
        """Stop the engine and wait until everything of it is gone. Not on the loop."""


def function_of(executor: Executor, call: CallState) -> Function:
    """Give the function of a call in the form that an engine runs."""
    formats = executor.engine.formats
    for name in call.run.application.formats:
        if name in formats:
            return call.flow.functions.get(name) or executor.around.functions.loaded(
                call.flow, name
            )
    raise AssertionError("the scheduler chose an engine that runs one of its formats")


def begin_call(executor: Executor, call: CallState) -> Call:
    """Make the call that an engine in this process is given. Its time counts from now.

    Raises:
        ContextFull: there is no room for the joined inputs of a batch.
    """
    function = function_of(executor, call)
    if call.members:
        join(call, executor.around.arena, executor.around.transfers)
    invocation, run = call.invocation, call.run
    limit_s = function.spec.limits.wall_s
    call.started_ns = now_ns = time.monotonic_ns()
    latest_ns, deadline_ns = invocation.deadline_ns, now_ns + int(limit_s * 1e9)
    deadline_s = invocation.deadline_s
    return Call(
        call.id,
        function,
        function.with_static(run.inputs),
        executor.around.arena,
        deadline_ns if deadline_ns < latest_ns else latest_ns,
        limit_s if limit_s < deadline_s else deadline_s,
        call.stages,
        call.demand,
        latest_ns,
        run.origin,
        tenant=call.flow.tenant.name,
        invocation=invocation.id,
    )


Result = tuple[InstanceSets | None, DandelionError | None]


def run_call(engine: Engine, call: Call) -> Result:
    """Run a call to its outputs or its error; nothing else can come out."""
    try:
        return engine.run(call), None
    except DandelionError as error:
        return None, to_dandelion_error(error)
    except (Exception, SystemExit) as error:  # an engine that overrides `run`, or that leaves
        return None, to_dandelion_error(error, engine.name)


def finish(
    events: Events, call: CallState, outputs: InstanceSets | None, error: DandelionError | None
) -> None:
    """Answer a call that ended."""
    call.ended_ns = time.monotonic_ns()
    if outputs is not None:
        events.done(call, outputs)
    else:
        assert error is not None, "a call ends with outputs or with an error"
        events.failed(call, error)


def timed_out(function: Function, limit_s: float) -> TimedOut:
    """Give the error of a call that took too long."""
    return TimedOut(function.spec.name, "wall", min(function.spec.limits.wall_s, limit_s))
