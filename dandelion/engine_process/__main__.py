"""The main program of an engine process: one engine, one arena mapping, one conversation.

Run by the node as ``python -m dandelion.engine_process SOCKET_FD DESCRIPTORS_FD ARENA_FD
ARENA_BYTES RESOURCE SPIN_US OPTIONS BACKEND...``; DESCRIPTORS_FD, a socket for descriptors of
memory, and ARENA_FD are -1 for a confined process. It opens the first
backend of the list that works, says `Ready`, then serves calls until the socket ends. After a call
it looks for the next one for up to SPIN_US microseconds before it sleeps, if that pays.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import socket
import sys

import msgspec

from dandelion.engine_process.channel import Ended
from dandelion.engine_process.confined import ConfinedProcess
from dandelion.engine_process.descriptors import DescriptorChannel
from dandelion.engine_process.messages import Failed, request_channel
from dandelion.engine_process.serving import EngineProcess
from dandelion.errors import DandelionError
from dandelion.interrupts import ignore_interrupts
from dandelion.memory import ArenaMap
from dandelion.polling import OF_ENGINE

_PR_SET_PDEATHSIG = 1


def main(arguments: list[str]) -> int:
    """Serve an engine; the arguments are those of the module's text."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    ignore_interrupts()
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # the node decides; killed, it would leave files
    socket_fd, descriptors_fd, arena_fd, arena_bytes, resource, spin_us, options, *backends = (
        arguments
    )
    OF_ENGINE.allow(int(spin_us))
    with socket.socket(fileno=int(socket_fd)) as peer:
        node = request_channel(peer)
        process = (
            ConfinedProcess(node)
            if int(arena_fd) < 0
            else EngineProcess(
                node,
                ArenaMap(int(arena_fd), int(arena_bytes)),
                DescriptorChannel(socket.socket(fileno=int(descriptors_fd))),
            )
        )
        try:
            engine = process.open(
                backends, resource, msgspec.json.decode(options, type=dict[str, dict[str, str]])
            )
        except DandelionError as error:
            with contextlib.suppress(OSError):  # the node is gone
                node.send(Failed(-1, error.record()))
            return 1
        except (Ended, OSError):  # the node is gone, or does not want a standby any more
            return 0
        try:
            process.serve(engine)
        finally:
            engine.close()
    return 0


if __name__ == "__main__":
    code = main(sys.argv[1:])
    sys.stderr.flush()
    os._exit(code)  # the end of the interpreter would take longer, for nothing
