"""The zygote: a process that has loaded what a sandbox needs, and forks one whenever it is asked.

One thread, no user code, no rights: it may read files while it imports, and nothing after that.
Engines talk to it over one SOCK_SEQPACKET pair, and any number of them may share their end:

=============  ============================================================================
to it          ``+`` fork one more; ``?`` and a process id, with a socket: how did it end?
from it        `Ready` once, then `Born` with descriptors for each ``+``; or `Failed`
=============  ============================================================================

Sandboxes that nobody has taken yet simply lie in the socket's queue. The zygote keeps nothing of a
sandbox but its process id, so their sockets close when they end.

It ends with the node: a pipe whose other end the node holds sends SIGKILL when that closes (even
while an import hangs), and the control socket ends the loop. (PR_SET_PDEATHSIG would tie it to the
thread that started it.) Its sandboxes are tied to it by PR_SET_PDEATHSIG.
"""

from __future__ import annotations

import errno
import fcntl
import gc
import os
import select
import signal
import socket
import struct
from typing import NoReturn

import msgspec

from . import libc, lockdown, modules, sandbox, seccomp, wire
from .syscalls import native

FORK = b"+"
QUERY = struct.Struct("<cI")
_F_SETSIG = 10
_REMEMBERED = 256
_WARM_UPS = 20  # specialised code is not written to any more, so its pages stay shared
_SCARCE = (errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE, errno.ETOOMANYREFS)
_encoder = msgspec.msgpack.Encoder()


class _Gone(Exception):
    """The node has closed the control socket."""


def main(settings: wire.Settings) -> None:
    """Be a zygote, to the end of the process."""
    _die_with(settings.life_fd)
    control = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET, 0, fileno=settings.control_fd)
    try:
        ready = _prepare(settings)
    except _Unfit as error:
        control.send(_encoder.encode(wire.Failed(str(error), True)))
        return
    except Exception as error:
        control.send(_encoder.encode(wire.Failed(f"{type(error).__name__}: {error}", False)))
        return
    zygote = Zygote(control, seccomp.Filter(native()), ready.mapped_bytes)
    try:
        control.send(_encoder.encode(ready))
        for _ in range(settings.ahead):
            zygote.fork()
        zygote.serve()
    except (_Gone, BrokenPipeError, ConnectionResetError):
        return


class _Unfit(Exception):
    """The declared imports cannot be had in a sandbox."""


def _die_with(life_fd: int) -> None:
    """Have the kernel kill this process when the last writer of a pipe is gone."""
    fcntl.fcntl(life_fd, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(life_fd, _F_SETSIG, signal.SIGKILL)
    fcntl.fcntl(life_fd, fcntl.F_SETFL, fcntl.fcntl(life_fd, fcntl.F_GETFL) | os.O_ASYNC)
    poll = select.poll()
    poll.register(life_fd, select.POLLIN)
    if poll.poll(0):  # it had gone before
        os._exit(0)


def _prepare(settings: wire.Settings) -> wire.Ready:
    facts = {"landlock": "none"}
    lockdown.allow_descriptors()
    lockdown.yield_to_others(True)
    abi = lockdown.restrict_files(reading=True)
    try:
        modules.load(settings.imports)
    except BaseException as error:
        raise _Unfit(f"{type(error).__name__}: {error}") from error
    if len(os.listdir("/proc/self/task")) > 1:
        raise _Unfit(f"importing {', '.join(settings.imports)} starts threads")
    with open("/proc/self/statm") as statm:
        mapped_bytes = int(statm.read().split()[0]) * os.sysconf("SC_PAGESIZE")
    sandbox.settle()
    facts["namespaces"] = lockdown.leave_namespaces()
    facts["user"] = lockdown.drop_identity()
    if abi:
        lockdown.restrict_files(reading=False)
        facts["landlock"] = f"ABI {abi}, no files at all"
    libc.prctl(libc.PR_SET_NO_NEW_PRIVS, 1)
    libc.prctl(libc.PR_SET_DUMPABLE, 0)
    lockdown.limit_resources()
    for _ in range(_WARM_UPS):
        sandbox.rehearse()
    gc.collect()
    gc.freeze()  # the collector would otherwise write to, and so copy, every shared page
    return wire.Ready(facts, mapped_bytes)


class Zygote:
    """Forks sandboxes and remembers how they ended.

    Args:
        control: connection to the node.
        filter_: locks the sandboxes.
        mapped_bytes: address space before the first fork.
    """

    def __init__(self, control: socket.socket, filter_: seccomp.Filter, mapped_bytes: int) -> None:
        self._control = control
        self._filter = filter_
        self._mapped_bytes = mapped_bytes
        self._ended: dict[int, wire.Ended] = {}
        self._pid = os.getpid()

    def serve(self) -> NoReturn:
        """Do what engines ask, and reap, until the node goes.

        Raises:
            _Gone: it has.
        """
        woken, wake = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
        self._reap()  # those that ended before the signal was watched
        poll = select.poll()
        poll.register(self._control, select.POLLIN)
        poll.register(woken, select.POLLIN)
        while True:
            for descriptor, _ in poll.poll():
                if descriptor == woken:
                    os.read(woken, 4096)
                    self._reap()
                else:
                    self._obey()

    def _obey(self) -> None:
        message, files = wire.receive(self._control, 64, 1)
        if not message:
            raise _Gone
        if message == FORK:
            self.fork()
            return
        _, pid = QUERY.unpack(message)
        with socket.socket(fileno=files[0]) as answer:
            wire.send(answer, [_encoder.encode(self._end_of(pid))])

    def fork(self) -> None:
        """Make a sandbox and hand it to whoever takes it first."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        output = os.memfd_create("dandelion-output", os.MFD_CLOEXEC)
        log_read, log_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        opened = [output, log_read, log_write]
        try:
            pid = libc.fork()
            if pid == 0:
                sandbox.live(
                    self._pid,
                    self._filter,
                    self._mapped_bytes,
                    (theirs.fileno(), output, log_write),
                )
            self._ended.pop(pid, None)  # of an earlier process with the same number
            opened.append(os.pidfd_open(pid))
            rights = [ours.fileno(), opened[-1], output, log_read]
            wire.send(self._control, [_encoder.encode(wire.Born(pid))], rights)
        except OSError as error:
            if error.errno not in _SCARCE:
                raise
            wire.send(self._control, [_encoder.encode(wire.Failed(str(error), False))])
        finally:
            ours.close()
            theirs.close()
            for descriptor in opened:
                os.close(descriptor)

    def _reap(self) -> None:
        while True:
            try:
                pid, status, usage = os.wait4(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            self._remember(pid, status, usage.ru_utime + usage.ru_stime)

    def _remember(self, pid: int, status: int, cpu_s: float) -> wire.Ended:
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


def run(text: str) -> None:
    """Start from the settings on a command line."""
    main(msgspec.json.decode(text, type=wire.Settings))
    os._exit(0)
