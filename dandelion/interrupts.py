"""Ctrl-C in a terminal, which reaches a program and all processes that it has started there.

A process that its parent ends ignores Ctrl-C. It can do so only when its interpreter is up, which
takes tenths of a second; an interrupt before that would print a traceback. So it is started with
the signal blocked, and takes the signal again when it ignores it.

Source: ``signal(7)``: the mask of a thread is kept over ``fork`` and ``execve``.
"""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator


@contextlib.contextmanager
def blocked_interrupts() -> Iterator[None]:
    """Start processes, in this thread, that get no Ctrl-C before they call `ignore_interrupts`."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def ignore_interrupts() -> None:
    """Ignore Ctrl-C in this process; in its main thread."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])
