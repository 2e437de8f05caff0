"""The process that kernel hosts are forked from, seen from both sides.

Most of what a kernel host needs to start is the same for all: an interpreter, and the libraries of
the device. The **template** loads them once and then forks a host when its broker requests one. It
runs no code and sees no data of users, has one thread, opens no device and keeps nothing of a host
but its process id. A host closes the connection to the broker before it does anything else.

::

    broker                           template          host
      | Fork, with socket and memory --->| fork -------->|
      |<----------------- its process id |               | gives up its rights
      | ...                              |               X ends
      | Reap, its process id ----------->| wait
      |<------------------ its exit code |

A process id is free for others only after `Reap`, so the broker never means another process. Hosts
end with the template, and the template ends with its broker.
"""

from __future__ import annotations

import contextlib
import errno
import gc
import os
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping

import msgspec

from dandelion.errors import EngineDied
from dandelion.search_path import search_path

from .host_messages import Fork, HostSettings, Reap, TemplateSettings
from .host_runtime import HostRuntime

BeHost = Callable[[HostSettings, int, int], int]
"""Is a host to its end: gets its settings, socket and file of memory, and gives an exit code."""

_MESSAGE_BYTES = 64 * 1024
_LOAD_LIMIT_S = 60.0
"""How long it may take to load the libraries, before its first answer."""
_ANSWER_LIMIT_S = 5.0
"""How long a later answer may take; forking and reaping take milliseconds."""
_CODE_LIMIT_S = 1.0
_LOOK_S = 0.1
_orders: msgspec.msgpack.Decoder[Fork | Reap] = msgspec.msgpack.Decoder(Fork | Reap)
_answers = msgspec.msgpack.Decoder(int)


# --- the template -------------------------------------------------------------------------------


def serve(control_fd: int, be_host: BeHost) -> None:
    """Fork hosts until the broker is gone. In a host this does not return."""
    gc.collect()
    gc.freeze()  # else collecting would write to what hosts share
    with socket.socket(fileno=control_fd) as control:
        while True:
            data, files, _, _ = socket.recv_fds(control, _MESSAGE_BYTES, 2)
            if not data:
                return
            order = _orders.decode(data)
            try:
                if isinstance(order, Reap):
                    answer = os.waitstatus_to_exitcode(os.waitpid(order.process, 0)[1])
                else:
                    answer = _forked(control, be_host, order.settings, files)
            except OSError as error:
                answer = -(error.errno or errno.EIO)
            finally:
                for file in files:
                    os.close(file)
            control.send(msgspec.msgpack.encode(answer))


def _forked(
    control: socket.socket, be_host: BeHost, settings: HostSettings, files: list[int]
) -> int:
    process = os.fork()
    if process:
        return process
    code = 1
    try:
        control.close()
        os.setsid()
        code = be_host(settings, *files)
    finally:
        os._exit(code)


# --- the broker's side --------------------------------------------------------------------------


class HostTemplate:
    """A template. Any thread may use it; it ends with the thread that started it.

    Args:
        backend, options: what its hosts will serve.
        runtime: of the device.
        command: how the process is started; by default as a template of kernel hosts.

    Raises:
        OSError: there can be no further process.
    """

    def __init__(
        self,
        backend: str,
        options: Mapping[str, str],
        runtime: HostRuntime,
        command: tuple[str, ...] = (),
    ) -> None:
        self._backend = backend
        self._lock = threading.Lock()
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        settings = TemplateSettings(theirs.fileno(), os.getpid(), backend, dict(options))
        try:
            with theirs:
                self._process = subprocess.Popen(
                    [*(command or default_command()), msgspec.json.encode(settings).decode()],
                    pass_fds=(theirs.fileno(),),
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    env=_environment() | runtime.environment(),
                    cwd="/",
                    start_new_session=True,
                )
        except OSError:
            self._control.close()
            raise
        self._control.settimeout(_LOAD_LIMIT_S)
        self.pid = self._process.pid

    def fork(self, settings: HostSettings, peer: socket.socket, memory_fd: int) -> HostChild:
        """Have a host forked; waits until the template has loaded what it must.

        Args:
            peer: the host's end of its conversation; the caller closes it.
            memory_fd: of the file of memory, likewise.

        Raises:
            EngineDied: the template is gone, or did not answer in time and was killed.
            OSError: there can be no further process.
        """
        process = self._ask(Fork(settings), [peer.fileno(), memory_fd])
        if process < 0:
            raise OSError(-process, os.strerror(-process))
        return HostChild(self, process)

    def reap(self, process: int) -> int:
        """Take the exit code of a host that has ended, as `subprocess.Popen.returncode`."""
        try:
            return self._ask(Reap(process), [])
        except EngineDied:  # its hosts were killed
            return -signal.SIGKILL

    def _ask(self, order: Fork | Reap, files: list[int]) -> int:
        with self._lock:
            try:
                socket.send_fds(self._control, [msgspec.msgpack.encode(order)], files)
                data = self._control.recv(_MESSAGE_BYTES)
                self._control.settimeout(_ANSWER_LIMIT_S)
            except TimeoutError:
                self._process.kill()  # a late answer would be taken for that of the next order
                limit_s = self._control.gettimeout()
                reason = f"the template of kernel hosts did not answer for {limit_s:g} s"
                raise EngineDied(self._backend, reason) from None
            except OSError:
                data = b""
        if not data:
            reason = f"the template of kernel hosts ended with code {self._end()}"
            raise EngineDied(self._backend, reason)
        return _answers.decode(data)

    def _end(self) -> int:
        try:
            return self._process.wait(_CODE_LIMIT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            return self._process.wait()

    def is_gone(self) -> bool:
        """Tell whether it has ended; looks for a while, since its hosts may end before it."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_LOOK_S)
        return self._process.returncode is not None

    def close(self) -> None:
        """End it, and all hosts with it. May be called twice."""
        self._control.close()
        self._process.kill()
        self._process.wait()


class HostChild:
    """The process of a kernel host, for its broker, which is not its parent.

    Args:
        template: its parent.
        process: its id. The process is ended if there is an error.

    Raises:
        OSError: there can be no further descriptor.
    """

    def __init__(self, template: HostTemplate, process: int) -> None:
        self.pid = process
        self._template = template
        self._code: int | None = None
        try:
            self._handle = os.pidfd_open(process)
        except OSError:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)  # its id is not free before it is reaped
            template.reap(process)
            raise

    def wait(self, limit_s: float | None = None) -> int | None:
        """Wait for its end, and give its exit code; None if it takes longer than the limit."""
        if self._code is None:
            poll = select.poll()
            poll.register(self._handle, select.POLLIN)
            if not poll.poll(None if limit_s is None else limit_s * 1e3):
                return None
            self._code = self._template.reap(self.pid)
            os.close(self._handle)
        return self._code

    def kill(self) -> None:
        """Have it end, without waiting."""
        if self._code is None:
            with contextlib.suppress(ProcessLookupError):  # without its parent another one reaps it
                signal.pidfd_send_signal(self._handle, signal.SIGKILL)


def default_command() -> tuple[str, ...]:
    """How a template is started."""
    return (sys.executable, "-P", "-m", "dandelion.backends.gpu.kernel_host")


def _environment() -> dict[str, str]:
    """What the interpreter needs to find the engine, also from a checkout; nothing else."""
    return {
        "PYTHONPATH": search_path(),
        "LC_ALL": "C.UTF-8",
        "OPENBLAS_NUM_THREADS": "1",  # rights are given up while there is one thread
        "OMP_NUM_THREADS": "1",
    }
