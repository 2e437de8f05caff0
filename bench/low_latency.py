"""Acting within microseconds of the time at which something is due, in load generators and servers.

A sleeping thread wakes up late: by its timer's slack, by the time that the core needs to leave its
own sleep, and by whatever else runs on the core. So these processes ask for little slack, get a
high priority where permitted, and poll during the last moments before something is due: longer
where there are many cores, briefly where there are few, and not at all on a single core.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import select

_PR_SET_TIMERSLACK = 29
_SLACK_NS = 1000
_PRIORITY = -10
_MANY_CORES = 4
_SPIN_NS = 30_000
_LONG_SPIN_NS = 200_000
_LONGEST_NS = 50_000_000
_NS = 1_000_000_000


def use_low_latency() -> None:
    """Set timer slack and priority of this process, and switch garbage collection off.

    With few cores it runs in real time, since others would delay it by milliseconds; it sleeps
    most of the time there. With many cores it may poll all the time, and the kernel interrupts
    real-time processes that do so.
    """
    ctypes.CDLL(None).prctl(_PR_SET_TIMERSLACK, _SLACK_NS)
    gc.freeze()
    gc.disable()
    with contextlib.suppress(OSError):  # permitted to the superuser only
        if _cores() < _MANY_CORES:
            os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
        else:
            os.setpriority(os.PRIO_PROCESS, 0, _PRIORITY)


def spin_ns() -> int:
    """Give the time for which this process may poll before something is due."""
    if _cores() == 1:
        return 0
    return _SPIN_NS if _cores() < _MANY_CORES else _LONG_SPIN_NS


def sleep_on(poll: select.epoll, left_ns: int) -> None:
    """Sleep until an event comes, at most `left_ns`; epoll's own timeout is too coarse."""
    select.select([poll], [], [], min(left_ns, _LONGEST_NS) / _NS)


def _cores() -> int:
    return len(os.sched_getaffinity(0))
