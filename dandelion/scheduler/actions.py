"""The scheduler's actions. Executors carry them out and answer with events.

=============  ===================================================  ============================
action         work of the executor                                 answer
=============  ===================================================  ============================
`Fetch`        load code and constants into the node's memory       `fetched`, `fetch_failed`
`Discard`      drop them from the node's memory                     -
`Look`         look for a cached result of a call                   `found`, `missed`
`Plan`         compute the demand of a call                         `planned`, `failed`
`Send`         run a call on an engine                              `done`, `failed`
`Stop`         stop a sent call as soon as possible; its result     `done`, `failed`
               is not needed
`Start`        start an engine, or replace a lost one               `engine_up`, `engine_failed`
`Check`        the engine may be broken, since another in its       `engine_up`, `engine_lost`
               fault domain was lost: replace it if it is idle
`End`          return the result to the caller                      -
=============  ===================================================  ============================

An executor may answer at once or later, from the thread of the scheduler.
"""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from dandelion.scheduler.engine import EngineState
from dandelion.scheduler.records import CallState, Flow, InvocationState


class Fetch(msgspec.Struct, frozen=True, eq=False, gc=False):
    """Load the code and constants of a function."""

    flow: Flow


class Discard(msgspec.Struct, frozen=True, eq=False, gc=False):
    """Drop the code and constants of a function; no call uses them."""

    flow: Flow


class Look(msgspec.Struct, frozen=True, eq=False, gc=False):
    """Look for a cached result."""

    call: CallState


class Plan(msgspec.Struct, frozen=True, eq=False, gc=False):
    """Compute the demand of a call on `engine`, which runs its function."""

    call: CallState
    engine: EngineState


class Send(msgspec.Struct, frozen=True, eq=False, gc=False):
    """Run a call.

    Attributes:
        call: the call; `call.engine` runs it.
        evict: flows whose constants the device drops first.
        keep: the device keeps the constants of this call's flow.
    """

    call: CallState
    evict: tuple[Flow, ...] = ()
    keep: bool = False


class Stop(msgspec.Struct, frozen=True, eq=False, gc=False):
    """Stop a call that was sent."""

    call: CallState


class Start(msgspec.Struct, frozen=True, eq=False, gc=False):
    """Start an engine."""

    engine: EngineState


class Check(msgspec.Struct, frozen=True, eq=False, gc=False):
    """Check whether an idle engine still works."""

    engine: EngineState


class End(msgspec.Struct, frozen=True, eq=False, gc=False):
    """An invocation has its outputs or its error."""

    invocation: InvocationState


Action: TypeAlias = Fetch | Discard | Look | Plan | Send | Stop | Start | Check | End
