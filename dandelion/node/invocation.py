"""One invocation on a node: its walk, its calls that are out, and who waits for it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field

from dandelion.data import ItemSet, Sets
from dandelion.dispatcher import DirectWalk, Run, Walk
from dandelion.errors import DandelionError, InternalError
from dandelion.node.hosts import Work
from dandelion.node.placement import Needs
from dandelion.node.traces import Trace


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of an invocation.

    Attributes:
        id: of the invocation.
        sets: the output sets by name; None where empty.
        trace: what happened when.
    """

    id: str
    sets: Sets
    trace: Trace


@dataclass(slots=True, eq=False)
class Invocation:
    """The state of one invocation. Changed by the pump alone, but for `on_done`.

    Attributes:
        walk: the dispatcher's state machine.
        trace: its id is the invocation's.
        deadline_ns: on `time.monotonic_ns`.
        deadline_s: the same as the caller gave it, in seconds from the start.
        calls: what is out, by instance.
        resuming: its walk will be resumed; see `Walk.unsettled`.
        on_done: called once, from the pump, when `outputs` or `error` is there.
    """

    walk: Walk | DirectWalk
    trace: Trace
    deadline_ns: int
    deadline_s: float
    calls: dict[int, Work] = field(default_factory=dict)
    outputs: tuple[ItemSet | None, ...] | None = None
    error: DandelionError | None = None
    done: bool = False
    resuming: bool = False
    on_done: Callable[[], None] | None = None
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def finish(
        self, outputs: tuple[ItemSet | None, ...] | None, error: DandelionError | None
    ) -> None:
        """Store the result and tell who waits."""
        with self._lock:
            self.outputs = outputs
            self.error = error
            self.done = True
            on_done = self.on_done
        if on_done is not None:
            on_done()

    def when_done(self, callback: Callable[[], None]) -> bool:
        """Have `callback` called at the end. False if the end has come already."""
        with self._lock:
            self.on_done = callback
            return not self.done

    def outcome(self) -> Outcome:
        """Give the result, once.

        Raises:
            DandelionError: why there is none.
        """
        # Its traceback will refer to this invocation and its inputs: a cycle would keep them all.
        error, self.error = self.error, None
        if error is not None:
            error.invocation = self.trace.id
            try:
                raise error
            finally:
                del error
        if self.outputs is None:
            raise InternalError("an invocation ended without a result")
        names = self.walk.plan.output_names
        return Outcome(self.trace.id, Sets(dict(zip(names, self.outputs, strict=True))), self.trace)


@dataclass(slots=True, eq=False)
class WaitingCall:
    """A call on its way to an engine.

    Attributes:
        attempt: 1, and more if engines died under it.
        alone: it may not run where others share its fate.
        cache_key: under which its result is kept, if it is.
        needs: what placement must know.
        since_ns: when it began to wait for an engine, 0 if it did not.
    """

    invocation: Invocation
    run: Run
    attempt: int = 1
    alone: bool = False
    cache_key: bytes = b""
    needs: Needs = field(default_factory=lambda: Needs(()))
    since_ns: int = 0
