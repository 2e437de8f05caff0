"""Executors carry out what the scheduler decides, one for each engine.

================  ============================================================================
file              what it has
================  ============================================================================
`contract`        `Executor`, what all share, and the `Events` that they answer with
`inline`          calls that run in the scheduler's own step
`threads`         an engine in a thread of its own
`coroutines`      an asynchronous engine on the node's loop
`process`         an engine in a process of its own: sending and reading
`arena_process`   one that maps the arena and is trusted
`confined`        an engine in a process without rights, which maps no arena
`sent_calls`      calls that a process has
`constants_exchange` constants that the processes of a device share
`loaded_functions` functions and constants that a process has
`lost_process`    what becomes of the calls of a process that is lost
`incoming`        outputs that a confined process sends
`worker`          a thread that does the jobs of one executor
`staging`         preparing calls for a process
`processes`       starting, replacing and ending such processes
`demands`         what calls need of a device
`failures`        exceptions to typed errors
================  ============================================================================
"""

from dandelion.executors.arena_process import ProcessExecutor
from dandelion.executors.confined import ConfinedExecutor
from dandelion.executors.constants_exchange import ConstantsExchange
from dandelion.executors.contract import Events, Executor, Functions, StartedEngine, Surroundings
from dandelion.executors.coroutines import LoopExecutor
from dandelion.executors.demands import Demands
from dandelion.executors.failures import strip_tracebacks, to_dandelion_error
from dandelion.executors.inline import InlineExecutor
from dandelion.executors.processes import Processes
from dandelion.executors.sent_calls import Watcher
from dandelion.executors.threads import ThreadExecutor

__all__ = [
    "ConfinedExecutor",
    "ConstantsExchange",
    "Demands",
    "Events",
    "Executor",
    "Functions",
    "InlineExecutor",
    "LoopExecutor",
    "ProcessExecutor",
    "Processes",
    "StartedEngine",
    "Surroundings",
    "ThreadExecutor",
    "Watcher",
    "strip_tracebacks",
    "to_dandelion_error",
]
