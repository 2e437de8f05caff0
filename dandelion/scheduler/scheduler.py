"""The scheduler: events in, actions out. See the package's text for the life of a call.

Every public method but `take` and `refusal` is an event. Only one thread may call them. An event
has `now_ns` where time matters, and adds actions, which the caller takes with `take` and carries
out in order. Carrying out an action may cause the next event at once; events are not nested.
"""

from __future__ import annotations

import heapq
from collections import deque

from dandelion.dispatcher import Complete, Fail, Instruction, Pause, Run
from dandelion.driver import InstanceSets
from dandelion.errors import (
    Cancelled,
    ContextFull,
    DandelionError,
    DeadlineExceeded,
    InternalError,
    Overloaded,
    TimedOut,
)
from dandelion.scheduler.actions import Action, End
from dandelion.scheduler.calls import Calls, Sizes
from dandelion.scheduler.cores import CoreDivision
from dandelion.scheduler.fleet import Fleet
from dandelion.scheduler.pauses import Pauses
from dandelion.scheduler.policy import Policy
from dandelion.scheduler.quota import ARENA_REMEDY
from dandelion.scheduler.records import CallState, InvocationState, Tenant

_KEPT_DEADLINES = 64
"""The heap of deadlines may have this many ended invocations, and one for each running one."""

_COUNTED_PER_RESULT = 1000


class Scheduler:
    """Decides what runs where and when.

    Args:
        policy: orders waiting calls.
        memory_bytes: the node's memory for code and constants of functions.
        sizes: of functions.
        invocations: limit on admitted invocations of all tenants.
        cores: how compute and I/O engines divide cores; by default they do not.

    Attributes:
        limit: the same.
    """

    def __init__(
        self,
        policy: Policy,
        memory_bytes: int,
        sizes: Sizes,
        invocations: int = 4096,
        cores: CoreDivision | None = None,
    ) -> None:
        self._actions: list[Action] = []
        act = self._actions.append
        self.calls = Calls(policy, memory_bytes, sizes, act, self)
        if cores is not None:
            self.calls.sending.divide_cores(cores)
        self.fleet = Fleet(self.calls, act)
        self.invocations: dict[str, InvocationState] = {}
        self.tenants: dict[str, Tenant] = {}
        self.pauses = Pauses()
        self.closed = False
        self.limit = invocations
        self._turns: deque[InvocationState] = deque()
        self._deadlines: list[tuple[int, int, InvocationState]] = []
        self._order = 0
        self._recovers = False

    def take(self) -> list[Action]:
        """Take the actions to carry out, in order."""
        actions = self._actions.copy()
        self._actions.clear()
        return actions

    @property
    def has_actions(self) -> bool:
        """Whether there are actions to `take`."""
        return bool(self._actions)

    def refusal(self, tenant: Tenant, input_bytes: int = 0) -> DandelionError | None:
        """Return why an invocation would not be admitted now, None if it would."""
        if self.closed:
            return Cancelled("the node is shutting down")
        quota = tenant.quota
        if len(self.invocations) >= self.limit:
            return Overloaded(len(self.invocations), self.limit)
        if tenant.invocations >= quota.invocations:
            return Overloaded(tenant.invocations, quota.invocations, "invocations", tenant.label)
        if tenant.arena_bytes + input_bytes > quota.arena_bytes:
            self.recount(tenant)
            left = quota.arena_bytes - tenant.arena_bytes
            if input_bytes > left:
                return ContextFull(tenant.label, input_bytes, max(0, left), ARENA_REMEDY)
        return None

    # --- invocations --------------------------------------------------------------------------

    def submitted(self, invocation: InvocationState, now_ns: int) -> None:
        """Start an invocation.

        Raises:
            Overloaded, ContextFull: it is not admitted; nothing changed.
            Cancelled: the scheduler is closed.
        """
        tenant = invocation.tenant
        refusal = self.refusal(tenant, invocation.input_bytes)
        if refusal is not None:
            try:
                raise refusal
            finally:
                del refusal  # its traceback refers to this frame, which has the inputs
        if tenant.name not in self.tenants:
            self.tenant_changed(tenant, now_ns)
        invocation.started_ns = now_ns
        self.invocations[invocation.id] = invocation
        tenant.invocations += 1
        if invocation.input_bytes:
            self._charge(invocation, invocation.input_bytes)
        self._order += 1
        heapq.heappush(self._deadlines, (invocation.deadline_ns, self._order, invocation))
        if len(self._deadlines) > 2 * len(self.invocations) + _KEPT_DEADLINES:
            self._deadlines = [entry for entry in self._deadlines if not entry[2].ended]
            heapq.heapify(self._deadlines)
        inputs, invocation.inputs = invocation.inputs, ()
        try:
            instructions = invocation.walk.start(inputs)
        except Exception as error:
            instructions = _ended_by(invocation, error)
        self._apply(invocation, instructions, now_ns)

    def cancelled(self, invocation: InvocationState, error: DandelionError, now_ns: int) -> None:
        """Cancel an invocation, for example because its caller has closed the connection."""
        if not invocation.ended:
            self._apply(invocation, invocation.walk.cancel(error), now_ns)

    def tick(self, now_ns: int) -> None:
        """End invocations past their deadline, and pauses of instances and engines; move cores."""
        heap = self._deadlines
        while heap and (heap[0][0] <= now_ns or heap[0][2].ended):
            invocation = heapq.heappop(heap)[2]
            if not invocation.ended:
                self.cancelled(invocation, DeadlineExceeded(invocation.deadline_s), now_ns)
        while (due := self.pauses.take_due(now_ns)) is not None:
            self._again(*due, now_ns)
        sending = self.calls.sending
        sending.due(now_ns)
        if sending.cores is not None:
            sending.cores.tick(now_ns)
        self.fleet.tick(now_ns)

    @property
    def next_tick_ns(self) -> int | None:
        """When to call `tick` next; None if nothing waits for time."""
        heap = self._deadlines
        while heap and heap[0][2].ended:
            heapq.heappop(heap)
        sending = self.calls.sending
        cores = sending.cores
        due_ns = heap[0][0] if heap else None
        for time_ns in (
            self.fleet.next_retry_ns,
            sending.batches.next_due_ns,
            cores.next_look_ns(self.calls.lines.waiting) if cores is not None else None,
            self.pauses.next_due_ns,
        ):
            if time_ns is not None and (due_ns is None or time_ns < due_ns):
                due_ns = time_ns
        return due_ns

    @property
    def has_turns(self) -> bool:
        """Whether walks have stopped after a slice; then call `turn` after other events."""
        return bool(self._turns)

    def turn(self, now_ns: int) -> None:
        """Resume the next walk that stopped after a slice."""
        if self._turns:
            invocation = self._turns.popleft()
            invocation.resuming = False
            if invocation.ended:
                return
            try:
                instructions = invocation.walk.resume()
            except Exception as error:
                instructions = _ended_by(invocation, error)
            self._apply(invocation, instructions, now_ns)

    def close(self, now_ns: int) -> None:
        """End all invocations, and admit no more."""
        self.closed = True
        for invocation in list(self.invocations.values()):
            self.cancelled(invocation, Cancelled("the node is shutting down"), now_ns)

    def tenant_changed(self, tenant: Tenant, now_ns: int) -> None:
        """A tenant is new, or its quota or weight changed."""
        self.tenants[tenant.name] = tenant
        self.calls.sending.tenant_changed(tenant, now_ns)

    def used_elsewhere(self, name: str, backend: str, used_ns: int) -> None:
        """A tenant has used engines of a backend for so long on other nodes of the cluster."""
        tenant = self.tenants.get(name)
        if tenant is not None and tenant.waiting:
            self.calls.sending.used_elsewhere(tenant, backend, used_ns)

    # --- private: nothing below is an event -----------------------------------------------------

    def finished(self, call: CallState, outputs: InstanceSets, now_ns: int) -> None:
        invocation = call.invocation
        if invocation.ended:  # by a call that failed when this one left its function's memory
            return
        size = 0
        for item_set in outputs:
            if item_set is not None:
                size += item_set.size_bytes
        if size:
            call.flow.counts.output_bytes += size
            invocation.tenant.results += 1
            self._charge(invocation, size)
        try:
            instructions = invocation.walk.finished(call.run.instance, outputs)
        except Exception as error:
            instructions = _ended_by(invocation, error)
        self._apply(invocation, instructions, now_ns)

    def gave_up(self, call: CallState, error: DandelionError, now_ns: int) -> None:
        invocation = call.invocation
        if isinstance(error, TimedOut) and now_ns >= invocation.deadline_ns:
            self.cancelled(invocation, DeadlineExceeded(invocation.deadline_s), now_ns)
            return
        walk = invocation.walk
        caught, retried, caught_bytes = walk.caught, walk.retried, walk.caught_bytes
        try:
            instructions = walk.failed(call.run.instance, error)
            pause = self._refused_pause(invocation, instructions, now_ns)
            while pause is not None:
                instructions += walk.give_up(pause.instance, pause.error)
                pause = self._refused_pause(invocation, instructions, now_ns)
        except Exception as bug:
            instructions = _ended_by(invocation, bug)
        if walk.caught != caught or walk.retried != retried:
            call.flow.counts.caught += walk.caught - caught
            call.flow.counts.retried += walk.retried - retried
            self._charge(invocation, walk.caught_bytes - caught_bytes)
        self._go_on(invocation, instructions, now_ns)

    def _go_on(
        self, invocation: InvocationState, instructions: list[Instruction], now_ns: int
    ) -> None:
        """Carry out a walk's instructions after a failure.

        If these calls fail at once, too, their walks go on in their next turn. So neither the depth
        of calls nor the time of an event depends on how many fail.
        """
        if self._recovers and not invocation.walk.done:
            invocation.walk.put_back(instructions)
            self._apply(invocation, [], now_ns)
            return
        outer, self._recovers = self._recovers, True
        try:
            self._apply(invocation, instructions, now_ns)
        finally:
            self._recovers = outer

    def _again(self, invocation: InvocationState, instance: int, now_ns: int) -> None:
        """Run an instance again whose pause is over."""
        try:
            instructions = invocation.walk.again(instance)
        except Exception as bug:
            instructions = _ended_by(invocation, bug)
        self._apply(invocation, instructions, now_ns)

    def _refused_pause(
        self, invocation: InvocationState, instructions: list[Instruction], now_ns: int
    ) -> Pause | None:
        """Begin the pause among a walk's instructions; return it if there are too many."""
        for at, instruction in enumerate(instructions):
            if isinstance(instruction, Pause):
                del instructions[at]
                began = self.pauses.begin(invocation, instruction, now_ns)
                return None if began else instruction
        return None

    def _apply(
        self, invocation: InvocationState, instructions: list[Instruction], now_ns: int
    ) -> None:
        """Carry out a walk's instructions."""
        walk = invocation.walk
        for instruction in instructions:
            if isinstance(instruction, Run):
                if invocation.ended:  # by another instance of this step
                    continue
                if not walk.has_dropped or walk.expects(instruction.instance):
                    self.calls.want(invocation, instruction, now_ns)
            elif isinstance(instruction, Complete):
                self._end(invocation, instruction.outputs, None, now_ns)
            elif isinstance(instruction, Fail):
                self._end(invocation, None, instruction.error, now_ns)
            elif isinstance(instruction, Pause):
                raise AssertionError("pauses begin where a call fails")
            elif self.pauses.end(invocation, instruction.instance):
                pass
            elif (call := invocation.calls.get(instruction.instance)) is not None:
                self.calls.cancel(call, now_ns)
        if walk.has_more and not invocation.resuming and not invocation.ended:
            invocation.resuming = True
            self._turns.append(invocation)

    def _end(
        self,
        invocation: InvocationState,
        outputs: InstanceSets | None,
        error: DandelionError | None,
        now_ns: int,
    ) -> None:
        if invocation.calls:
            for call in list(invocation.calls.values()):
                self.calls.cancel(call, now_ns)
        self.pauses.end_all(invocation)
        invocation.ended = True
        invocation.ended_ns = now_ns
        invocation.outputs = outputs
        invocation.error = error
        del self.invocations[invocation.id]
        invocation.tenant.invocations -= 1
        if invocation.arena_bytes:
            self._charge(invocation, -invocation.arena_bytes)
        self._actions.append(End(invocation))

    def recount(self, tenant: Tenant) -> None:
        """Charge a tenant for what its walks hold now.

        Results are charged when they arrive, and not discharged when a walk drops them: that is
        found out here, when the quota seems to be exhausted. A count visits at most
        `_COUNTED_PER_RESULT` items for each result since the last one, so its mean cost is bounded.
        """
        if tenant.results * _COUNTED_PER_RESULT < tenant.counted:
            return
        tenant.results = tenant.counted = 0
        for invocation in self.invocations.values():
            if invocation.tenant is tenant:
                held_bytes, items = invocation.walk.held()
                tenant.counted += items
                self._charge(invocation, min(0, held_bytes - invocation.arena_bytes))

    def _charge(self, invocation: InvocationState, size_bytes: int) -> None:
        invocation.arena_bytes += size_bytes
        invocation.tenant.arena_bytes += size_bytes


def _ended_by(invocation: InvocationState, error: Exception) -> list[Instruction]:
    """End an invocation whose walk has a bug; others are not affected."""
    if not isinstance(error, DandelionError):
        error = InternalError(f"{type(error).__name__}: {error}")
    return invocation.walk.cancel(error.with_traceback(None))
