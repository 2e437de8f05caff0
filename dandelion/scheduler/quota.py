"""The limits of tenants and functions."""

from __future__ import annotations

from typing import NamedTuple

from dandelion.function import FunctionSpec


class Quota(NamedTuple):
    """The limits of one tenant; of a function, `calls` and `queue_length`.

    Attributes:
        invocations: admitted at the same time; more are refused.
        calls: on engines at the same time; more wait.
        arena_bytes: inputs and results of its invocations in the arena; more are refused. Code and
            constants of its functions have the same limit.
        device_bytes: constants that stay on each device; more are copied with each call.
        queue_length: calls that wait for an engine; more are refused.
        call_device_bytes: device memory of one call; calls that need more are refused.
    """

    invocations: int = 1 << 30
    calls: int = 1 << 30
    arena_bytes: int = 1 << 62
    device_bytes: int = 1 << 62
    queue_length: int = 1 << 30
    call_device_bytes: int = 1 << 62


ARENA_REMEDY = "use smaller inputs, or ask the operator for a larger quota 'arena_bytes'"
"""What a caller can do if the arena bytes of its tenant are used up."""
NO_QUOTA = Quota()


def quota_of_function(spec: FunctionSpec) -> Quota:
    """Return the limits of calls that a function declares."""
    return Quota(calls=spec.limits.concurrency, queue_length=spec.limits.queue_length)
