"""Addresses whose ports are chosen now and listened on later, for tests."""

import contextlib
import os
import socket


def own_host() -> str:
    """Return an address of the loopback device that no other process uses.

    A port that is free there stays free: other programs listen on 127.0.0.1, and outgoing
    connections have ports of that address too.
    """
    pid = os.getpid()
    return f"127.{64 + (pid >> 16) % 64}.{pid >> 8 & 255}.{pid & 255}"


def free_ports(count: int, host: str) -> list[int]:
    """Choose different ports of a host of this process that nothing listens on."""
    with contextlib.ExitStack() as opened:
        sockets = [opened.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind((host, 0))
        return [int(one.getsockname()[1]) for one in sockets]
