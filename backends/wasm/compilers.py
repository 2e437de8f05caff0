"""The node's side of compiling modules: a few processes, each compiling one module at a time."""

from __future__ import annotations

import os
import select
import signal
import socket
import subprocess
import sys
import threading
import weakref
from pathlib import Path

import msgspec

import dandelion
from dandelion.data import Bytes
from dandelion.errors import Cancelled, EngineDied, InvalidFunction, Problem

from ..process import lifetime
from .compile_process import (
    ANSWER_BYTES,
    CPU_S,
    MEMORY_BYTES,
    MODULE,
    READY,
    TOO_MUCH,
    WALL_S,
    CompileExit,
)

_ATTEMPTS = 2
_START_S = 60.0
_GRACE_S = 10.0
_ended = msgspec.msgpack.Decoder(CompileExit)


class Compilers:
    """Compiles modules in processes, which start on demand. Safe from any thread."""

    def __init__(self) -> None:
        self._places = threading.BoundedSemaphore(max(2, min(4, os.cpu_count() or 1)))
        self._lock = threading.Lock()
        self._idle: list[_Process] = []
        self._processes: set[_Process] = set()
        self._closings = 0
        weakref.finalize(self, _close_left, self._processes, os.getpid())  # if its owner does not

    def compile(self, main: Bytes) -> bytes:
        """Return the machine code of a module, serialized.

        Raises:
            InvalidFunction: it is not valid, or exceeds a limit.
            EngineDied: the processes die.
            Cancelled: it was closed meanwhile.
        """
        closings = self._closings
        with self._places:
            for attempt in range(1, _ATTEMPTS + 1):
                process = self._acquire(closings)
                try:
                    made = process.compile(main)
                except EngineDied:
                    self._drop(process)
                    if attempt == _ATTEMPTS and closings == self._closings:
                        raise
                except InvalidFunction:
                    self._put_back(process)
                    raise
                else:
                    self._put_back(process)
                    return made
        raise Cancelled("the node is closed")

    def _acquire(self, closings: int) -> _Process:
        with self._lock:
            if closings != self._closings:
                raise Cancelled("the node is closed")
            if not self._idle:
                process = _Process()
                self._processes.add(process)
                return process
            return self._idle.pop()

    def _put_back(self, process: _Process) -> None:
        with self._lock:
            if process in self._processes:
                self._idle.append(process)

    def _drop(self, process: _Process) -> None:
        with self._lock:
            self._processes.discard(process)
        process.close()

    def close(self) -> None:
        """Kill the processes. It may be used again, and then starts new ones."""
        with self._lock:
            self._closings += 1
            processes = self._processes.copy()
            self._processes.clear()
            self._idle.clear()
        _close_all(processes)


def _close_all(processes: set[_Process]) -> None:
    for process in processes:
        process.close()


def _close_left(processes: set[_Process], owner: int) -> None:
    """Close what is left at the end; in a forked process nothing, it belongs to the parent."""
    if os.getpid() == owner:
        _close_all(processes)


class _Process:
    """One process and the connection to it. Used by one thread at a time, but for `close`."""

    def __init__(self) -> None:
        self._ready = False
        self._lock = threading.Lock()
        self._using = threading.Lock()
        self._closed = False
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        life_fd, self._life = os.pipe2(os.O_CLOEXEC)  # closing our end kills it
        files = (theirs.fileno(), life_fd)
        name = "dandelion.backends.wasm.compile_process"
        try:
            self.process = subprocess.Popen(
                [sys.executable, "-P", "-m", name, *map(str, files)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                pass_fds=files,
                env=_environment(),
                start_new_session=True,
            )
            lifetime.bind_lifetime(life_fd, self.process.pid)
        finally:
            theirs.close()
            os.close(life_fd)

    def compile(self, main: Bytes) -> bytes:
        """Compile a module.

        Raises:
            InvalidFunction: it is not valid, or exceeds a limit.
            EngineDied: the process is gone.
        """
        source, answer = (os.memfd_create(n, os.MFD_CLOEXEC) for n in ("module", "compiled"))
        try:
            with open(source, "wb", closefd=False) as file:
                file.write(main)
            with self._using:
                ended = self._compile_once(source, answer)
            if ended.late or ended.code:
                raise InvalidFunction((Problem("invalid-code", _broken(ended), "wasm"),))
            whole = os.pread(answer, min(os.fstat(answer).st_size, ANSWER_BYTES), 0)
        finally:
            os.close(source)
            os.close(answer)
        if whole[:1] == MODULE:
            return whole[1:]
        reason = whole[1:].decode(errors="replace")
        raise InvalidFunction((Problem("invalid-code", f"it does not compile: {reason}", "wasm"),))

    def _compile_once(self, source: int, answer: int) -> CompileExit:
        try:
            if not self._ready:
                self._ready = self._received(_START_S) == READY
            socket.send_fds(self._control, [b"?"], [source, answer])
            return _ended.decode(self._received(WALL_S + _GRACE_S))
        except (OSError, msgspec.DecodeError) as error:
            raise EngineDied("wasm-compile", str(error) or "its process ended") from None

    def _received(self, timeout_s: float) -> bytes:
        poll = select.poll()
        poll.register(self._control, select.POLLIN)
        if not poll.poll(timeout_s * 1000):
            raise OSError(f"no answer for {timeout_s:g} s")
        message = self._control.recv(1024)
        if not message:
            raise OSError("its process ended")
        return message

    def close(self) -> None:
        """Kill and reap it. May be called twice, and while another thread waits for it."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            os.close(self._life)
            self._control.shutdown(socket.SHUT_RDWR)  # wakes the thread that waits
            self.process.kill()
            self.process.wait()
            with self._using:
                self._control.close()


def _broken(ended: CompileExit) -> str:
    if ended.late:
        return f"it was not compiled within {WALL_S:g} s; try again"
    if ended.code in (-signal.SIGXCPU, -signal.SIGKILL):
        return f"compiling it takes more than {CPU_S} s"
    if ended.code in (-signal.SIGABRT, -signal.SIGTRAP, TOO_MUCH):
        return (
            f"compiling it takes more than {MEMORY_BYTES >> 20} MiB, "
            f"or results in more than {ANSWER_BYTES >> 20} MiB of code"
        )
    return f"the compiler ended with code {ended.code}"


def _environment() -> dict[str, str]:
    """Return the environment; the engine is importable also from a checkout."""
    root = str(Path(dandelion.__file__).resolve().parent.parent)
    return {"PYTHONPATH": os.pathsep.join([root, *filter(None, map(os.path.abspath, sys.path))])}
