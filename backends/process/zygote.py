"""The zygote: a process that has loaded a sandbox's modules, and forks sandboxes on request.

It has one thread, no user code and no rights, except that it may read files while it imports.
Engines send it requests over one SOCK_SEQPACKET pair; any number of engines may share their end:

=============  ============================================================================
to it          ``+`` and a process id: kill that sandbox, used or dead, and fork another, once
               for each (0: only fork); ``!``: a call waits; ``?`` and a process id, with a
               socket: return how it ended
from it        `ZygoteReady` once, then `Forked` with descriptors for each ``+``; or
               `ForkFailed`, `ZygoteFailed`
=============  ============================================================================

A sandbox opens its own descriptors and sends `Forked` itself, over the zygote's connection, which
it then closes. Sandboxes that are not taken yet wait in the socket's queue. The zygote keeps only
the process id of a sandbox, so a sandbox's sockets close when it ends. The zygote detects one that
ended before it sent `Forked` by its byte in shared memory, which a sandbox sets afterwards, and
then unmaps. One that ended in between is reported although it has sent `Forked`, so the node
requests its replacement twice; the second request is ignored.

The zygote is killed when the node ends, see `dandelion.backends.process.lifetime`. Its sandboxes
are killed when it ends, by PR_SET_PDEATHSIG.
"""

from __future__ import annotations

import errno
import fcntl
import gc
import mmap
import os
import select
import signal
import socket
import struct
from typing import Any, NoReturn

import msgspec

from dandelion.confinement import libc, lockdown, seccomp
from dandelion.confinement.syscalls import native

from . import lifetime, modules, package_imports, policy, sandbox, wire
from .package_imports import Restricted
from .paths import HostPaths
from .replacement import SandboxReplacement

REQUEST = struct.Struct("<cI")
REPLACE, URGENT, QUERY = b"+", b"!", b"?"
_WARM_UP_COUNT = 20  # CPython no longer writes to specialised code, so its pages stay shared
_REAP_POLLS = 3
_REAP_POLL_MS = 30
_UNREAPED = 8
_OUT_OF_RESOURCES = (errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE, errno.ETOOMANYREFS)
_encoder = msgspec.msgpack.Encoder()


class _NodeClosed(Exception):
    """The node has closed the control socket."""


def main(
    control_fd: int, settings: wire.ZygoteSettings, restricted: Restricted | None = None
) -> None:
    """Run a zygote, to the end of the process; `restricted` if it loads packages of functions."""
    lifetime.bind_own_lifetime(settings.life_fd)
    control, life = _control(control_fd, settings.life_fd)
    try:
        ready = _prepare(settings, restricted, (control.fileno(), life))
    except _ImportFailed as error:
        control.send(_encoder.encode(wire.ZygoteFailed(str(error), True)))
        return
    except Exception as error:
        control.send(_encoder.encode(wire.ZygoteFailed(f"{type(error).__name__}: {error}", False)))
        return
    started = mmap.mmap(-1, mmap.PAGESIZE)
    zygote = Zygote(
        sandbox.ForkContext(
            os.getpid(),
            control,
            seccomp.Filter(native(), policy.POLICY),
            ready.mapped_bytes,
            started,
        ),
        settings.ahead,
    )
    try:
        control.send(_encoder.encode(ready))
        for _ in range(settings.ahead):
            zygote.fork()
        zygote.serve()
    except (_NodeClosed, BrokenPipeError, ConnectionResetError):
        return


class _ImportFailed(Exception):
    """The declared imports do not work in a sandbox."""


def _control(control_fd: int, life_fd: int) -> tuple[socket.socket, int]:
    """Move the connection to the descriptor that sandboxes later use for their channel.

    Returns:
        The connection, and where the other descriptor is now.
    """
    place = policy.CHANNEL_FD
    life = fcntl.fcntl(life_fd, fcntl.F_DUPFD_CLOEXEC, place + 1)  # it must stay open
    os.dup2(control_fd, place, inheritable=False)
    for file in {control_fd, life_fd} - {place}:
        os.close(file)
    return socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET, 0, fileno=place), life


def _prepare(
    settings: wire.ZygoteSettings, restricted: Restricted | None, own: tuple[int, ...]
) -> wire.ZygoteReady:
    facts = {"landlock": "none"}
    lockdown.allow_descriptors()
    lockdown.yield_to_others(True)
    os.nice(settings.niceness)
    if restricted is None:
        lockdown.restrict_files(readable=["/"], scoped=False)
    host = HostPaths()
    try:
        modules.load(settings.imports)
    except BaseException as error:
        shown = sandbox.shown(error, sandbox.text_of(error))
        raise _ImportFailed(host.cleaned(shown)) from error
    if left := _left_by_imports(restricted, own):
        raise _ImportFailed(f"importing {', '.join(settings.imports)} {left}")
    mapped_bytes = _mapped_bytes(restricted)
    host.hide()
    sandbox.prepare_interpreter()
    facts["namespaces"] = (
        lockdown.leave_namespaces() if restricted is None else restricted.namespaces
    )
    facts["user"] = lockdown.drop_identity()  # also of the right to read
    abi = lockdown.restrict_files()
    if abi:
        facts["landlock"] = f"ABI {abi}, no files at all"
    libc.prctl(libc.PR_SET_NO_NEW_PRIVS, 1)
    libc.prctl(libc.PR_SET_DUMPABLE, 0)
    lockdown.limit_resources()
    theirs, ours = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs, ours:
        for _ in range(_WARM_UP_COUNT):
            sandbox.warm_up(theirs, ours)
        sandbox.warm_up_streams(_WARM_UP_COUNT)
    gc.collect()
    gc.freeze()  # otherwise the collector writes to, and so copies, every shared page
    return wire.ZygoteReady(facts, mapped_bytes)


def _left_by_imports(restricted: Restricted | None, own: tuple[int, ...]) -> str:
    if restricted is not None:
        return package_imports.check(restricted, own)
    return "starts threads" if len(os.listdir("/proc/self/task")) > 1 else ""


def _mapped_bytes(restricted: Restricted | None) -> int:
    if restricted is not None:
        return package_imports.mapped_bytes(restricted)
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[0]) * os.sysconf("SC_PAGESIZE")


class Zygote:
    """Forks sandboxes and records how they ended.

    It does as little as possible between two forks: a fork shares its memory again, so every page
    that it writes to afterwards is copied once more.

    Args:
        context: what sandboxes get.
        ahead: how many sandboxes are kept ready.
    """

    def __init__(self, context: sandbox.ForkContext, ahead: int) -> None:
        self._context = context
        self._control = context.control
        self._started = context.started
        self._starting: dict[int, int] = {}  # process ids, and their places in `started`
        self._reap_polls = 0  # how many more times to reap without a request
        self._replacement = SandboxReplacement(ahead)
        self._unreaped: set[int] = set()
        self._replaced: set[int] = set()  # those of them that the node has finished with
        self._unreplaced: set[int] = set()  # their replacement was not requested yet

    def serve(self) -> NoReturn:
        """Handle requests, and reap, until the node closes the socket.

        The end of a sandbox does not wake the zygote. It usually follows a request, so the zygote
        reaps after every few requests, and a few times after the last one. It also reaps while a
        sandbox has not sent `Forked`, since a call may wait for that sandbox. One that ends during
        its call is reaped when its engine asks how it ended: until then /proc has its limits.

        Raises:
            _NodeClosed: the node has closed the socket.
        """
        poll = select.poll()
        poll.register(self._control, select.POLLIN)
        while True:
            pause_ms = self._replacement.wait_ms()
            reaping = pause_ms is None and (self._reap_polls or self._has_starting())
            if poll.poll(_REAP_POLL_MS if reaping else pause_ms):
                self._handle_request()
            elif (used := self._replacement.due()) is not None:
                self._replace(used)
            else:
                self._reap_polls = max(0, self._reap_polls - 1)
                self._reap()

    def _replace(self, used: int) -> None:
        """Kill a used sandbox, and fork another."""
        if used in self._unreaped:
            os.kill(used, signal.SIGKILL)
            self._replaced.add(used)
        self.fork()
        self._reap_polls = _REAP_POLLS
        if len(self._replaced) >= _UNREAPED:
            self._reap()

    def _has_starting(self) -> bool:
        self._starting = {pid: at for pid, at in self._starting.items() if not self._started[at]}
        return bool(self._starting)

    def _handle_request(self) -> None:
        message, files = wire.receive(self._control, 64, 1)
        if not message:
            raise _NodeClosed
        kind, pid = REQUEST.unpack(message)
        self._starting.pop(pid, None)  # the node knows it, so it needs no report
        if kind == REPLACE:
            if not pid or pid in self._unreplaced:
                self._unreplaced.discard(pid)
                self._replacement.request(pid)
            return
        if kind == URGENT:
            self._replacement.mark_urgent()
            return
        with socket.socket(fileno=files[0]) as answer:
            wire.send(answer, [_encoder.encode(self._end_of(pid))])

    def fork(self) -> None:
        """Fork a sandbox, which sends `Forked` to the node."""
        self._has_starting()
        place = self._context.place = (self._context.place + 1) % len(self._started)
        self._started[place] = 0
        self._context.urgent = self._replacement.urgent
        self._context.awaited, self._replacement.awaited = self._replacement.awaited, False
        try:
            pid = libc.fork()
        except OSError as error:
            if error.errno not in _OUT_OF_RESOURCES:
                raise
            wire.send(self._control, [_encoder.encode(wire.ZygoteFailed(str(error), False))])
            return
        if pid == 0:
            sandbox.run_child(self._context)
        self._starting[pid] = place
        self._unreaped.add(pid)
        self._unreplaced.add(pid)

    def _reap(self) -> None:
        """Reap those that have ended, of the replaced ones and of those that did not start."""
        for pid in tuple(self._replaced):
            self._wait(pid, os.WNOHANG)
        for pid, place in tuple(self._starting.items()):
            ended = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            if ended is not None and not self._started[place]:  # read after its end
                self._wait(pid, 0)

    def _wait(self, pid: int, flags: int) -> wire.SandboxExit | None:
        """Reap a sandbox; returns None with `os.WNOHANG` if it is alive."""
        ended, status, usage = os.wait4(pid, flags)
        if not ended:
            return None
        self._unreaped.discard(pid)
        self._replaced.discard(pid)
        place = self._starting.pop(pid, None)
        if place is not None and not self._started[place]:
            wire.send(self._control, [_encoder.encode(wire.ForkFailed(pid))])
        cpu_s = usage.ru_utime + usage.ru_stime
        return wire.SandboxExit(os.waitstatus_to_exitcode(status), cpu_s)

    def _end_of(self, pid: int) -> wire.SandboxExit:
        """Return how a sandbox ended. Called only after its pidfd is readable."""
        ended = self._wait(pid, 0) if pid in self._unreaped else None
        # One that is reaped already ended while it was starting: no function ran in it.
        return ended or wire.SandboxExit(-signal.SIGKILL, 0.0)


def run(control_fd: int, settings: dict[str, Any], restricted: Restricted | None) -> None:
    """Run a zygote with the settings that came over the control socket."""
    main(control_fd, msgspec.convert(settings, wire.ZygoteSettings), restricted)
    os._exit(0)
