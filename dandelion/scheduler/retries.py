"""Which calls are retried after a failure, and when a lost engine is restarted."""

from __future__ import annotations

from dataclasses import replace

from dandelion.errors import DandelionError, EngineDied, Faulted, NodeLost, SandboxLost
from dandelion.scheduler.engine import EngineState
from dandelion.scheduler.records import CallState

PLAN_ATTEMPTS = 4
"""How often a call is planned if engines die meanwhile. Several may be dead before it is known."""
ATTEMPTS = 2
"""How often a call is started in total, if engines die under it."""
NODE_ATTEMPTS = 4
"""The same, if whole nodes of a cluster are lost: several may be, while one call runs."""
RESTART_S: tuple[float, ...] = (0.0, 0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2)
"""Pauses before attempts to start an engine again."""
UNAVAILABLE_RESTART_S = 5.0
"""The pause after these; meanwhile the engine is unavailable."""


def may_run_again(call: CallState, engine: EngineState, error: DandelionError, begun: bool) -> bool:
    """Tell whether a failed call is retried. I/O is not, unless its function is idempotent, or
    another node took no part in it.

    Compute functions are pure. Such calls are retried if their engine died, or if it is in a shared
    fault domain: then another call may be the cause, which a run alone decides.
    """
    function = call.run.function
    refused = isinstance(error, NodeLost) and not begun
    if function.kind != "compute" and not function.idempotent and not refused:
        return False
    shared = isinstance(error, Faulted) and engine.shared_fault_domain
    if not shared and not isinstance(error, EngineDied):
        return False
    if call.run.application.parts is not None:
        return not begun  # its parts are run instead
    limit = NODE_ATTEMPTS if isinstance(error, NodeLost) else ATTEMPTS
    return not begun or call.attempt < limit


def blamed(call: CallState, error: DandelionError) -> DandelionError:
    """Blame the function if its engine died every time, unless it was killed from outside."""
    died = isinstance(error, EngineDied) and not isinstance(error, SandboxLost | NodeLost)
    if died and call.attempt >= ATTEMPTS:
        message = f"{ATTEMPTS} engines died under it; {error}"
        return Faulted(call.run.function.name, message).because(error)
    return replace(error) if isinstance(error, EngineDied) else error


def restart_delay_ns(failed_starts: int) -> tuple[int, bool]:
    """Return the pause before the next start, and whether the engine is unavailable meanwhile."""
    if failed_starts < len(RESTART_S):
        return int(RESTART_S[failed_starts] * 1e9), False
    return int(UNAVAILABLE_RESTART_S * 1e9), True
