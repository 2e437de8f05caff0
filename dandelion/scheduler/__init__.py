"""The scheduler of a node: pure, events in, actions out; no clock, no lock, no I/O, no thread.

It makes all decisions while invocations run: admission and quotas of tenants, the walk of each
invocation, which functions are in memory, the order of waiting calls, which engine runs which call,
which calls are retried after a fault, and when engines are restarted. Executors carry out its
decisions; they do all waiting, loading, planning, copying, sending and receiving.

Life of a call::

                 .-- Look --> found -------------------------------------.
    new call ----+                                                       |
                 '--> needs its function                                 v
                        | absent: Fetch, BLOCKED                      ENDED --> walk continues
                        v                                                ^
                      Plan, where engines differ: PLANNING               |
                        | it may be run with others: GATHERING           |
                        v                                                |
                      a lane (engines that suit it equally): QUEUED      |
                        |  order: policy over flows; parked over quota   |
                        v                                                |
                      Send: SENT -- done, failed ------------------------'
                        '-- engine died: QUEUED again, alone if the call may be the cause

A call that is run with others is JOINED: a member of a batch, which is SENT in its place.

===============  ==============================================================================
file             content
===============  ==============================================================================
`records`        tenant, flow, call, invocation; `engine`, an engine; `quota`, limits; `counts`
`actions`        requests to executors, and their answers
`policy`         the contract of policies, which are in `dandelion.policies`
`placement`      which engines suit a call
`lines`          queues
`cores`          which cores compute and I/O engines use
`batches`        calls that are run as one
`sending`        from the queues to the engines
`concurrency`    how many workers of a device are started and active
`residency`      functions in the node's memory and on devices
`retries`        which calls are run again when an engine died
`fleet`          when engines are started, and what follows when one is lost
`calls`          the life of a call
`scheduler`      admission, walks, and the events about invocations
===============  ==============================================================================
"""

from dandelion.scheduler.engine import EngineState
from dandelion.scheduler.policy import Policy
from dandelion.scheduler.quota import Quota
from dandelion.scheduler.records import CallState, Flow, InvocationState, Tenant
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
]
