"""What nodes say to each other about asynchronous invocations, inside of `Question` and `Reply`.

============= ============ =====================================================================
question      answer       meaning
============= ============ =====================================================================
`AskLife`     `Life`       which start of the node this is
`Write`       `Written`    the holder of a journal has new versions; their data follows
`Offer`       `Wanted`     all that a journal has, to a voter that may lack something
`Prepare`     `Promise`    the asker wants to be the holder of a journal
`ReadData`    `DataOf`     inputs or the result of a copy, as data
`Watch`       `Told`       the next four: what a caller of the asker wants to know or have done
`FetchResult` `Told`       the result is data
`CancelKept`  `Told`
`ListKept`    `Told`
`FindKey`     `Keyed`      which invocation of the asked node's copies has an idempotency key
============= ============ =====================================================================
"""

from __future__ import annotations

from typing import Annotated, TypeAlias, TypeVar

import msgspec

from dandelion.asynchronous.records import (
    Ballot,
    KeptPage,
    KeptRecord,
    KeptState,
    KeptView,
    Watched,
)
from dandelion.asynchronous.store import Part
from dandelion.cluster.handshake import BadPeer
from dandelion.cluster.kept_copies import Offered, Version
from dandelion.cluster.messages import Count
from dandelion.errors import ErrorRecord

T = TypeVar("T")
Wait = Annotated[float, msgspec.Meta(ge=0, le=3600)]


class AskLife(msgspec.Struct, frozen=True, tag="life"):
    """Ask which start of the node this is."""


class Life(msgspec.Struct, frozen=True):
    """Another text after each start."""

    life: str


class CopyStep(msgspec.Struct, frozen=True, array_like=True):
    """One version.

    Attributes:
        id: of the invocation.
        record: with its mark; None if it was dropped.
        version: of the drop.
        part: which data comes with it; the pieces of all steps follow each other.
        size: of that data, in bytes.
    """

    id: str
    record: KeptRecord | None
    version: Version
    part: Part | None = None
    size: Count = 0


class Write(msgspec.Struct, frozen=True, tag="write"):
    """New versions, in order."""

    journal: str
    ballot: Ballot
    steps: tuple[CopyStep, ...]


class Written(msgspec.Struct, frozen=True):
    """They are stored.

    Attributes:
        refused: a higher ballot that was promised; then nothing was stored.
        problem: why they could not be stored.
    """

    refused: Ballot | None = None
    problem: str = ""


class Offer(msgspec.Struct, frozen=True, tag="offer"):
    """All that a journal has."""

    journal: str
    ballot: Ballot
    records: tuple[Offered, ...]


class Wanted(msgspec.Struct, frozen=True):
    """What is missing, with whether the data is missing as well."""

    refused: Ballot | None = None
    ids: dict[str, bool] = {}


class Prepare(msgspec.Struct, frozen=True, tag="prepare"):
    """Promise to refuse lower ballots."""

    journal: str
    ballot: Ballot


class Promise(msgspec.Struct, frozen=True):
    """What a voter has of a journal.

    Attributes:
        refused: a higher ballot that was promised before.
        records: all that it has; `dropped`: what was dropped lately.
    """

    refused: Ballot | None = None
    records: tuple[KeptRecord, ...] = ()
    dropped: dict[str, Version] = {}


class ReadData(msgspec.Struct, frozen=True, tag="read"):
    """Send the data of a version."""

    id: str
    part: Part
    data: str


class DataOf(msgspec.Struct, frozen=True):
    """It follows, if it is there."""

    found: bool


class Watch(msgspec.Struct, frozen=True, tag="watch"):
    """See `dandelion.node.kept_views.KeptViews.watch`."""

    id: str
    tenant: str
    after: str = ""
    wait_s: Wait = 0.0
    end: bool = False


class FetchResult(msgspec.Struct, frozen=True, tag="result"):
    """See `dandelion.node.kept_service.KeptService.result`."""

    id: str
    tenant: str


class CancelKept(msgspec.Struct, frozen=True, tag="cancel"):
    """See `dandelion.node.kept_service.KeptService.cancel`."""

    id: str
    tenant: str


class ListKept(msgspec.Struct, frozen=True, tag="list"):
    """See `dandelion.node.kept_views.KeptViews.list`."""

    tenant: str
    state: KeptState | None
    after: str
    limit: int


class FindKey(msgspec.Struct, frozen=True, tag="key"):
    """Which invocation has an idempotency key?"""

    tenant: str
    key: str


class Keyed(msgspec.Struct, frozen=True):
    """Its id and the digest of its request; empty if there is none."""

    id: str = ""
    digest: str = ""


class Told(msgspec.Struct, frozen=True):
    """The answer to an operation; without any field the node does not have the invocation.

    Attributes:
        has_copy: it has a copy, so there is such an invocation.
    """

    watched: Watched | None = None
    view: KeptView | None = None
    page: KeptPage | None = None
    result: bool = False
    error: ErrorRecord | None = None
    has_copy: bool = False


Operation: TypeAlias = Watch | FetchResult | CancelKept | ListKept
Asked: TypeAlias = AskLife | Write | Offer | Prepare | ReadData | FindKey | Operation

_DECODER: msgspec.msgpack.Decoder[Asked] = msgspec.msgpack.Decoder(Asked)
_ERRORS = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)


def encode_kept(message: msgspec.Struct) -> bytes:
    """Write a message."""
    return msgspec.msgpack.encode(message)


def decode_asked(content: bytes) -> Asked:
    """Read a question.

    Raises:
        BadPeer: it is not one.
    """
    try:
        return _DECODER.decode(content)
    except _ERRORS as error:
        raise BadPeer(f"a question cannot be read: {error}") from None


def decode_answer(content: bytes, kind: type[T]) -> T:
    """Read an answer.

    Raises:
        BadPeer: it is not one; the other node could not give it.
    """
    try:
        return msgspec.msgpack.decode(content, type=kind)
    except _ERRORS as error:
        raise BadPeer(f"it did not answer: {error}") from None
