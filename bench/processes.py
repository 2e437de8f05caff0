"""Processes of benchmarks: programs that carry out one order, and servers.

A program reads its order from standard input and writes its answer to standard output, both as
MessagePack, and ends. A server prints its port once it listens, as the first line of standard
output: a number, or a JSON object with "port". Servers get SIGTERM from the kernel when the thread
that started them ends, so an experiment that was killed leaves none behind.
"""

from __future__ import annotations

import abc
import contextlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import IO, Protocol, Self, TypeVar

import msgspec

from dandelion.errors import BackendUnavailable, DandelionError
from dandelion.search_path import environment as program_environment

_END_WITH_PARENT = (
    "import ctypes, os, signal, sys; ctypes.CDLL(None).prctl(1, signal.SIGTERM);"
    "os.execvp(sys.argv[1], sys.argv[1:])"
)
_CHECK_S = 0.02
_END_S = 15.0
_TAIL_BYTES = 2000


class Closeable(abc.ABC):
    """Is closed at the end of a ``with`` block."""

    @abc.abstractmethod
    def close(self) -> None:
        """Give everything back. May be called twice."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


def module(name: str, *arguments: str) -> list[str]:
    """Give the command that runs a module as a program."""
    return [sys.executable, "-m", name, *arguments]


class ProgramOrder(Protocol):
    """Input of a program; a record."""

    @property
    def backend(self) -> str:
        """The backend that is measured."""


class ProgramAnswer(Protocol):
    """Output of a program; a record."""

    @property
    def missing(self) -> str:
        """Why there is no result; empty if there is one."""


O = TypeVar("O", bound=ProgramOrder)  # noqa: E741 - an order
A = TypeVar("A", bound=ProgramAnswer)


def run_program(program: str, order: ProgramOrder, kind: type[A], limit_s: float) -> A:
    """Run a program of ours and give its answer.

    Args:
        program: its module.
        order: its input.
        kind: of its answer.
        limit_s: how long it may take.

    Raises:
        BackendUnavailable: the backend does not work here, or the program ended without an answer.
        subprocess.TimeoutExpired: it was killed at the limit.
    """
    done = subprocess.run(
        module(program), input=msgspec.msgpack.encode(order),
        capture_output=True, env=program_environment(), timeout=limit_s, check=False,
    )  # fmt: skip
    if done.returncode:
        wrote = done.stderr.decode(errors="replace").strip().splitlines()
        raise BackendUnavailable(order.backend, wrote[-1] if wrote else "the program ended")
    answer = msgspec.msgpack.decode(done.stdout, type=kind)
    if answer.missing:
        raise BackendUnavailable(order.backend, answer.missing)
    return answer


def program_main(kind: type[O], measure: Callable[[O], A], without: Callable[[str], A]) -> None:
    """Be such a program: `measure` answers the order, `without` says what is missing."""
    order = msgspec.msgpack.decode(sys.stdin.buffer.read(), type=kind)
    try:
        answer = measure(order)
    except DandelionError as error:
        answer = without(str(error))
    sys.stdout.buffer.write(msgspec.msgpack.encode(answer))
    sys.stdout.flush()


@dataclass(eq=False)
class ServerFailed(DandelionError):
    """A server did not start; `wrote` is the end of what it wrote to standard error."""

    name: str
    why: str
    wrote: str = ""

    def __str__(self) -> str:
        wrote = f"; it wrote: {self.wrote}" if self.wrote else ""
        return f"server '{self.name}': {self.why}{wrote}"


class ServerProcess(Closeable):
    """A running server; use it with ``with``.

    Args:
        name: for people, like "raw ASGI".
        command: program and arguments.
        port: where it will listen, if it does not print its port.
        standard_input: what it reads; then its standard input ends.
        environment: variables beside those of this process.
        wait_s: how long it may take to listen.

    Attributes:
        port: where it listens, on 127.0.0.1.
        pid: of the program.

    Raises:
        ServerFailed: it ended, or does not listen in time. Nothing is left of it then.
    """

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        *,
        port: int | None = None,
        standard_input: bytes = b"",
        environment: Mapping[str, str] | None = None,
        wait_s: float = 60.0,
    ) -> None:
        self.name = name
        self._errors: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - closed by close()
        self._output: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - closed by close()
        with tempfile.TemporaryFile() as given:
            given.write(standard_input)
            given.seek(0)
            self._process = subprocess.Popen(
                [sys.executable, "-S", "-E", "-c", _END_WITH_PARENT, *command],
                stdin=given,
                stdout=self._output,
                stderr=self._errors,
                env=program_environment(environment),
                start_new_session=True,
            )
        self.pid = self._process.pid
        try:
            self.port = self._wait(port, time.monotonic() + wait_s)
        except BaseException:
            self.close()
            raise

    def _wait(self, port: int | None, deadline: float) -> int:
        while time.monotonic() < deadline:
            if (code := self._process.poll()) is not None:
                raise ServerFailed(self.name, f"it ended with {code}", self.tail())
            found = port if port is not None else self._printed_port()
            if found is not None and _listens(found):
                return found
            time.sleep(_CHECK_S)
        raise ServerFailed(self.name, "it does not listen", self.tail())

    def _printed_port(self) -> int | None:
        line, end, _ = os.pread(self._output.fileno(), 4096, 0).partition(b"\n")
        if not end:
            return None
        with contextlib.suppress(msgspec.DecodeError, KeyError, ValueError, TypeError):
            printed = msgspec.json.decode(line)
            return int(printed["port"] if isinstance(printed, dict) else printed)
        raise ServerFailed(self.name, "its first line has no port", line.decode(errors="replace"))

    def output(self) -> bytes:
        """Give all that it has written to standard output until now."""
        return os.pread(self._output.fileno(), os.fstat(self._output.fileno()).st_size, 0)

    def tail(self) -> str:
        """Give the end of what it has written to standard error until now."""
        size = os.fstat(self._errors.fileno()).st_size
        end = os.pread(self._errors.fileno(), _TAIL_BYTES, max(0, size - _TAIL_BYTES))
        return end.decode(errors="replace").strip()

    def stop(self) -> None:
        """End it and everything in its session; its output can still be read."""
        if self._process.poll() is None:
            self._process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(_END_S)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        self._process.wait()

    def close(self) -> None:
        self.stop()
        self._errors.close()
        self._output.close()


def _listens(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1.0).close()
    except OSError:
        return False
    return True


def free_port() -> int:
    """Find a port that is free now."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port: int = probe.getsockname()[1]
        return port
