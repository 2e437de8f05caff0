"""What a kernel host is told when it starts, and says beyond the messages of engine processes."""

from __future__ import annotations

import socket
from typing import TypeAlias

import msgspec

from dandelion.engine_process.channel import Channel
from dandelion.engine_process.messages import Done, Failed, Ready

REPLY_LIMIT_BYTES = 1 << 20
"""Of one message from a kernel host: a compiler's words, or a few numbers."""


class TemplateSettings(msgspec.Struct, frozen=True):
    """The one argument of a template of kernel hosts, as JSON.

    Attributes:
        control_fd: connection to the broker, which it inherits.
        parent: process id of the broker.
        backend, options: what its hosts will serve.
    """

    control_fd: int
    parent: int
    backend: str
    options: dict[str, str]


class HostSettings(msgspec.Struct, frozen=True, array_like=True):
    """What one kernel host is told when it is forked.

    Attributes:
        parent: process id of its template.
        folder: the place for its own files.
        memory_bytes: size of the file of memory.
        backend, resource: what it serves.
        threads: kernels may be run by several threads; else by the one that launches them.
        rehearse: run a kernel of ours before it says that it is confined.
    """

    parent: int
    folder: str
    memory_bytes: int
    backend: str
    resource: str
    threads: bool = True
    rehearse: bool = True


class Fork(msgspec.Struct, frozen=True, array_like=True, tag="fork"):
    """To a template: fork a host. It answers with the process id, or below zero an error number."""

    settings: HostSettings


class Reap(msgspec.Struct, frozen=True, array_like=True, tag="reap"):
    """To a template: wait for the end of a host. It answers with the exit code."""

    process: int


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
