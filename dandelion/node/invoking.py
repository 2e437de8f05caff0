"""Invoking on a node: blocking, awaited, recorded, or begun on the node's own loop."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Never

from dandelion.data import Bytes, ItemSet, Sets, Value
from dandelion.documents import Named, name_of
from dandelion.driver import InstanceSets
from dandelion.errors import Cancelled, CapacityError, DandelionError, QuotaExceeded
from dandelion.namespaces import DEFAULT_TENANT
from dandelion.node.awaiting import awaited_plan, awaited_result
from dandelion.node.components import Components
from dandelion.node.executor_answers import Arguments
from dandelion.node.inputs import converted, positional, with_sets
from dandelion.node.invocation import Invocation
from dandelion.node.invoker import CallerSpan
from dandelion.node.traced_result import TracedResult
from dandelion.recording.code import code_of
from dandelion.recording.recorder import RECORDING_LIMIT_BYTES, InvocationRecorder
from dandelion.set_values import check_named
from dandelion.trace_context import current_context


class Invoking:
    """The methods of a node that run an invocation while the caller waits."""

    def __init__(self, parts: Components) -> None:
        self._invoker = parts.invoker
        self._runtime = parts.runtime
        self._spaces = parts.spaces

    def invoke(
        self,
        name: str | Named,
        /,
        *unnamed: Never,
        version: int | None = None,
        deadline_s: float | None = None,
        priority: int = 0,
        tenant: str = DEFAULT_TENANT,
        trace_context: CallerSpan = None,
        **sets: Value,
    ) -> Sets:
        """Invoke a function or composition with Python values; see `dandelion.set_values.item_set`.

        Args:
            name: what to invoke: a name, or a decorated function or composition.
            version: which version; by default the newest.
            deadline_s: seconds until the invocation is given up.
            priority: from -1000 to 1000. Of the waiting calls of this tenant, those of the highest
                priority are next. Calls of other tenants are not affected.
            tenant: whose function or composition it is; its quotas and share hold.
            trace_context: the caller's span. By default OpenTelemetry's current span, if the
                program uses OpenTelemetry.
            *unnamed: none, since sets have no order.
            **sets: the input sets. All must be named; None is an absent set.

        Returns:
            The output sets by name.

        Raises:
            Unknown, InvalidInput: the call does not fit.
            ApplicationFailed, FunctionError: a function failed.
            DeadlineExceeded, Overloaded, CapacityError, NoEngine: not now, or not here.
            QuotaExceeded: it needs more than its tenant may use.
                The field `invocation` of each error is the invocation's id, if it has one.
        """
        check_named(unnamed)
        space = self._spaces.of(tenant)
        plan = space.library.plan(name_of(name), version)
        inputs = positional(plan, converted(plan, sets))
        span = trace_context or current_context()
        return self._invoker.call(plan, inputs, deadline_s, space.tenant, priority, span).sets

    async def invoke_async(
        self,
        name: str | Named,
        /,
        *unnamed: Never,
        version: int | None = None,
        deadline_s: float | None = None,
        priority: int = 0,
        tenant: str = DEFAULT_TENANT,
        trace_context: CallerSpan = None,
        **sets: Value,
    ) -> Sets:
        """Invoke as `invoke` does, from any event loop; cancelling it cancels the invocation."""
        check_named(unnamed)
        space = self._spaces.of(tenant)
        plan = await awaited_plan(space.library, name_of(name), version)
        inputs = positional(plan, converted(plan, sets))
        span = trace_context or current_context()
        result = await awaited_result(
            self._invoker, plan, inputs, deadline_s, space.tenant, priority, span
        )
        return result.sets

    def invoke_sets(
        self,
        name: str | Named,
        sets: Mapping[str, Value],
        *,
        version: int | None = None,
        deadline_s: float | None = None,
        priority: int = 0,
        tenant: str = DEFAULT_TENANT,
        trace_context: CallerSpan = None,
    ) -> TracedResult:
        """Invoke as `invoke` does; the result also has the id of the invocation, and its trace.

        The values of `sets` are those of `invoke`. An `ItemSet` is taken as it is, and not compared
        with its declaration.
        """
        space = self._spaces.of(tenant)
        plan = space.library.plan(name_of(name), version)
        inputs = positional(plan, with_sets(plan, sets))
        span = trace_context or current_context()
        return self._invoker.call(plan, inputs, deadline_s, space.tenant, priority, span)

    async def invoke_sets_async(
        self,
        name: str | Named,
        sets: Mapping[str, Value],
        *,
        version: int | None = None,
        deadline_s: float | None = None,
        priority: int = 0,
        tenant: str = DEFAULT_TENANT,
        trace_context: CallerSpan = None,
        on_wait: Callable[[], None] | None = None,
    ) -> TracedResult:
        """Invoke as `invoke_sets` does, from any event loop; cancelling it cancels the invocation.

        Args:
            name, sets, version, deadline_s, priority, tenant: as of `invoke_sets`.
            trace_context: the caller's span, or the span that a frontend has begun. Unlike with the
                other methods, OpenTelemetry's current span is not used: a server's loop may have
                been started in one.
            on_wait: called if the result is not there at once, before this waits for it.
        """
        space = self._spaces.of(tenant)
        plan = await awaited_plan(space.library, name_of(name), version)
        inputs = positional(plan, with_sets(plan, sets))
        return await awaited_result(
            self._invoker, plan, inputs, deadline_s, space.tenant, priority, trace_context, on_wait
        )

    def record(
        self,
        name: str | Named,
        sets: Mapping[str, Value],
        *,
        version: int | None = None,
        deadline_s: float | None = None,
        tenant: str = DEFAULT_TENANT,
        limit_bytes: int = RECORDING_LIMIT_BYTES,
    ) -> Bytes:
        """Invoke with sets, and record the invocation: code, inputs, calls, and the result.

        Functions are called one by one, also those that `fuse` would join. A failure of the
        invocation is part of the recording.

        Args:
            name, sets, version, deadline_s, tenant: as of `invoke_sets`.
            limit_bytes: of data in the recording, see `InvocationRecorder`.

        Returns:
            The recording, see `dandelion.recording.records.decode_recording`.

        Raises:
            Unknown, InvalidInput, CapacityError, QuotaExceeded, Cancelled: it was not run, or not
                to its end.
            TooLarge: what a replay needs exceeds the limit.
        """
        name = name_of(name)
        space = self._spaces.of(tenant)
        plan = space.library.separate_plan(name, version)
        code = code_of(name, version, space.library.find, space.catalog)
        inputs = positional(plan, with_sets(plan, sets))
        partitioning = self._invoker.partitioning.setting()
        recorder = InvocationRecorder(limit_bytes, inputs, partitioning)
        started_ns = time.monotonic_ns()
        answer: InstanceSets | DandelionError
        try:
            result = self._invoker.call(
                plan, inputs, deadline_s, space.tenant, 0, recorder=recorder
            )
            id_, answer = result.id, tuple(result.sets.values())
        except DandelionError as error:
            if not error.invocation or isinstance(error, CapacityError | QuotaExceeded | Cancelled):
                raise
            id_, answer = error.invocation, error
        names = tuple(spec.name for spec in plan.inputs)
        return recorder.recording(name, id_, started_ns, code, names, answer).encode()

    def begin(
        self,
        name: str,
        sets: Mapping[str, ItemSet | None],
        *,
        version: int | None = None,
        deadline_s: float | None = None,
        priority: int = 0,
        tenant: str = DEFAULT_TENANT,
        trace_context: CallerSpan = None,
        ended: Callable[[Invocation], None],
    ) -> Invocation:
        """Begin an invocation, on the node's own loop only.

        Args:
            name, sets, version, deadline_s, priority, tenant, trace_context: as of
                `invoke_sets_async`.
            ended: called on the loop at the end: perhaps before this returns, but not within
                `gather`.

        Raises:
            Unknown, InvalidInput, Overloaded, CapacityError, QuotaExceeded, Cancelled: it did not
                begin.
        """
        space = self._spaces.of(tenant)
        plan = space.library.plan(name, version)
        inputs = positional(plan, sets)
        invocation = self._invoker.made(
            plan, inputs, deadline_s, space.tenant, priority, trace_context
        )
        invocation.on_end = ended
        self._runtime.submit(invocation)
        return invocation

    def gather(self, caller: Callable[[*Arguments], None], *given: *Arguments) -> None:
        """Call a function, and work at its end on all that it begins and cancels; on the loop only.

        For a caller that has many of them at hand: one by one, each costs a look for more work.
        """
        self._runtime.gather(caller, *given)

    def cancel(self, invocation: Invocation, error: DandelionError) -> None:
        """End an invocation that `begin` began, on the node's own loop only."""
        self._runtime.cancel(invocation, error)
