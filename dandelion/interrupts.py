"""Ctrl-C in a terminal, which reaches a program and all processes that it has started there.

A process that its parent ends ignores Ctrl-C. It can do so only when its interpreter is up, which
takes tenths of a second; an interrupt before that would print a traceback. So it is started with
the signal blocked, and takes the signal again when it ignores it. A command, which Ctrl-C is for,
ends by the signal itself while it loads its modules.

Source: ``signal(7)``: the mask of a thread is kept over ``fork`` and ``execve``.
"""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator


@contextlib.contextmanager
def blocked_interrupts() -> Iterator[None]:
    """Start processes, in this thread, that get no Ctrl-C before they call `ignore_interrupts`."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextlib.contextmanager
def ended_by_interrupts() -> Iterator[None]:
    """Import modules: Ctrl-C ends the process at once, as it does most programs.

    There is nothing to release yet, and modules in C make other errors of KeyboardInterrupt. It has
    no effect where Ctrl-C is handled or ignored, and in other threads than the main one.
    """
    handler = signal.getsignal(signal.SIGINT)
    is_main = threading.current_thread() is threading.main_thread()
    if handler is not signal.default_int_handler or not is_main:
        yield
        return
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)


def ignore_interrupts() -> None:
    """Ignore Ctrl-C in this process; in its main thread."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])
