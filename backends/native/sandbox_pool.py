"""The engine's side of a zygote: it requests sandboxes ahead of calls.

A request names a sandbox that has been killed, to be reaped, and brings one end of a socket pair
for a new one, which the zygote forks; either may be missing. The control socket carries, in order::

    from it    `ZygoteFacts` as JSON; an answer: whether it could clear its address space
    to it      requests: 8 bytes, a process id or 0, and a descriptor or none
    from it    an answer to each: process id of the new sandbox, 0, or minus an error number;
               wait status of the old one, -1 if there was none

A sandbox waits for one message on its channel and never sends one: the channel closes when the
process has ended and no longer writes to its memory. Its process id is not reused before it is
reaped, which happens only at this side's request.
"""

from __future__ import annotations

import array
import os
import select
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections import deque
from contextlib import suppress
from dataclasses import dataclass, field

import msgspec

from dandelion.errors import EngineDied, SandboxLost

from ..process.connected import start_connected
from .zygote import NativeZygoteSettings, ZygoteFacts

_BOOT = "import sys; from dandelion.backends.native.zygote import run; run(sys.argv[1])"
_REQUEST = struct.Struct("<q")
_ANSWER = struct.Struct("<qi4x")
_MESSAGE_BYTES = 4096
_ATTEMPTS = 3
_CPU_CLOCK = 2  # CPUCLOCK_SCHED of a process: linux/posix-timers.h
_START_LIMIT_S = 30.0


class SandboxNotReady(OSError):
    """No sandbox was ready in time."""


@dataclass(slots=True)
class NativeSandbox:
    """A process that waits for its one call, or runs it. Owns its descriptors.

    Attributes:
        pid: process id; not reused before it is reaped.
        channel: connection to it.
        pidfd: identifies the process even when its id is reused.
    """

    pid: int
    channel: socket.socket
    pidfd: int
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def cpu_s(self) -> float:
        """CPU time that it has used, in seconds; zero if it is gone."""
        try:
            return time.clock_gettime(~self.pid << 3 | _CPU_CLOCK)
        except OSError:
            return 0.0

    def ended(self) -> bool:
        """Tell whether it has ended: it sends nothing, so a readable channel is a closed one."""
        poll = select.poll()
        poll.register(self.channel, select.POLLIN)
        return bool(poll.poll(0))

    def kill(self) -> None:
        """Kill it. Safe from any thread."""
        with self._lock:
            if self.pidfd >= 0:
                with suppress(ProcessLookupError):
                    signal.pidfd_send_signal(self.pidfd, signal.SIGKILL)

    def close(self) -> None:
        """Kill it and close its descriptors. May be called twice."""
        self.kill()
        with self._lock:
            if self.pidfd >= 0:
                os.close(self.pidfd)
                self.pidfd = -1
        self.channel.close()


class NativeSandboxPool:
    """Sandboxes of one engine. Used by one thread.

    Args:
        name: for errors.
        core: the core that they run on; -1 for any.
        ahead: how many are kept ready.
    """

    def __init__(self, name: str, core: int = -1, ahead: int = 3) -> None:
        self.name = name
        self._core = core
        self._ahead = ahead
        self._zygote: _Zygote | None = None

    def facts(self) -> dict[str, str]:
        """Report what is enforced.

        Raises:
            EngineDied: no zygote starts.
        """
        try:
            zygote = self._running(time.monotonic_ns() + int(_START_LIMIT_S * 1e9))
        except SandboxNotReady as error:
            raise EngineDied(self.name, str(error)) from None
        return dict(zygote.facts)

    def pid(self) -> int:
        """Process id of the zygote, for tests; it must be running."""
        assert self._zygote is not None
        return self._zygote.process.pid

    def take(self, deadline_ns: int) -> NativeSandbox:
        """Take a ready sandbox. Return it with `replace` once it is used.

        Raises:
            SandboxNotReady: none was ready before `deadline_ns`.
            SandboxLost: zygotes or sandboxes die repeatedly.
            EngineDied: a zygote cannot be confined on this machine.
        """
        failure = "its sandboxes die before they have a call"
        for _ in range(_ATTEMPTS * (self._ahead + 1)):
            zygote = self._running(deadline_ns)
            try:
                sandbox = zygote.take(deadline_ns)
            except SandboxNotReady:
                raise
            except OSError as error:
                failure = f"its zygote is gone: {error}"
                self.close()
                continue
            if sandbox is not None:
                return sandbox
        raise SandboxLost(self.name, failure)

    def replace(self, sandbox: NativeSandbox) -> None:
        """Kill a sandbox, and request another."""
        sandbox.close()
        if self._zygote is not None:
            self._zygote.reap(sandbox.pid)
            self.fill()

    def fill(self) -> None:
        """Request sandboxes until `ahead` are ready."""
        if self._zygote is not None:
            with suppress(OSError):  # the next `take` detects it
                self._zygote.fill(self._ahead)

    def killed(self, sandbox: NativeSandbox, deadline_ns: int) -> bool:
        """Tell whether a sandbox that has ended was killed by a signal, or its zygote is gone."""
        if self._zygote is None:
            return True
        try:
            status = self._zygote.status(sandbox.pid, deadline_ns)
        except OSError:
            return True
        return status < 0 or os.WIFSIGNALED(status)

    def close(self) -> None:
        """Kill the zygote and with it all its sandboxes. May be called twice."""
        zygote, self._zygote = self._zygote, None
        if zygote is not None:
            zygote.close()

    def _running(self, deadline_ns: int) -> _Zygote:
        for attempt in range(_ATTEMPTS):
            try:
                if self._zygote is None:
                    self._zygote = _Zygote(self._core)
                self._zygote.wait_ready(deadline_ns)
                return self._zygote
            except SandboxNotReady:
                raise
            except OSError as error:
                self.close()
                if attempt == _ATTEMPTS - 1:
                    raise SandboxLost(self.name, f"no zygote: {error}") from None
            except _NotConfined as error:
                self.close()
                raise EngineDied(self.name, str(error)) from None
        raise AssertionError("the loop returns or raises")


class _NotConfined(Exception):
    """A zygote cannot lock itself down."""


class _Zygote:
    """One zygote process, the connection to it, and the requested sandboxes."""

    def __init__(self, core: int) -> None:
        self.facts: dict[str, str] = {}
        self._ready = False
        self._requested: deque[socket.socket | None] = deque()
        self._waiting: deque[tuple[socket.socket, int]] = deque()
        self._dead: deque[int] = deque()
        path = os.pathsep.join(os.path.abspath(entry) for entry in sys.path)
        command = [sys.executable, "-s", "-P", "-B", "-X", "utf8", "-c", _BOOT, _json(core)]

        def start(control: socket.socket, theirs: int, life: int) -> subprocess.Popen[bytes]:
            return subprocess.Popen(
                command,
                stdin=theirs,
                stdout=life,
                stderr=subprocess.DEVNULL,
                env={"PYTHONPATH": path},
                cwd="/",
                start_new_session=True,
            )

        self.process, self._control, self._life = start_connected(start)

    def wait_ready(self, deadline_ns: int) -> None:
        """Wait until it runs the launcher.

        Raises:
            OSError: it is gone, or not ready in time (`SandboxNotReady`).
        """
        while not self._ready:
            message = self._receive(deadline_ns)
            if len(message) == _ANSWER.size:
                sealed, _ = _ANSWER.unpack(message)
                self.facts["vdso"] = "kept, the kernel seals it" if sealed else "unmapped"
                self._ready = True
                continue
            report = msgspec.json.decode(message, type=ZygoteFacts)
            if report.failure:
                raise _NotConfined(report.failure)
            self.facts.update(report.facts)

    def fill(self, ahead: int) -> None:
        """Request sandboxes until `ahead` are ready or requested."""
        while len(self._waiting) + len(self._requested) < ahead:
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            with theirs:
                rights = array.array("i", [theirs.fileno()])
                try:
                    self._ask([(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)])
                except OSError:
                    ours.close()
                    raise
            self._requested.append(ours)

    def _ask(self, rights: list[tuple[int, int, array.array[int]]]) -> None:
        dead = self._dead.popleft() if self._dead else 0
        self._control.sendmsg([_REQUEST.pack(dead)], rights)

    def reap(self, pid: int) -> None:
        """Reap a killed sandbox with the next request."""
        self._dead.append(pid)

    def status(self, pid: int, deadline_ns: int) -> int:
        """Reap a sandbox that has ended; return its wait status, -1 if unknown.

        Raises:
            OSError: the zygote is gone, or does not answer in time.
        """
        self._control.sendmsg([_REQUEST.pack(pid)])
        self._requested.append(None)
        while True:
            channel, new_pid, status = self._answer(deadline_ns)
            if channel is None:
                return status
            self._waiting.append((channel, new_pid))

    def take(self, deadline_ns: int) -> NativeSandbox | None:
        """Take the sandbox that was requested first; None if it is dead.

        Raises:
            SandboxNotReady: it is not ready in time.
            OSError: the zygote is gone.
        """
        self.fill(1)
        if self._waiting:
            channel, pid = self._waiting.popleft()
        else:
            requested, pid, _ = self._answer(deadline_ns)
            assert requested is not None, "`status` receives its answer itself"
            channel = requested
        if pid < 0:
            channel.close()
            raise OSError(-pid, os.strerror(-pid))
        sandbox = NativeSandbox(pid, channel, os.pidfd_open(pid))
        if sandbox.ended():
            sandbox.close()
            self.reap(pid)
            return None
        return sandbox

    def _answer(self, deadline_ns: int) -> tuple[socket.socket | None, int, int]:
        pid, status = _ANSWER.unpack(self._receive(deadline_ns))
        return self._requested.popleft(), pid, status

    def _receive(self, deadline_ns: int) -> bytes:
        try:
            message = self._control.recv(_MESSAGE_BYTES, socket.MSG_DONTWAIT)
        except BlockingIOError:
            left_ns = deadline_ns - time.monotonic_ns()
            poll = select.poll()
            poll.register(self._control, select.POLLIN)
            if left_ns <= 0 or not poll.poll(left_ns / 1e6):
                raise SandboxNotReady("no sandbox was ready in time") from None
            message = self._control.recv(_MESSAGE_BYTES)
        if not message:
            raise ConnectionResetError("it closed its control socket")
        return message

    def close(self) -> None:
        """Kill and reap it."""
        os.close(self._life)
        self._control.close()
        for channel in (*self._requested, *(channel for channel, _ in self._waiting)):
            if channel is not None:
                channel.close()
        self._end()

    def _end(self) -> None:
        self.process.kill()
        self.process.wait()


def _json(core: int) -> str:
    return msgspec.json.encode(NativeZygoteSettings(core)).decode()
