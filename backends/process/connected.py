"""Starts a process that has a connection to the node and ends with it, see `lifetime`."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
from collections.abc import Callable
from contextlib import ExitStack, suppress
from typing import NamedTuple

from .lifetime import bind_lifetime


class ConnectedProcess(NamedTuple):
    """A process in a session of its own.

    Attributes:
        process: to be killed and reaped.
        control: the node's end of the connection, for sequenced packets.
        life_fd: closing it kills the process.
    """

    process: subprocess.Popen[bytes]
    control: socket.socket
    life_fd: int


def start_connected(
    start: Callable[[socket.socket, int, int], subprocess.Popen[bytes]],
) -> ConnectedProcess:
    """Start a process. If that fails, nothing is left open or running.

    Args:
        start: starts it, with the node's end of the connection and two descriptors for it: its end
            of the connection, and the reading end of the pipe by which it ends with the node.
    """
    with ExitStack() as opened:
        control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        opened.enter_context(control)
        with theirs:
            reading_fd, life_fd = os.pipe2(os.O_CLOEXEC)
            opened.callback(os.close, life_fd)
            try:
                process = start(control, theirs.fileno(), reading_fd)
                opened.callback(_end, process)
                bind_lifetime(reading_fd, process.pid)
            finally:
                os.close(reading_fd)
        opened.pop_all()
    return ConnectedProcess(process, control, life_fd)


def _end(process: subprocess.Popen[bytes]) -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
