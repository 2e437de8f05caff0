"""What callers on an event loop wait for: plans and results.

These coroutines are not compiled: on Python 3.12, a compiled one that is cancelled gives a warning.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from dandelion.dispatcher import CompositionPlan
from dandelion.node.inputs import InputSets
from dandelion.node.invoker import CallerSpan, Invoker
from dandelion.node.library import Library
from dandelion.node.traced_result import TracedResult
from dandelion.scheduler import Tenant


async def awaited_plan(library: Library, name: str, version: int | None) -> CompositionPlan:
    """Give a plan as `Library.plan` does; one that has to be compiled is, in a thread."""
    plan = library.known(name, version)
    return await asyncio.to_thread(library.plan, name, version) if plan is None else plan


async def awaited_result(
    invoker: Invoker,
    plan: CompositionPlan,
    inputs: InputSets,
    deadline_s: float | None,
    tenant: Tenant,
    priority: int,
    trace_context: CallerSpan = None,
    on_wait: Callable[[], None] | None = None,
) -> TracedResult:
    """Invoke, and wait on the running loop; raises as `Node.invoke`.

    Args:
        invoker: of the node.
        plan, inputs, deadline_s, tenant, priority, trace_context: what to invoke.
        on_wait: called if the result is not there at once, before this waits for it.
    """
    invocation, finished = invoker.begin(plan, inputs, deadline_s, tenant, priority, trace_context)
    del inputs
    if finished is not None:
        if on_wait is not None:
            on_wait()
        try:
            await finished
        except asyncio.CancelledError:
            invoker.leave(invocation)
            raise
    return invocation.result()
