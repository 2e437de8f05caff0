"""The scheduler: events in, actions out. See the package's text for the life of a call.

Every public method but `take` and `refusal` is an event. Only one thread may call them. An event
has `now_ns` where time matters, and adds actions, which the caller takes with `take` and carries
out in order. Carrying out an action may cause the next event at once; events are not nested.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from dandelion.controllers.cores import CoreDivision
from dandelion.dispatcher import Complete, Fail, Instruction, Pause, Run
from dandelion.driver import InstanceSets
from dandelion.errors import (
    Cancelled,
    ContextFull,
    DandelionError,
    DeadlineExceeded,
    InternalError,
    Overloaded,
    QuotaExceeded,
    TimedOut,
)
from dandelion.scheduler.actions import Action, End
from dandelion.scheduler.calls import Calls, Sizes
from dandelion.scheduler.fleet import Fleet
from dandelion.scheduler.policy import Policy
from dandelion.scheduler.quota import ARENA_REMEDY
from dandelion.scheduler.records import CallState, InvocationState, Tenant
from dandelion.timers import Timers

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
        limit: of admitted invocations.
        pauses: instances that wait before they are run again, as a composition declares. The failed
            call has ended by then, so a pause has no place in a queue or on an engine, and its
            function may leave the memory. Its inputs stay charged to the tenant.
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
        self.pauses: Timers[tuple[InvocationState, int]] = Timers()
        self.closed = False
        self.limit = invocations
        self._turns: deque[InvocationState] = deque()
        self._deadlines: Timers[InvocationState] = Timers()
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
            return self.shortage(tenant, input_bytes)
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
        invocation.deadline = self._deadlines.add(invocation.deadline_ns, invocation)
        inputs, invocation.inputs = invocation.inputs, ()
        self._step(invocation, now_ns, invocation.walk.start, inputs)

    def cancelled(self, invocation: InvocationState, error: DandelionError, now_ns: int) -> None:
        """Cancel an invocation, for example because its caller has closed the connection."""
        if not invocation.ended:
            self._step(invocation, now_ns, invocation.walk.cancel, error)

    def tick(self, now_ns: int) -> None:
        """End invocations past their deadline, and pauses of instances and engines; move cores."""
        while (late := self._deadlines.take_due(now_ns)) is not None:
            self.cancelled(late, DeadlineExceeded(late.deadline_s), now_ns)
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
        sending = self.calls.sending
        cores = sending.cores
        due_ns = self._deadlines.next_due_ns
        for time_ns in (
            self.pauses.next_due_ns,
            sending.batches.waits.next_due_ns,
            self.fleet.restarts.next_due_ns,
            cores.next_look_ns(self.calls.lines.waiting) if cores is not None else None,
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
            if not invocation.ended:
                self._step(invocation, now_ns, invocation.walk.resume)

    def close(self, now_ns: int) -> None:
        """End all invocations, and admit no more."""
        self.closed = True
        for invocation in list(self.invocations.values()):
            self.cancelled(invocation, Cancelled("the node is shutting down"), now_ns)

    def tenant_changed(self, tenant: Tenant, now_ns: int) -> None:
        """A tenant is new, or its quota or weight changed."""
        self.tenants[tenant.name] = tenant
        self.calls.tenant_changed(tenant, now_ns)

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
            tenant = invocation.tenant
            if tenant.arena_bytes + size > tenant.quota.arena_bytes:
                given = sum([s.size_bytes for s in call.run.inputs if s is not None])
                error = self.shortage(tenant, size - given, invocation)
                if error is not None:
                    self.gave_up(call, error, now_ns)
                    return
            tenant.results += 1
            self._charge(invocation, size)
        self._step(invocation, now_ns, invocation.walk.finished, call.run.instance, outputs)

    def gave_up(self, call: CallState, error: DandelionError, now_ns: int) -> None:
        invocation = call.invocation
        if isinstance(error, TimedOut) and now_ns >= invocation.deadline_ns:
            self.cancelled(invocation, DeadlineExceeded(invocation.deadline_s), now_ns)
            return
        outer, self._recovers = self._recovers, True
        try:
            self._step(invocation, now_ns, self._after_failure, call, error, outer, now_ns)
        finally:
            self._recovers = outer

    def _after_failure(
        self, call: CallState, error: DandelionError, inner: bool, now_ns: int
    ) -> list[Instruction]:
        """Step the walk of a call that failed.

        If it failed while the instructions after another failure are carried out (`inner`), those
        of its own are put back until the walk's next turn. So neither the depth of calls nor the
        time of an event depends on how many fail.
        """
        invocation = call.invocation
        walk = invocation.walk
        caught, retried, caught_bytes = walk.caught, walk.retried, walk.caught_bytes
        instructions = walk.failed(call.run.instance, error)
        while (pause := self._refused_pause(invocation, instructions, now_ns)) is not None:
            instructions += walk.give_up(pause.instance, pause.error)
        call.flow.counts.caught += walk.caught - caught
        call.flow.counts.retried += walk.retried - retried
        self._charge(invocation, walk.caught_bytes - caught_bytes)
        if inner and not walk.done:
            walk.put_back(instructions)
            return []
        return instructions

    def _refused_pause(
        self, invocation: InvocationState, instructions: list[Instruction], now_ns: int
    ) -> Pause | None:
        """Begin the pause among a walk's instructions; return it if its tenant has too many."""
        pause = next((one for one in instructions if isinstance(one, Pause)), None)
        if pause is None:
            return None
        instructions.remove(pause)
        tenant = invocation.tenant
        if tenant.paused >= tenant.quota.queue_length:
            return pause
        tenant.paused += 1
        due_ns = now_ns + int(pause.pause_s * 1e9)
        invocation.pauses[pause.instance] = self.pauses.add(due_ns, (invocation, pause.instance))
        return None

    def _end_pause(self, invocation: InvocationState, instance: int) -> None:
        self.pauses.cancel(invocation.pauses.pop(instance))
        invocation.tenant.paused -= 1

    def _again(self, invocation: InvocationState, instance: int, now_ns: int) -> None:
        """Run an instance again whose pause is over."""
        self._end_pause(invocation, instance)
        self._step(invocation, now_ns, invocation.walk.again, instance)

    def _step(
        self,
        invocation: InvocationState,
        now_ns: int,
        step: Callable[..., list[Instruction]],
        *arguments: object,
    ) -> None:
        """Step a walk, and carry out its instructions. A bug of the walk ends its invocation."""
        walk = invocation.walk
        try:
            instructions = step(*arguments)
        except Exception as error:
            if not isinstance(error, DandelionError):
                error = InternalError(f"{type(error).__name__}: {error}")
            instructions = walk.cancel(error.with_traceback(None))
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
            elif instruction.instance in invocation.pauses:
                self._end_pause(invocation, instruction.instance)
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
        if invocation.pauses:
            for instance in list(invocation.pauses):
                self._end_pause(invocation, instance)
        deadline = invocation.deadline
        if deadline is not None:
            self._deadlines.cancel(deadline)
        invocation.ended = True
        invocation.ended_ns = now_ns
        invocation.outputs = outputs
        invocation.error = error
        del self.invocations[invocation.id]
        invocation.tenant.invocations -= 1
        if invocation.arena_bytes:
            self._charge(invocation, -invocation.arena_bytes)
        self._actions.append(End(invocation))

    def shortage(
        self, tenant: Tenant, needed_bytes: int, invocation: InvocationState | None = None
    ) -> ContextFull | QuotaExceeded | None:
        """Count what a tenant, whose quota seems to be exhausted, has in the arena.

        Args:
            tenant: which.
            needed_bytes: that it would have more.
            invocation: that needs them and has others already; None for a new one, or a batch,
                whose members go one by one if it fails.

        Returns:
            Why it may not use so many more bytes; None if it may.
        """
        self.recount(tenant)
        quota = tenant.quota.arena_bytes
        left = quota - tenant.arena_bytes
        if needed_bytes <= left:
            return None
        whole_bytes = needed_bytes + (0 if invocation is None else invocation.arena_bytes)
        if whole_bytes > quota:
            what = "memory for inputs and results"
            return QuotaExceeded(tenant.label, what, whole_bytes, quota, ARENA_REMEDY)
        return ContextFull(tenant.label, needed_bytes, max(0, left), ARENA_REMEDY)

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
