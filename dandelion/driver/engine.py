"""Engines run calls.

An **engine** runs one instance of a function at a time: sets in, sets out. It is plain synchronous
code; where it runs is its driver's `Hosting`. An asynchronous engine runs many instances at once on
an event loop.
"""

from __future__ import annotations

import abc
import time
from typing import NamedTuple

import msgspec

from dandelion.call_logs import PrintedLine
from dandelion.data import Origin
from dandelion.driver.checks import InstanceSets, check_inputs, check_outputs
from dandelion.driver.records import Capacity, Demand
from dandelion.errors import DandelionError, EngineDied, InternalError
from dandelion.function import Function
from dandelion.memory import MemoryDomain
from dandelion.secrets import redact, redacted_texts
from dandelion.trace_context import TraceContext


class SharedConstants(NamedTuple):
    """Constants of a function that one engine has copied to a device, for the others there.

    Attributes:
        key: of the engines: what they contain, and how they are arranged.
        descriptor: of their memory, for the engine to import it.
    """

    key: str
    descriptor: int


class Call(msgspec.Struct, eq=False, gc=False):
    """One instance, as an engine sees it.

    Attributes:
        id: unique within the node.
        function: its code and static sets.
        inputs: sets by position of ``function.spec.inputs``; absent ones are None.
        domain: where the engine acquires contexts for its outputs.
        deadline_ns: on `time.monotonic_ns`; the engine ends the call with `TimedOut` after it.
        limit_s: the wall-clock limit that led to the deadline, for error messages.
        stages: durations of the engine's stages, in nanoseconds, by name; written by the engine.
        demand: the planner's result, if it is known already.
        latest_ns: when its invocation ends, on `time.monotonic_ns`. The limit of a call that waits
            for its engine counts from its start, but ends here. 0 is the deadline.
        origin: the item that it is made for, if it is made for one.
        keep_constants: the device keeps the function's constants for later calls.
        shared_constants: constants that another engine of the device has copied there; the
            descriptor is closed after the call.
        tenant: that invoked the function, for engines in the node's process; empty elsewhere.
        printed: what the function wrote to its standard streams and to `logging`; written by the
            engine, also of a call that fails.
        trace_context: of I/O functions: the span that their requests to other services are below,
            if there is one.
        invocation: id of the invocation, of engines in the node's own process. It is the same in
            all attempts of an asynchronous one, so an I/O function can make an idempotency key of
            it, with the request itself: `backends/http` would send one as ``Idempotency-Key``.
    """

    id: int
    function: Function
    inputs: InstanceSets
    domain: MemoryDomain
    deadline_ns: int
    limit_s: float = 60.0
    stages: dict[str, int] = {}
    demand: Demand | None = None
    latest_ns: int = 0
    origin: Origin | None = None
    keep_constants: bool = True
    shared_constants: SharedConstants | None = None
    tenant: str = ""
    printed: tuple[PrintedLine, ...] = ()
    trace_context: TraceContext | None = None
    invocation: str = ""

    def start_deadline(self, now_ns: int) -> None:
        """Set the deadline, counting the limit from now."""
        self.deadline_ns = min(self.latest_ns or self.deadline_ns, now_ns + int(self.limit_s * 1e9))

    def is_stopped(self) -> bool:
        """Tell whether the call was cancelled or is late; an engine may then raise `Cancelled`."""
        return False

    def share_constants(self, constants: SharedConstants) -> None:
        """Offer constants to the other engines of the device; the descriptor stays the engine's."""

    def left_s(self) -> float:
        """Seconds until the deadline, not below zero."""
        return max(0.0, (self.deadline_ns - time.monotonic_ns()) / 1e9)


class Engine(abc.ABC):
    """Runs one instance at a time, on one resource. Used by one thread at a time, but for `cancel`.

    Attributes:
        name: for errors, metrics and traces, for example ``opencl:0``.
        capacity: its capacity.
        workers: how many further engines should share its resource.
        elastic: the node chooses how many of these are started and take calls.
        standby: whether a process prepared by `EngineFactory.warm` should wait to replace it when
            it is lost.
        lost: it can no longer work; see `recover`.
    """

    name: str
    capacity = Capacity()
    workers = 0
    elastic = False
    standby = False
    lost = False

    def run(self, call: Call) -> InstanceSets:
        """Run an instance to its end.

        Returns:
            Output sets by position of ``call.function.spec.outputs``; None where empty. Their data
            is in contexts of ``call.domain``, or is small and on the heap.

        Raises:
            DandelionError: of the family of the side at fault. Any other exception of `_run`
                becomes an `InternalError`.
        """
        try:
            if call.function.typed:
                call.inputs = check_inputs(call.function, call.inputs)
            outputs = self._run(call)
            return check_outputs(call.function.spec, outputs)
        except DandelionError as error:
            redact(error, call.function)
            raise
        except Exception as error:
            raise InternalError(f"{self.name}: {type(error).__name__}: {error}") from error
        finally:
            if call.printed and call.function.spec.secrets:
                call.printed = _redacted(call.printed, call.function)

    @abc.abstractmethod
    def _run(self, call: Call) -> InstanceSets: ...

    def cancel(self, call_id: int) -> bool:
        """Request, from another thread, that a running call ends soon. False if not possible."""
        return False

    def clean_up(self) -> None:
        """Do work that can wait until a call's outputs are returned, such as zeroing."""

    def recover(self) -> None:
        """Make a lost engine work again; may take seconds.

        Raises:
            EngineDied: that is not possible; use another engine.
        """
        raise EngineDied(self.name, "it cannot be used any more in this process")

    def evict(self, function: Function) -> None:
        """Drop the constants of a function from the device; its code stays."""

    def forget(self, function: Function) -> None:
        """Drop cached data of a function that is no longer registered."""

    @abc.abstractmethod
    def close(self) -> None:
        """Release all resources: children, device memory, descriptors. May be called twice."""


class AsyncEngine(abc.ABC):
    """Runs many instances at once on an event loop. Trusted platform code only."""

    name: str

    async def run(self, call: Call) -> InstanceSets:
        """Run an instance to its end, as `Engine.run`; cancelling the coroutine cancels it."""
        try:
            if call.function.typed:
                call.inputs = check_inputs(call.function, call.inputs)
            outputs = await self._run(call)
            return check_outputs(call.function.spec, outputs)
        except DandelionError as error:
            redact(error, call.function)
            raise
        except Exception as error:
            raise InternalError(f"{self.name}: {type(error).__name__}: {error}") from error

    @abc.abstractmethod
    async def _run(self, call: Call) -> InstanceSets: ...

    @abc.abstractmethod
    async def close(self) -> None:
        """Close connections and sessions."""


def _redacted(lines: tuple[PrintedLine, ...], function: Function) -> tuple[PrintedLine, ...]:
    """Take the secrets of a function out of what it wrote."""
    texts = redacted_texts([line.text for line in lines], function)
    pairs = zip(lines, texts, strict=True)
    return tuple(PrintedLine(line.stream, text, line.level) for line, text in pairs)
