"""One invocation on a node: the scheduler's record, its trace, and its caller."""

from __future__ import annotations

from collections.abc import Callable

from dandelion.call_logs import PrintedLine
from dandelion.data import ItemSet, Sets
from dandelion.dispatcher import Walk
from dandelion.errors import InternalError
from dandelion.node.traced_result import TracedResult
from dandelion.recording.recorder import InvocationRecorder
from dandelion.scheduler import InvocationState, Tenant
from dandelion.traces import Trace


def _nothing(invocation: Invocation) -> None:
    """No caller waits for the end."""


class Invocation(InvocationState):
    """One invocation. Changed on the node's loop.

    Attributes:
        trace: what happened in it.
        on_end: called with this on the loop when `ended` is set; once.
        recorder: collects its calls, if it is recorded.
        queued_ns, run_ns: sums over its calls that ended: waiting for engines, and on engines.
        calls_ended: how many these are.
        printed: what the call of another node wrote, if this is one.
    """

    def __init__(
        self,
        id_: str,
        tenant: Tenant,
        walk: Walk,
        inputs: tuple[ItemSet | None, ...],
        deadline_ns: int,
        deadline_s: float,
        input_bytes: int = 0,
        priority: int = 0,
        served: bool = False,
        served_ns: dict[str, int] | None = None,
        *,
        trace: Trace,
    ) -> None:
        super().__init__(
            id_,
            tenant,
            walk,
            inputs,
            deadline_ns,
            deadline_s,
            input_bytes,
            priority,
            served,
            served_ns,
        )
        self.trace = trace
        self.on_end: Callable[[Invocation], None] = _nothing
        self.recorder: InvocationRecorder | None = None
        self.queued_ns = 0
        self.run_ns = 0
        self.calls_ended = 0
        self.printed: tuple[PrintedLine, ...] = ()

    def result(self) -> TracedResult:
        """Give the result, once.

        Raises:
            DandelionError: why there is none.
        """
        # Its traceback will refer to this invocation and its inputs: a cycle would keep them all.
        error, self.error = self.error, None
        if error is not None:
            error.invocation = self.id
            try:
                raise error
            finally:
                del error
        outputs, self.outputs = self.outputs, None  # the scheduler may keep this for a while
        if outputs is None:
            raise InternalError("an invocation ended without a result")
        return TracedResult(self.id, Sets(self.walk.plan.named(outputs)), self.trace)
