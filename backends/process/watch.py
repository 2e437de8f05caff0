"""Watching a sandbox from the start of its call until it replies or must be killed.

Most calls reply soon and break no rule. So the engine first waits in a plain receive with the
timeout `SOON_NS`. Only then does it check clocks and denied system calls; until then a denied
system call waits.
"""

from __future__ import annotations

import enum
import math
import select
import time
from contextlib import suppress

from dandelion.confinement import seccomp
from dandelion.confinement.syscalls import Architecture

from .handle import SOON_NS, Sandbox

_GRACE_NS = 250_000_000
_DENIED_LIMIT = 100


class StopReason(enum.Enum):
    """Why the wait has ended."""

    REPLIED = "a message came"
    CLOSED = "the channel is closed; usually the process has ended"
    LATE = "the deadline has passed"
    SPENT = "the CPU time is used up"


class Watch:
    """Waits for one sandbox, and denies its disallowed system calls.

    After the first denied call the sandbox has a quarter of a second left: enough to raise, so that
    the traceback locates the call in the user's code.

    Args:
        sandbox: its call has just been sent.
        architecture: to name system calls.

    Attributes:
        denied: description of the first denied call, or None.
        size_bytes: length of the message, after `StopReason.REPLIED`.
    """

    def __init__(self, sandbox: Sandbox, architecture: Architecture) -> None:
        self.denied: str | None = None
        self.size_bytes = 0
        self._sandbox = sandbox
        self._architecture = architecture
        self._denials = 0
        self._deadline_ns = 0

    def wait(self, buffer: bytearray, deadline_ns: int, cpu_s: float) -> StopReason:
        """Receive a message into `buffer`, or stop for another reason.

        Args:
            buffer: one byte longer than the longest valid message.
            deadline_ns: on `time.monotonic_ns`.
            cpu_s: CPU time that may be used, from now.
        """
        sandbox = self._sandbox
        if min(deadline_ns - time.monotonic_ns(), int(cpu_s * 1e9)) > SOON_NS:
            with suppress(BlockingIOError):
                return self._received(buffer)
        channel = sandbox.channel.fileno()
        poll = select.poll()
        poll.register(channel, select.POLLIN)
        if sandbox.listener is not None:
            poll.register(sandbox.listener, select.POLLIN)
        self._deadline_ns = deadline_ns
        # One thread cannot use CPU time faster than time passes, so its clock need not be read
        # before then.
        now = time.monotonic_ns()
        look_ns = now + int(cpu_s * 1e9)
        cpu_before: float | None = None
        if look_ns < deadline_ns:
            cpu_before = sandbox.cpu_s()
        while True:
            left_ns = min(self._deadline_ns, look_ns) - now
            ready = poll.poll(max(0, math.ceil(left_ns / 1e6)))
            for descriptor, _ in ready:
                if descriptor != channel:
                    self._deny(poll)
                    continue
                return self._received(buffer)
            now = time.monotonic_ns()
            if now >= self._deadline_ns:
                return StopReason.LATE
            if now >= look_ns and cpu_before is not None:
                left_s = cpu_s - (sandbox.cpu_s() - cpu_before)
                if left_s <= 0:
                    return StopReason.SPENT
                look_ns = now + int(left_s * 1e9) + 1_000_000

    def _received(self, buffer: bytearray) -> StopReason:
        """Receive the message.

        Raises:
            BlockingIOError: there was none within `SOON_NS`.
        """
        try:
            self.size_bytes = self._sandbox.channel.recv_into(buffer)
        except ConnectionError:
            self.size_bytes = 0
        return StopReason.REPLIED if self.size_bytes else StopReason.CLOSED

    def _deny(self, poll: select.poll) -> None:
        listener = self._sandbox.listener
        assert listener is not None
        denied = seccomp.receive(listener)
        if denied is None:  # its process is gone, so the channel is closed too
            poll.unregister(listener)
            return
        if self.denied is None:
            self.denied = seccomp.describe(self._architecture, denied.number)
            self._deadline_ns = min(self._deadline_ns, time.monotonic_ns() + _GRACE_NS)
        self._denials += 1
        if self._denials > _DENIED_LIMIT:
            self._deadline_ns = 0
            return
        seccomp.refuse(listener, denied)
