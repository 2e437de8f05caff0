"""Servers in processes of their own, for all experiments that go over HTTP.

A program prints its port once it listens: as one line of standard output, a number or a JSON object
with "port". One that does not is told its port and asked until it takes connections. It starts on a
leash: when the thread that started it ends, it gets SIGTERM from the kernel, so that an experiment
that was killed leaves no server behind.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import IO

import msgspec

from dandelion.documents import RegistrationDocument
from dandelion.errors import DandelionError
from dandelion.search_path import environment as program_environment

from ..closing import Closing

_LEASH = (
    "import ctypes, os, signal, sys; ctypes.CDLL(None).prctl(1, signal.SIGTERM);"
    "os.execvp(sys.argv[1], sys.argv[1:])"
)

_CHECK_S = 0.02
_END_S = 15.0
_TAIL_BYTES = 2000


@dataclass(eq=False)
class ServerFailed(DandelionError):
    """A server did not come up; `wrote` is the end of what it wrote to standard error."""

    name: str
    why: str
    wrote: str = ""

    def __str__(self) -> str:
        wrote = f"; it wrote: {self.wrote}" if self.wrote else ""
        return f"server '{self.name}': {self.why}{wrote}"


class NodeOrder(msgspec.Struct, frozen=True):
    """What `dandelion.bench.systems.node` is told.

    Attributes:
        settings: of the node, by name.
        documents: what is registered before it listens.
    """

    settings: dict[str, object]
    documents: tuple[RegistrationDocument, ...] = ()


class ServerProcess(Closing):
    """A running server; use it with ``with``.

    Args:
        name: for people, like "raw ASGI".
        command: program and arguments.
        port: where it will listen, if it does not print its port.
        standard_input: what it reads; then its standard input ends.
        environment: variables beside those of this process.
        wait_s: how long it may take to listen.

    Attributes:
        name: as given.
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
        self._wrote: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - closed by close()
        self._said: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - closed by close()
        with tempfile.TemporaryFile() as given:
            given.write(standard_input)
            given.seek(0)
            self._process = subprocess.Popen(
                [sys.executable, "-S", "-E", "-c", _LEASH, *command],
                stdin=given,
                stdout=self._said,
                stderr=self._wrote,
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
            if self._process.poll() is not None:
                raise ServerFailed(
                    self.name, f"it ended with {self._process.returncode}", self.tail()
                )
            found = port if port is not None else self._printed_port()
            if found is not None and _listens(found):
                return found
            time.sleep(_CHECK_S)
        raise ServerFailed(self.name, "it does not listen", self.tail())

    def _printed_port(self) -> int | None:
        line, end, _ = os.pread(self._said.fileno(), 4096, 0).partition(b"\n")
        if not end:
            return None
        with contextlib.suppress(msgspec.DecodeError, KeyError, ValueError, TypeError):
            said = msgspec.json.decode(line)
            return int(said["port"] if isinstance(said, dict) else said)
        raise ServerFailed(self.name, "its first line tells no port", line.decode(errors="replace"))

    def output(self) -> bytes:
        """Give all that it has written to standard output until now."""
        return os.pread(self._said.fileno(), os.fstat(self._said.fileno()).st_size, 0)

    def tail(self) -> str:
        """Give the end of what it has written to standard error until now."""
        size = os.fstat(self._wrote.fileno()).st_size
        end = os.pread(self._wrote.fileno(), _TAIL_BYTES, max(0, size - _TAIL_BYTES))
        return end.decode(errors="replace").strip()

    def stop(self) -> None:
        """End it, and whatever it has started in its session; its output can still be read."""
        if self._process.poll() is None:
            self._process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(_END_S)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        self._process.wait()

    def close(self) -> None:
        """End it and forget what it wrote. May be called twice."""
        self.stop()
        self._wrote.close()
        self._said.close()


def node_server(
    settings: Mapping[str, object],
    documents: Sequence[RegistrationDocument] = (),
    *,
    name: str = "dandelion",
    wait_s: float = 120.0,
) -> ServerProcess:
    """Start a node with its HTTP frontend, everything registered and all engines ready.

    Args:
        settings: of the node, by name; the port is a free one.
        documents: registered in this order before it listens.
        name: for people.
        wait_s: how long it may take to be ready.

    Raises:
        ServerFailed: it did not come up, for example since a document is refused.
    """
    order = NodeOrder(dict(settings), tuple(documents))
    given = msgspec.msgpack.encode(order)
    return ServerProcess(
        name, module("dandelion.bench.systems.node"), standard_input=given, wait_s=wait_s
    )


def asgi_server() -> ServerProcess:
    """Start the baseline: an ASGI application on the same server that answers what it gets."""
    return ServerProcess("raw ASGI", module("dandelion.bench.systems.echo"))


def module(name: str, *arguments: str) -> list[str]:
    """Give the command that runs a module as a program."""
    return [sys.executable, "-m", name, *arguments]


def _listens(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1.0).close()
    except OSError:
        return False
    return True
