"""The scheduler of a node: pure, events in, actions out; no clock, no lock, no I/O, no thread.

It owns everything that is decided while invocations run: admission and quotas of tenants, the walk
of each invocation, which functions are in memory, the order of calls that wait, which engine runs
which call, what is run again after a fault, and when engines are started again. Executors carry out
what it decides; they own all waiting, loading, planning, copying, sending and receiving.

Life of a call::

                 .-- Look --> found -------------------------------------.
    walk wants --+                                                       |
                 '--> needs its function                                 v
                        | absent: Fetch, BLOCKED                      ENDED --> walk goes on
                        v                                                ^
                      Plan, where engines differ: PLANNING               |
                        v                                                |
                      a lane (engines that suit it equally): QUEUED      |
                        |  order: policy over flows; parked over quota   |
                        v                                                |
                      Send: SENT -- done, failed ------------------------'
                        '-- engine died: QUEUED once more, alone if it may have done the harm

===============  ==============================================================================
file             what one learns there
===============  ==============================================================================
`records`        tenant, flow, call, invocation, engine: all state
`actions`        what executors are told, and what they answer
`policy`         the order of flows: fifo, fair
`placement`      which engines suit a call
`lines`          queues
`residency`      what is in the node's memory and on devices
`retries`        what is run again
`scheduler`      the events
`invariants`     what holds after every event
===============  ==============================================================================
"""

from dandelion.scheduler.policy import Policy, policy_of
from dandelion.scheduler.records import (
    CallState,
    EngineState,
    Flow,
    InvocationState,
    Quota,
    Tenant,
)
from dandelion.scheduler.scheduler import Scheduler

__all__ = [
    "CallState",
    "EngineState",
    "Flow",
    "InvocationState",
    "Policy",
    "Quota",
    "Scheduler",
    "Tenant",
    "policy_of",
]
