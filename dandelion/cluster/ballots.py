"""The messages of `replication`, and what is stored of it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeAlias

import msgspec

BallotNumber: TypeAlias = tuple[int, str]
NO_BALLOT: BallotNumber = (0, "")


NOTHING = ""


class Command(msgspec.Struct, frozen=True, array_like=True):
    """A change of the catalogue.

    Attributes:
        id: unique in the cluster.
        kind: what it does, of the reader; ``NOTHING`` is never given to it.
        content: the same.
        blobs: digests and sizes of blobs that it needs.
        origin: the node that has them, beside those that have accepted it.
    """

    id: str
    kind: str
    content: bytes
    blobs: dict[str, int] = {}
    origin: str = ""


class Prepare(msgspec.Struct, frozen=True, array_like=True, tag="prepare"):
    """Promise to accept nothing lower at a place."""

    place: int
    ballot: BallotNumber


class Promise(msgspec.Struct, frozen=True, array_like=True, tag="promise"):
    """The promise, and what was accepted there before."""

    place: int
    ballot: BallotNumber
    accepted: BallotNumber = NO_BALLOT
    command: Command | None = None


class Accept(msgspec.Struct, frozen=True, array_like=True, tag="accept"):
    """Accept a command at a place."""

    place: int
    ballot: BallotNumber
    command: Command


class Accepted(msgspec.Struct, frozen=True, array_like=True, tag="accepted"):
    """It is accepted."""

    place: int
    ballot: BallotNumber


class Outbid(msgspec.Struct, frozen=True, array_like=True, tag="outbid"):
    """A higher ballot was promised."""

    place: int
    ballot: BallotNumber


class Chosen(msgspec.Struct, frozen=True, array_like=True, tag="chosen"):
    """Commands that were chosen, from a place on."""

    place: int
    commands: tuple[Command, ...]


class CatchUp(msgspec.Struct, frozen=True, array_like=True, tag="catch-up"):
    """Send the commands from a place on."""

    place: int


class SnapshotAt(msgspec.Struct, frozen=True, array_like=True, tag="snapshot-at"):
    """The commands from a place on are not kept any more; here is what all before it have made.

    Attributes:
        place: number of the commands that are in it.
        parts: digests and sizes of its parts in bytes; they are fetched as blobs.
    """

    place: int
    parts: tuple[tuple[str, int], ...]


class Recover(msgspec.Struct, frozen=True, array_like=True, tag="recover"):
    """A voter has lost its memory: what do you have? The number is another after each start."""

    number: int


class Recovered(msgspec.Struct, frozen=True, array_like=True, tag="recovered"):
    """How many commands a voter has.

    Attributes:
        number: of the question.
        lost: it has lost its own memory.
        fresh: it has not voted since it was started, and has stored nothing.
        life: its own number, which is another one after each start.
        cleared: it knows that there is nothing that the one that asks has to remember.
    """

    number: int
    lost: bool
    length: int
    fresh: bool
    life: int
    cleared: bool


BallotMessage: TypeAlias = (
    Prepare
    | Promise
    | Accept
    | Accepted
    | Outbid
    | Chosen
    | CatchUp
    | SnapshotAt
    | Recover
    | Recovered
)


class SavedVote(msgspec.Struct, frozen=True, array_like=True, tag="vote"):
    """What has to be stored of a voter, for one place."""

    place: int
    promised: BallotNumber
    accepted: BallotNumber
    command: Command | None


class SavedCommand(msgspec.Struct, frozen=True, array_like=True, tag="command"):
    """A chosen command."""

    place: int
    command: Command


class SavedBase(msgspec.Struct, frozen=True, array_like=True, tag="base"):
    """The commands before a place are not stored any more: the catalogue has carried them out."""

    place: int


Saved: TypeAlias = SavedBase | SavedVote | SavedCommand


_ENCODER = msgspec.msgpack.Encoder()
_MESSAGES: msgspec.msgpack.Decoder[BallotMessage] = msgspec.msgpack.Decoder(BallotMessage)
_SAVED: msgspec.msgpack.Decoder[list[Saved]] = msgspec.msgpack.Decoder(list[Saved])


def encode_ballot(message: BallotMessage) -> bytes:
    """Write a message."""
    return _ENCODER.encode(message)


def encode_saved(records: Iterable[Saved]) -> bytes:
    """Write records to be stored together."""
    return _ENCODER.encode(list(records))


def decode_ballot(data: bytes) -> BallotMessage:
    """Read a message.

    Raises:
        msgspec.MsgspecError: it is not one.
    """
    return _MESSAGES.decode(data)


def decode_saved(data: bytes) -> list[Saved]:
    """Read stored records; raises as `decode_ballot`."""
    return _SAVED.decode(data)
