"""File descriptors from one process to another, beside the messages that refer to them.

A descriptor is sent before its message, so it is there when the message is read. Both are in
order.
"""

from __future__ import annotations

import contextlib
import socket


class DescriptorChannel:
    """One end of a socket that carries one descriptor with each datagram; it never waits.

    Args:
        peer: a socket that keeps datagrams apart and in order. The channel closes it.
    """

    def __init__(self, peer: socket.socket) -> None:
        peer.setblocking(False)
        self._peer = peer

    def send(self, descriptor: int) -> bool:
        """Send a descriptor, which stays the caller's. False if the other side cannot take it."""
        try:
            socket.send_fds(self._peer, [b"\0"], [descriptor])
        except OSError:
            return False
        return True

    def receive(self) -> int:
        """Return the next descriptor, which is the caller's to close; -1 if there is none."""
        try:
            _, found, _, _ = socket.recv_fds(self._peer, 1, 1, socket.MSG_CMSG_CLOEXEC)
        except OSError:
            return -1
        return found[0] if found else -1

    def close(self) -> None:
        """Close the socket, and with it all descriptors that were not received."""
        with contextlib.suppress(OSError):
            self._peer.close()


def descriptor_channels() -> tuple[DescriptorChannel, socket.socket]:
    """Make the node's end, and the socket that a child process is given."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    return DescriptorChannel(ours), theirs
