"""Invoking: from a name and sets to an invocation, and from its end to the caller.

A caller is a thread that blocks, a coroutine on any event loop, or code on the node's own loop.
The invocation itself runs on the node's loop in all cases.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import threading
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import TypeAlias

from dandelion.asynchronous.records import KeptRecord
from dandelion.data import ItemSet
from dandelion.dataflow.sharding import Partitioning
from dandelion.deadline import checked_deadline
from dandelion.dispatcher import CompositionPlan, Walk
from dandelion.dispatcher.watched import ApplicationEnd, WatchedWalk
from dandelion.errors import Cancelled
from dandelion.executors.failures import to_dandelion_error
from dandelion.node.inputs import InputSets, InputStager, positional
from dandelion.node.invocation import Invocation
from dandelion.node.library import Library
from dandelion.node.loop import NodeLoop
from dandelion.node.runtime import Runtime
from dandelion.node.spaces import Spaces
from dandelion.node.traced_result import TracedResult
from dandelion.priority import checked_priority
from dandelion.recording.recorder import InvocationRecorder
from dandelion.scheduler import Tenant
from dandelion.trace_context import InvocationSpan, TraceContext, Tracing
from dandelion.traces import Trace

CallerSpan: TypeAlias = TraceContext | InvocationSpan | None
"""The span of a caller, or the invocation's own, which a frontend has begun already."""
_NOT_RUNNING = "the node is not running"
SLICE = 1024
"""How many applications a walk begins before the loop runs other tasks."""


class Invoker:
    """Begins invocations and waits for them.

    Args:
        spaces: of the tenants.
        loop: of the node.
        runtime: of the node.
        stager: copies large inputs of blocking callers.
        partitioning: of ``any`` shardings.
        default_deadline_s: of invocations that name none.
        tracing: begins the spans of invocations.

    Attributes:
        running: whether invocations are accepted.
    """

    def __init__(
        self,
        spaces: Spaces,
        loop: NodeLoop,
        runtime: Runtime,
        stager: InputStager,
        partitioning: Partitioning,
        default_deadline_s: float,
        tracing: Tracing,
    ) -> None:
        self._tracing = tracing
        self.running = False
        self._spaces = spaces
        self._loop = loop
        self._runtime = runtime
        self._stager = stager
        self.partitioning = partitioning
        self._default_deadline_s = default_deadline_s
        self._ids = itertools.count(1)
        self._prefix = os.urandom(6).hex()

    def library(self, tenant: str) -> Library:
        """Give the plans of a tenant."""
        return self._spaces.of(tenant).library

    def call(
        self,
        plan: CompositionPlan,
        inputs: InputSets,
        deadline_s: object,
        tenant: Tenant,
        priority: object,
        trace_context: CallerSpan = None,
        recorder: InvocationRecorder | None = None,
    ) -> TracedResult:
        """Invoke, and block until the result is there; raises as `Node.invoke`."""
        if self._loop.is_current:
            return self._call_here(
                plan, inputs, deadline_s, tenant, priority, trace_context, recorder
            )
        inputs, staged_bytes = self._stager.stage(plan, inputs)
        try:
            invocation = self.made(plan, inputs, deadline_s, tenant, priority, trace_context)
            invocation.recorder = recorder
            del inputs
            lock = threading.Lock()
            lock.acquire()
            invocation.on_end = lambda _: lock.release()
            try:
                self._post_begin(invocation)
                lock.acquire()
            except BaseException:  # a signal, such as Ctrl-C: the caller leaves
                self._runtime.post(partial(self._interrupt, invocation))
                raise
        finally:
            self._stager.release(staged_bytes)
        return invocation.result()

    def _call_here(
        self,
        plan: CompositionPlan,
        inputs: InputSets,
        deadline_s: object,
        tenant: Tenant,
        priority: object,
        trace_context: CallerSpan,
        recorder: InvocationRecorder | None,
    ) -> TracedResult:
        """Invoke on the loop's own thread, which works until the result is there.

        Functions that need the loop itself, such as HTTP, cannot go on meanwhile: they end with
        the deadline.
        """
        invocation = self.made(plan, inputs, deadline_s, tenant, priority, trace_context)
        invocation.recorder = recorder
        self._runtime.submit(invocation)
        if not invocation.ended:
            self._runtime.wait(lambda: invocation.ended, invocation.deadline_s)
        if not invocation.ended:
            self._runtime.expire(invocation)
        return invocation.result()

    def begin(
        self,
        plan: CompositionPlan,
        inputs: InputSets,
        deadline_s: object,
        tenant: Tenant,
        priority: object,
        trace_context: CallerSpan = None,
    ) -> tuple[Invocation, asyncio.Future[None] | None]:
        """Begin an invocation whose caller is on the running loop; raises as `Node.invoke`.

        Returns:
            The invocation, and what is resolved at its end; None if it has ended.
        """
        invocation = self.made(plan, inputs, deadline_s, tenant, priority, trace_context)
        here = self._loop.is_current
        if here:
            self._runtime.submit(invocation)
            if invocation.ended:
                return invocation, None
        loop = asyncio.get_running_loop()
        finished: asyncio.Future[None] = loop.create_future()
        if here:
            invocation.on_end = partial(_resolve, finished)
        else:
            invocation.on_end = partial(_resolve_on, loop, finished)
            self._post_begin(invocation)
        return invocation, finished

    def leave(self, invocation: Invocation) -> None:
        """Cancel an invocation whose caller left."""
        cancel = partial(self._runtime.cancel, invocation, Cancelled("its caller left"))
        if self._loop.is_current:
            cancel()
        else:
            self._runtime.post(cancel)

    def check_tenant(self, name: str) -> None:
        """Refuse a tenant that another node has named and that this one cannot have.

        Raises:
            Overloaded, InvalidInput: see `Spaces.named_elsewhere`.
        """
        self._spaces.named_elsewhere(name)

    def made_kept(
        self,
        record: KeptRecord,
        sets: Mapping[str, ItemSet | None],
        deadline_s: float,
        on_application: Callable[[ApplicationEnd], None],
        ended: Callable[[Invocation], None],
    ) -> tuple[Invocation, WatchedWalk]:
        """Make the record of an attempt of an asynchronous invocation.

        Args:
            record: the invocation.
            sets: its inputs.
            deadline_s: of the attempt.
            on_application: called when an application of the composition itself ends.
            ended: called on the loop at the end.

        Raises:
            Unknown, InvalidInput, Cancelled: it cannot begin.
        """
        request = record.request
        space = self._spaces.of(record.tenant)
        plan = space.library.plan(request.name, request.version)
        walk = WatchedWalk(plan, self.partitioning, SLICE, on_application)
        invocation = self.made(
            plan,
            positional(plan, sets),
            deadline_s,
            space.tenant,
            request.priority,
            id_=record.id,
            walk=walk,
        )
        invocation.on_end = ended
        return invocation, walk

    def made(
        self,
        plan: CompositionPlan,
        inputs: InputSets,
        deadline_s: object,
        tenant: Tenant,
        priority: object,
        trace_context: CallerSpan = None,
        id_: str | None = None,
        walk: Walk | None = None,
    ) -> Invocation:
        """Make the record of an invocation.

        Args:
            plan, inputs, tenant: what to invoke.
            deadline_s, priority: as the caller gave them. They are checked here.
            id_: of the invocation; by default a new one.
            walk: of the plan; by default a new one.

        Raises:
            Cancelled: the node does not run.
            InvalidInput: the deadline is not a positive number of seconds, or the priority is not
                an integer within its limits.
        """
        if not self.running:
            raise Cancelled(_NOT_RUNNING)
        limit_s = self._default_deadline_s if deadline_s is None else checked_deadline(deadline_s)
        rank = 0 if priority == 0 else checked_priority("priority", priority)
        span = (
            trace_context
            if isinstance(trace_context, InvocationSpan)
            else self._tracing.begin(trace_context)
        )
        number = f"{self._prefix}-{next(self._ids):x}" if id_ is None else id_
        now_ns = time.monotonic_ns()
        invocation = Invocation(
            number,
            tenant,
            Walk(plan, self.partitioning, slice_=SLICE) if walk is None else walk,
            inputs,
            now_ns + int(limit_s * 1e9),
            limit_s,
            sum([s.size_bytes for s in inputs if s is not None]),
            rank,
            trace=Trace(number, plan.name, now_ns, tenant.name),
        )
        invocation.span = span
        return invocation

    def _post_begin(self, invocation: Invocation) -> None:
        """Have an invocation begin on the loop.

        Raises:
            Cancelled: the loop has just stopped.
        """
        if not self._loop.post(partial(self._begin, invocation)):
            raise Cancelled(_NOT_RUNNING)

    def _begin(self, invocation: Invocation) -> None:
        """Submit an invocation whose caller waits elsewhere; on the loop."""
        try:
            self._runtime.submit(invocation)
        except Exception as error:  # also a bug: its caller would wait for ever
            invocation.error = to_dandelion_error(error, "the node")
            invocation.ended = True
            invocation.on_end(invocation)

    def _interrupt(self, invocation: Invocation) -> None:
        """End an invocation whose caller was interrupted, if it began; on the loop."""
        if invocation.started_ns:
            self._runtime.cancel(invocation, Cancelled("its caller was interrupted"))


def _resolve(future: asyncio.Future[None], _: Invocation) -> None:
    if not future.done():
        future.set_result(None)


def _resolve_on(
    loop: asyncio.AbstractEventLoop, future: asyncio.Future[None], invocation: Invocation
) -> None:
    loop.call_soon_threadsafe(_resolve, future, invocation)
