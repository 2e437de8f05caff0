"""What the nodes of a cluster say to each other.

A node opens two connections to each other node: one for control, and one for data, so that a large
set delays no heartbeat and no small call. Both begin with the proof of membership (`handshake`),
and then with `Join`. Behind it there are frames (`frames`): a message in MessagePack, and bytes.

============== ============================ =======================================================
from caller    answer                       meaning
============== ============================ =======================================================
`Join`         `Welcome`, `Refuse`          the first message of each connection
`Ping`         `Pong`                       heartbeat; load and members
`Define`       -                            a function, before its first `Run`
`Undefine`     -                            it is not called any more
`Run`          `Done`, `Failed`             run one instance of a function
`StopRun`      -                            its result is not needed
`Ballot`       `Ballot`                     replication of the catalogue, see `replication`
`GetBlob`      `BlobAt`                     where a blob can be pulled from; either side may ask
`Question`     `Reply`                      asynchronous invocations, see `kept_messages`
`Leave`        -                            the node shuts down
============== ============================ =======================================================

On the data connection both sides may send `Pull`, which is answered with `Piece` or `Gone`.
What can be pulled is a *region*: bytes that the other side holds until they are released
(`Release`), or until it needs them no more (`Withdraw`), or until the connection ends. Bytes of a
frame are the inputs or outputs of a small call, or a piece.
"""

from __future__ import annotations

from typing import Annotated, TypeAlias

import msgspec

from dandelion.cluster.call_messages import (
    Count,
    Define,
    Done,
    Failed,
    Load,
    Name,
    RegionSize,
    Run,
    StopRun,
    Undefine,
)
from dandelion.function import Digest

VERSION = 4
"""Of all that nodes say to each other; nodes with different ones refuse each other. It changes with
any message, also those of `ballots` and `kept_messages` and the records in them. `Join` and
`Refuse` stay as they are, so that the reason can be read."""
CONTROL_LIMIT_BYTES = 64 << 20
"""Of the message of a frame."""
DATA_LIMIT_BYTES = 1 << 20
"""Of the bytes of a frame."""
PIECE_BYTES = 1024 * 1024
INLINE_BYTES = 64 * 1024
"""Inputs or outputs of so many bytes together come with their message."""


class Join(msgspec.Struct, frozen=True, array_like=True, tag="join"):
    """The node that opens the connection.

    Attributes:
        version: of the protocol.
        node: its name, which is its address for others, ``HOST:PORT``.
        incarnation: higher with each start of it.
        expected: the node that it means to talk to.
        link: number of the pair of connections.
        data: it is the connection for data.
        voters: names of the nodes that keep the catalogue; all nodes must mean the same.
    """

    version: Count
    node: Name
    incarnation: Count
    expected: Name
    link: Count
    data: bool
    voters: tuple[Name, ...]


class Welcome(msgspec.Struct, frozen=True, array_like=True, tag="welcome"):
    """The connection is accepted."""

    node: Name
    incarnation: Count
    load: Load


class Refuse(msgspec.Struct, frozen=True, array_like=True, tag="refuse"):
    """The connection is not accepted, or is ended."""

    reason: str


class Ping(msgspec.Struct, frozen=True, array_like=True, gc=False, tag="ping"):
    """A heartbeat."""

    number: Count


class Pong(msgspec.Struct, frozen=True, array_like=True, tag="pong"):
    """The answer.

    Attributes:
        members: names of the nodes that it knows.
        registered: length of its catalogue's log.
        draining: it takes no more calls.
        used_ns: how long tenants have used engines there, by tenant and backend; see `shares`.
        uncharged_ns: what of it was for calls of the reader, or before the link began.
    """

    number: Count
    load: Load
    members: tuple[Name, ...] = ()
    registered: Count = 0
    draining: bool = False
    used_ns: dict[str, dict[str, Count]] = {}
    uncharged_ns: dict[str, dict[str, Count]] = {}


class Leave(msgspec.Struct, frozen=True, array_like=True, tag="leave"):
    """The node shuts down, and is no member any more.

    Either side of a link may say so. The side that runs calls does if it runs none: a call that it
    has not answered by then came too late, and was not begun.
    """


class GetBlob(msgspec.Struct, frozen=True, array_like=True, tag="get-blob"):
    """Hold a blob as a region."""

    number: Count
    digest: Digest


class BlobAt(msgspec.Struct, frozen=True, array_like=True, tag="blob-at"):
    """Where the blob is; None if the node does not have it. An empty blob has region 0."""

    number: Count
    region: Count | None
    size: Count = 0


class Ballot(msgspec.Struct, frozen=True, array_like=True, tag="ballot"):
    """A message of `replication`, encoded there."""

    content: bytes


class Question(msgspec.Struct, frozen=True, array_like=True, tag="question"):
    """About asynchronous invocations, see `kept_messages`; answered by a `Reply`.

    Attributes:
        number: unique on the connection.
        regions: of the sender, that have the data in order; none if the frame has it.
        head_bytes: so much of the data comes before it and is `content`, which is too large for the
            message.
    """

    number: Count
    content: bytes
    regions: Annotated[tuple[RegionSize, ...], msgspec.Meta(max_length=65536)] = ()
    head_bytes: Count = 0


class Reply(msgspec.Struct, frozen=True, array_like=True, tag="reply"):
    """The answer; its parts are those of the question."""

    number: Count
    content: bytes
    regions: Annotated[tuple[RegionSize, ...], msgspec.Meta(max_length=65536)] = ()
    head_bytes: Count = 0


class Pull(msgspec.Struct, frozen=True, array_like=True, gc=False, tag="pull"):
    """Send a part of a region."""

    transfer: Count
    region: Count
    offset: Count
    size: Annotated[int, msgspec.Meta(ge=1, le=PIECE_BYTES)]


class Piece(msgspec.Struct, frozen=True, array_like=True, gc=False, tag="piece"):
    """The part; its bytes are those of the frame."""

    transfer: Count
    offset: Count


class Gone(msgspec.Struct, frozen=True, array_like=True, gc=False, tag="gone"):
    """The region is not held, or does not have such a part."""

    transfer: Count


class Release(msgspec.Struct, frozen=True, array_like=True, gc=False, tag="release"):
    """Regions are not needed any more.

    Attributes:
        copied: the sender has a copy; the receiver may keep them while there is room, since the
            sender may name them in calls.
    """

    regions: tuple[Count, ...]
    copied: bool = False


class Withdraw(msgspec.Struct, frozen=True, array_like=True, gc=False, tag="withdraw"):
    """The sender does not hold regions any more: no call that it has sent names them."""

    regions: tuple[Count, ...]


Message: TypeAlias = (
    Join
    | Welcome
    | Refuse
    | Ping
    | Pong
    | Leave
    | Define
    | Undefine
    | Run
    | StopRun
    | Done
    | Failed
    | GetBlob
    | BlobAt
    | Ballot
    | Question
    | Reply
    | Pull
    | Piece
    | Gone
    | Release
    | Withdraw
)

_ENCODER = msgspec.msgpack.Encoder()
_DECODER: msgspec.msgpack.Decoder[Message] = msgspec.msgpack.Decoder(Message)


def encode(message: Message) -> bytes:
    """Write a message."""
    return _ENCODER.encode(message)


def decode(data: memoryview) -> Message:
    """Read a message.

    Raises:
        msgspec.MsgspecError, UnicodeDecodeError, RecursionError: it is not one.
    """
    return _DECODER.decode(data)
