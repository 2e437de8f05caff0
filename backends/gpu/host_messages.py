"""What a kernel host is told when it starts, and says beyond the messages of engine processes."""

from __future__ import annotations

import socket
from typing import TypeAlias

import msgspec

from dandelion.engine_process.messages import Channel, Done, Failed, Ready

REPLY_LIMIT_BYTES = 1 << 20
"""Of one message from a kernel host: a compiler's words, or a few numbers."""


class HostSettings(msgspec.Struct, frozen=True):
    """The one argument of a kernel host, as JSON.

    Attributes:
        socket_fd, memory_fd: what it inherits.
        memory_bytes: size of the file of memory.
        parent: process id of the broker.
        folder: the place for its own files.
        backend, resource, options: what it serves.
    """

    socket_fd: int
    memory_fd: int
    memory_bytes: int
    parent: int
    folder: str
    backend: str
    resource: str
    options: dict[str, str]


class Confined(msgspec.Struct, frozen=True, array_like=True, tag="confined"):
    """It has given up its rights, and may get code of users now.

    Attributes:
        facts: what is enforced, by subject, for people.
    """

    facts: dict[str, str]


HostReply: TypeAlias = Ready | Confined | Done | Failed

_REPLIES: msgspec.msgpack.Decoder[HostReply] = msgspec.msgpack.Decoder(
    Ready | Confined | Done | Failed
)


def host_channel(peer: socket.socket) -> Channel[HostReply]:
    """Make the broker's end of the conversation with a kernel host."""
    return Channel(peer, _REPLIES, REPLY_LIMIT_BYTES)
