"""Being on time: what a process of an instrument does to act within microseconds of when it should.

A thread that sleeps wakes up late, by the slack of its timer, by what the core needs to leave its
own sleep, and by whoever has the core. So an instrument asks for little slack, goes before other
processes if it may, and polls for the last moments before something is due: for long where cores
are plenty, hardly where what is measured needs them, and not at all on a single core.
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


def become_punctual() -> None:
    """Prepare this process: timers, priority, no pauses for garbage that there is none of.

    Where cores are few it runs in real time, as it would else be kept waiting for milliseconds by
    those that it wakes; it sleeps most of the time there. Where cores are plenty it may poll all
    the time, which the kernel interrupts for a real-time process.
    """
    ctypes.CDLL(None).prctl(_PR_SET_TIMERSLACK, _SLACK_NS)
    gc.freeze()
    gc.disable()
    with contextlib.suppress(OSError):  # only the superuser may
        if _cores() < _MANY_CORES:
            os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
        else:
            os.setpriority(os.PRIO_PROCESS, 0, _PRIORITY)


def spin_ns() -> int:
    """Tell for how long it may poll before something is due."""
    if _cores() == 1:
        return 0
    return _SPIN_NS if _cores() < _MANY_CORES else _LONG_SPIN_NS


def sleep_on(poll: select.epoll, left_ns: int) -> None:
    """Sleep until something can be polled, or for so long; epoll's own timeout is too coarse."""
    select.select([poll], [], [], min(left_ns, _LONGEST_NS) / _NS)


def _cores() -> int:
    return len(os.sched_getaffinity(0))
