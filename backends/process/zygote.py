"""The zygote: a process that has loaded what a sandbox needs, and forks one whenever it is asked.

One thread, no user code, no rights: it may read files while it imports, and nothing after that.
Engines talk to it over one SOCK_SEQPACKET pair, and any number of them may share their end:

=============  ============================================================================
to it          ``+`` and a process id: end that one, it was used, and fork another (0: only
               fork); ``!``: a call waits; ``?`` and a process id, with a socket: how did it
               end?
from it        `Ready` once, then `Born` with descriptors for each ``+``; or `Stillborn`, `Failed`
=============  ============================================================================

A sandbox opens what it needs and says itself that it is born, over the zygote's connection, which
it then closes for ever. Sandboxes that nobody has taken yet simply lie in the socket's queue. The
zygote keeps nothing of a sandbox but its process id, so their sockets close when they end. One that
ends before it could tell is found by its mark, in memory that a sandbox gives up with the
connection.

It ends with the node, see `dandelion.backends.process.life`. Its sandboxes are tied to it by
PR_SET_PDEATHSIG.
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

from . import life, modules, policy, sandbox, wire
from .paths import HostPaths
from .turnover import Turnover

REQUEST = struct.Struct("<cI")
REPLACE, HURRY, QUERY = b"+", b"!", b"?"
_REMEMBERED = 256
_WARM_UPS = 20  # specialised code is not written to any more, so its pages stay shared
_LOOKS = 3
_LOOK_MS = 30
_UNREAPED = 8
_SCARCE = (errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE, errno.ETOOMANYREFS)
_encoder = msgspec.msgpack.Encoder()


class _Gone(Exception):
    """The node has closed the control socket."""


def main(control_fd: int, settings: wire.Settings) -> None:
    """Be a zygote, to the end of the process."""
    life.tie_self(settings.life_fd)
    control = _control(control_fd, settings.life_fd)
    try:
        ready = _prepare(settings)
    except _Unfit as error:
        control.send(_encoder.encode(wire.Failed(str(error), True)))
        return
    except Exception as error:
        control.send(_encoder.encode(wire.Failed(f"{type(error).__name__}: {error}", False)))
        return
    births = mmap.mmap(-1, mmap.PAGESIZE)
    zygote = Zygote(
        sandbox.Birth(
            os.getpid(),
            control,
            seccomp.Filter(native(), policy.POLICY),
            ready.mapped_bytes,
            births,
        ),
        settings.ahead,
    )
    try:
        control.send(_encoder.encode(ready))
        for _ in range(settings.ahead):
            zygote.fork()
        zygote.serve()
    except (_Gone, BrokenPipeError, ConnectionResetError):
        return


class _Unfit(Exception):
    """The declared imports cannot be had in a sandbox."""


def _control(control_fd: int, life_fd: int) -> socket.socket:
    """Move the connection to where sandboxes have their channel, so that they can use it first."""
    place = policy.CHANNEL_FD
    fcntl.fcntl(life_fd, fcntl.F_DUPFD_CLOEXEC, place + 1)  # it must stay open
    os.dup2(control_fd, place, inheritable=False)
    for file in {control_fd, life_fd} - {place}:
        os.close(file)
    return socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET, 0, fileno=place)


def _prepare(settings: wire.Settings) -> wire.Ready:
    facts = {"landlock": "none"}
    lockdown.allow_descriptors()
    lockdown.yield_to_others(True)
    os.nice(settings.niceness)
    abi = lockdown.restrict_files(readable=["/"], scoped=False)
    host = HostPaths()
    try:
        modules.load(settings.imports)
    except BaseException as error:
        raise _Unfit(host.cleaned(f"{type(error).__name__}: {error}")) from error
    if len(os.listdir("/proc/self/task")) > 1:
        raise _Unfit(f"importing {', '.join(settings.imports)} starts threads")
    with open("/proc/self/statm") as statm:
        mapped_bytes = int(statm.read().split()[0]) * os.sysconf("SC_PAGESIZE")
    host.hide()
    sandbox.settle()
    facts["namespaces"] = lockdown.leave_namespaces()
    facts["user"] = lockdown.drop_identity()
    if abi:
        lockdown.restrict_files()
        facts["landlock"] = f"ABI {abi}, no files at all"
    libc.prctl(libc.PR_SET_NO_NEW_PRIVS, 1)
    libc.prctl(libc.PR_SET_DUMPABLE, 0)
    lockdown.limit_resources()
    theirs, ours = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs, ours:
        for _ in range(_WARM_UPS):
            sandbox.rehearse(theirs, ours)
    gc.collect()
    gc.freeze()  # the collector would otherwise write to, and so copy, every shared page
    return wire.Ready(facts, mapped_bytes)


class Zygote:
    """Forks sandboxes and remembers how they ended.

    What it does between two forks is as little as possible: a fork shares its memory again, so
    that every page which it writes to is copied once more.

    Args:
        birth: what sandboxes get.
        ahead: how many sandboxes wait where no call comes.
    """

    def __init__(self, birth: sandbox.Birth, ahead: int) -> None:
        self._birth = birth
        self._control = birth.control
        self._births = birth.births
        self._unborn: dict[int, int] = {}  # process ids, and their places in `births`
        self._ended: dict[int, wire.Ended] = {}
        self._looks = 0  # how often it will look without being asked to
        self._unreaped = 0
        self._turnover = Turnover(ahead)
        self._living: set[int] = set()

    def serve(self) -> NoReturn:
        """Do what engines ask, and reap, until the node goes.

        The end of a sandbox wakes nobody. It follows a request, as a rule, so the zygote looks for
        some at once after a few requests, and a few times after the last; and, since a call may
        wait for it, as long as one has not said that it is born.

        Raises:
            _Gone: it has.
        """
        poll = select.poll()
        poll.register(self._control, select.POLLIN)
        while True:
            pause_ms = self._turnover.wait_ms()
            looks = pause_ms is None and (self._looks or self._expects())
            if poll.poll(_LOOK_MS if looks else pause_ms):
                self._obey()
            elif (used := self._turnover.due()) is not None:
                self._replace(used)
            else:
                self._looks = max(0, self._looks - 1)
                self._reap()

    def _replace(self, used: int) -> None:
        """End a sandbox that was used, and make another."""
        if used in self._living:
            os.kill(used, signal.SIGKILL)
        self.fork()
        self._looks = _LOOKS
        self._unreaped += 1
        if self._unreaped >= _UNREAPED:
            self._reap()

    def _expects(self) -> bool:
        self._unborn = {pid: at for pid, at in self._unborn.items() if not self._births[at]}
        return bool(self._unborn)

    def _obey(self) -> None:
        message, files = wire.receive(self._control, 64, 1)
        if not message:
            raise _Gone
        what, pid = REQUEST.unpack(message)
        if what == REPLACE:
            self._turnover.ask(pid)
            return
        if what == HURRY:
            self._turnover.hurry()
            return
        with socket.socket(fileno=files[0]) as answer:
            wire.send(answer, [_encoder.encode(self._end_of(pid))])

    def fork(self) -> None:
        """Make a sandbox, which tells the node of itself."""
        self._expects()
        place = self._birth.place = (self._birth.place + 1) % len(self._births)
        self._births[place] = 0
        self._birth.stays = not self._turnover.hurries
        try:
            pid = libc.fork()
        except OSError as error:
            if error.errno not in _SCARCE:
                raise
            wire.send(self._control, [_encoder.encode(wire.Failed(str(error), False))])
            return
        if pid == 0:
            sandbox.live(self._birth)
        self._ended.pop(pid, None)  # of an earlier process with the same number
        self._unborn[pid] = place
        self._living.add(pid)

    def _reap(self) -> None:
        self._unreaped = 0
        while True:
            try:
                pid, status, usage = os.wait4(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            self._remember(pid, status, usage.ru_utime + usage.ru_stime)

    def _remember(self, pid: int, status: int, cpu_s: float) -> wire.Ended:
        self._living.discard(pid)
        place = self._unborn.pop(pid, None)
        if place is not None and not self._births[place]:
            wire.send(self._control, [_encoder.encode(wire.Stillborn(pid))])
        self._ended.pop(pid, None)
        while len(self._ended) >= _REMEMBERED:
            del self._ended[next(iter(self._ended))]
        ended = self._ended[pid] = wire.Ended(os.waitstatus_to_exitcode(status), cpu_s)
        return ended

    def _end_of(self, pid: int) -> wire.Ended:
        """Tell how a sandbox ended. Asked only when its pidfd says that it has."""
        if pid in self._ended:
            return self._ended[pid]
        try:
            _, status, usage = os.wait4(pid, 0)
        except ChildProcessError:
            return wire.Ended(-signal.SIGKILL, 0.0)
        return self._remember(pid, status, usage.ru_utime + usage.ru_stime)


def run(control_fd: int, settings: dict[str, Any]) -> None:
    """Start with the settings that came over the control socket."""
    main(control_fd, msgspec.convert(settings, wire.Settings))
    os._exit(0)
