"""Looking for the answers of engine processes, with as few threads waking up as can be.

A caller that waits for an invocation in its own thread looks for the answers to the calls that it
sent itself: first without sleeping, for a while, since waking up costs more than a small call; then
asleep, until an answer comes or the invocation ends otherwise. What it leaves behind, and calls
that were sent by the event loop, are left to the loop.

A host's socket is *armed* for exactly one answer at a time, and only where nobody looks for it, so
the loop does not wake up for nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
import threading
import time
from collections.abc import Callable
from typing import Protocol

from dandelion.engine_process.messages import LONG_S
from dandelion.node.invocation import Invocation

_ARMED = select.EPOLLIN | select.EPOLLONESHOT


class Answering(Protocol):
    """Who expects an answer: a `ProcessHost`."""

    def fileno(self) -> int:
        """Give what becomes readable when the answer comes; -1 if none will come this way."""

    def receive(self) -> bool:
        """Take the answer if it is here. True if there is nothing to look for any more."""

    def check(self, now_ns: int) -> None:
        """Give up what should have been answered long ago."""


class Replies:
    """Who looks for answers.

    Args:
        spin_us: how long a caller looks for an answer before it sleeps, in microseconds.
        meanwhile: something short that is to be done now and then; called when a caller has sent
            its calls and has nothing to do until an answer comes.
    """

    def __init__(self, spin_us: int, meanwhile: Callable[[], None]) -> None:
        self._spin_ns = 1000 * spin_us
        self._meanwhile = meanwhile
        self._epoll = select.epoll()
        self._watched: list[Answering] = []
        self._thread = _Thread()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._loop_thread = 0

    # the event loop

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Have a running loop look for what nobody else looks for."""
        self._loop = loop
        loop.call_soon_threadsafe(self._begin_on_loop, loop)

    def _begin_on_loop(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop_thread = threading.get_ident()
        loop.add_reader(self._epoll.fileno(), self._on_ready)

    def stop(self) -> None:
        """Take the loop off; on the loop."""
        if self._loop is not None:
            self._loop.remove_reader(self._epoll.fileno())
            self._loop = None
            self._loop_thread = 0

    def close(self) -> None:
        """Close what is open; after `stop`."""
        self._epoll.close()

    def _on_ready(self) -> None:
        for fd, _ in self._epoll.poll(0):
            for host in tuple(self._watched):  # whose it is now: descriptors are used again
                if host.fileno() == fd and not host.receive():
                    self._arm(host)

    def _arm(self, host: Answering) -> None:
        fd = host.fileno()
        # A process that has just ended has no socket; its host's own thread sees to its call.
        with contextlib.suppress(OSError, ValueError):
            try:
                self._epoll.modify(fd, _ARMED)
            except FileNotFoundError:
                self._epoll.register(fd, _ARMED)

    # hosts

    def watch(self, host: Answering) -> None:
        """Look after a host: its answers, and its deadlines, see `check`."""
        self._watched.append(host)

    def unwatch(self, host: Answering) -> None:
        """It is closed."""
        self._watched.remove(host)

    def check(self) -> None:
        """Have every host give up calls that should have been answered; called now and then."""
        now_ns = time.monotonic_ns()
        for host in tuple(self._watched):
            host.check(now_ns)

    def expect(self, host: Answering) -> None:
        """A call was sent by this thread. It looks for the answer itself if it has begun to."""
        mine = self._thread.hosts
        if mine is None:
            self._arm(host)
        else:
            mine.append(host)

    # callers

    def begin(self) -> list[Answering]:
        """From now on this thread looks for the answers to the calls that it sends."""
        hosts: list[Answering] = []
        self._thread.hosts = hosts
        return hosts

    def end(self, hosts: list[Answering]) -> None:
        """This thread has better to do; what it expected is left to the loop."""
        self._thread.hosts = None
        for host in hosts:
            self._arm(host)

    def spin(self, hosts: list[Answering], invocation: Invocation) -> None:
        """Look for answers without sleeping, until the invocation ended or it takes too long."""
        if hosts:
            self._meanwhile()
        if not self._spin_ns:
            return
        clock = time.monotonic_ns
        last_ns = invocation.deadline_ns  # others' answers may keep coming
        end_ns = min(last_ns, clock() + self._spin_ns)
        while hosts and not invocation.done and clock() < end_ns:
            for host in tuple(hosts):
                if host.receive():
                    hosts.remove(host)
                    end_ns = min(last_ns, clock() + self._spin_ns)

    def sleeper(self, hosts: list[Answering]) -> Sleeper:
        """Make what a caller's thread sleeps with.

        The loop's own thread may call too; nobody else looks then for what is left to the loop.
        """
        if threading.get_ident() == self._loop_thread:
            return _AnswerSleeper(hosts, self._thread.event(), self._epoll, self._on_ready)
        return _AnswerSleeper(hosts, self._thread.event()) if hosts else _LockSleeper()


class Sleeper(Protocol):
    """Sleeps until it is woken."""

    def wake(self) -> None:
        """End the sleep; from any thread, once."""

    def sleep(self, limit_s: float | None = None) -> bool:
        """Sleep; False if it was not woken within the limit."""


class _LockSleeper:
    """Sleeps, and does nothing else."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lock.acquire()
        self.wake = self._lock.release

    def sleep(self, limit_s: float | None = None) -> bool:
        return self._lock.acquire(timeout=-1 if limit_s is None else limit_s)


class _AnswerSleeper:
    """Sleeps, and takes the answers that come meanwhile.

    Who wakes it may be late: then the thread is past its sleep, in the next one, or gone. So the
    event is kept open for as long as it may be written to, and a count in it alone means nothing.
    """

    def __init__(
        self,
        hosts: list[Answering],
        event: _Event,
        others: select.epoll | None = None,
        look_for_others: Callable[[], None] = lambda: None,
    ) -> None:
        self._hosts = hosts
        self._event = event
        self._others = others
        self._look_for_others = look_for_others
        self._woken = False
        self._thread = threading.get_ident()

    def wake(self) -> None:
        self._woken = True
        if threading.get_ident() != self._thread:
            os.eventfd_write(self._event.fd, 1)

    def sleep(self, limit_s: float | None = None) -> bool:
        end = None if limit_s is None else time.monotonic() + limit_s
        while not self._woken:
            left_s = None if end is None else end - time.monotonic()
            if left_s is not None and left_s <= 0:
                return False
            self._look(left_s)
        return True

    def _look(self, limit_s: float | None) -> None:
        poll = select.poll()
        poll.register(self._event.fd, select.POLLIN)
        if self._others is not None:
            poll.register(self._others, select.POLLIN)
        for host in self._hosts:
            fd = host.fileno()
            if fd >= 0:
                poll.register(fd, select.POLLIN)
        ready = poll.poll(None if limit_s is None else min(limit_s, LONG_S) * 1e3)
        if any(fd == self._event.fd for fd, _ in ready):
            with contextlib.suppress(BlockingIOError):
                os.eventfd_read(self._event.fd)
        self._look_for_others()
        for host in tuple(self._hosts):
            if host.receive():
                self._hosts.remove(host)


class _Thread(threading.local):
    """What belongs to a thread that calls."""

    hosts: list[Answering] | None = None
    _event: _Event | None = None

    def event(self) -> _Event:
        """Give the event of this thread."""
        if self._event is None:
            self._event = _Event()
        return self._event


class _Event:
    """An event descriptor; it ends with its thread and with all who may still write to it."""

    def __init__(self) -> None:
        self.fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)

    def __del__(self) -> None:
        os.close(self.fd)
