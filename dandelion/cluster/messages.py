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

from dandelion.call_logs import PrintedLine
from dandelion.data import Origin
from dandelion.errors import ErrorRecord
from dandelion.function import Digest, FunctionSpec, FusedFunction

VERSION = 2
"""Of the protocol; nodes with different ones refuse each other."""
CONTROL_LIMIT_BYTES = 64 << 20
"""Of the message of a frame."""
DATA_LIMIT_BYTES = 1 << 20
"""Of the bytes of a frame."""
PIECE_BYTES = 1024 * 1024
INLINE_BYTES = 64 * 1024
"""Inputs or outputs of so many bytes together come with their message."""

Name = Annotated[str, msgspec.Meta(min_length=1, max_length=255)]
Count = Annotated[int, msgspec.Meta(ge=0, le=1 << 62)]
Shape: TypeAlias = tuple[int, ...] | None


class EngineGroup(msgspec.Struct, frozen=True, array_like=True):
    """The engines of one backend of a node.

    Attributes:
        backend: its name.
        formats: of code objects that they run.
        engines: how many calls they run at the same time.
        free: how many more they would begin now.
    """

    backend: Name
    formats: tuple[Name, ...]
    engines: Count
    free: Count


class Load(msgspec.Struct, frozen=True, array_like=True):
    """What a node has and does.

    Attributes:
        groups: its engines.
        received: calls that it got from the reader of this; what was sent later is not in `free`.
        waiting: calls that wait there for engines.
    """

    groups: tuple[EngineGroup, ...] = ()
    received: Count = 0
    waiting: Count = 0


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
    """The node shuts down, and is no member any more."""


class Define(msgspec.Struct, frozen=True, array_like=True, tag="define"):
    """A function.

    Attributes:
        function: number that calls name it by.
        tenant: whose it is.
        spec: its record.
        fused: the same, if it is made of others; then `spec` is None.
        blobs: digests and sizes in bytes of all blobs that it needs.
    """

    function: Count
    tenant: Name
    spec: FunctionSpec | None
    fused: FusedFunction | None
    blobs: dict[Digest, Count]


class Undefine(msgspec.Struct, frozen=True, array_like=True, gc=False, tag="undefine"):
    """No later call names a function."""

    function: Count


class WireItem(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """An item: name, key, where its bytes are, its type.

    Attributes:
        region: that has the bytes: of the sender, or if negative of the receiver; 0 is the frame.
        offset, size: in the region, in bytes.
    """

    name: str
    key: Annotated[int, msgspec.Meta(ge=0, lt=1 << 32)]
    region: int
    offset: Count
    size: Count
    dtype: str | None = None
    shape: Shape = None


class WireSet(msgspec.Struct, frozen=True, array_like=True):
    """A set."""

    name: str
    items: Annotated[tuple[WireItem, ...], msgspec.Meta(min_length=1)]
    dtype: str | None = None
    shape: Shape = None


WireSets: TypeAlias = tuple[WireSet | None, ...]


class RegionSize(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A region that a message refers to, and its size in bytes."""

    region: Annotated[int, msgspec.Meta(ge=1)]
    size: Annotated[int, msgspec.Meta(ge=1, le=1 << 48)]


class Run(msgspec.Struct, frozen=True, array_like=True, tag="run"):
    """Run one instance.

    Attributes:
        call: number of the call, unique on the connection.
        function: see `Define`.
        inputs: its sets.
        regions: of the sender, that items are in.
        deadline_s: seconds from now.
        priority: among the calls of its tenant.
        invocation: id of the invocation, for idempotency keys.
        attempt: of the composition, from 1.
    """

    call: Count
    function: Count
    inputs: WireSets
    regions: tuple[RegionSize, ...]
    deadline_s: Annotated[float, msgspec.Meta(gt=0, lt=1e9)]
    priority: int = 0
    origin: Origin | None = None
    invocation: str = ""
    attempt: Count = 1


class StopRun(msgspec.Struct, frozen=True, array_like=True, gc=False, tag="stop"):
    """The result of a call is not needed; it is answered all the same."""

    call: Count


class Done(msgspec.Struct, frozen=True, array_like=True, tag="done"):
    """A call gave its outputs.

    Attributes:
        run_ns: how long it was on its engine.
        engine: which that was.
        printed: lines that the function wrote.
    """

    call: Count
    outputs: WireSets
    regions: tuple[RegionSize, ...]
    load: Load
    run_ns: Count = 0
    engine: str = ""
    stages: dict[str, int] = {}
    printed: tuple[PrintedLine, ...] = ()


class Failed(msgspec.Struct, frozen=True, array_like=True, tag="failed"):
    """A call failed.

    Attributes:
        refused: the node did not begin it; another one may.
        gone: regions of the receiver that the call named and that it no longer holds.
    """

    call: Count
    error: ErrorRecord
    load: Load
    refused: bool = False
    run_ns: Count = 0
    engine: str = ""
    printed: tuple[PrintedLine, ...] = ()
    gone: tuple[int, ...] = ()


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
    """

    number: Count
    content: bytes
    regions: Annotated[tuple[RegionSize, ...], msgspec.Meta(max_length=65536)] = ()


class Reply(msgspec.Struct, frozen=True, array_like=True, tag="reply"):
    """The answer; its parts are those of the question."""

    number: Count
    content: bytes
    regions: Annotated[tuple[RegionSize, ...], msgspec.Meta(max_length=65536)] = ()


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
