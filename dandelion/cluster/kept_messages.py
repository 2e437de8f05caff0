"""What nodes say to each other about asynchronous invocations, inside of `Question` and `Reply`.

============= ================= ================================================================
question      answer            meaning
============= ================= ================================================================
`AskLife`     `Life`            which start of the node this is
`Write`       `Written`         the holder of a journal has new versions; their data follows
`Offer`       `Wanted`          all that a journal has, to a voter that may lack something
`Prepare`     `Promise`         the asking node wants to be the holder of a journal
`ReadData`    `DataOf`          inputs or the result of a copy, as data
`Watch`       `OperationAnswer` this and the next three: operations of a caller
`FetchResult` `OperationAnswer` the result is data
`CancelKept`  `OperationAnswer`
`ListKept`    `OperationAnswer`
`FindKey`     `Keyed`           which invocation of the other node's copies has an idempotency key
============= ================= ================================================================

Any question may be answered with a `Refusal`. Questions and answers have tags, so a message of one
kind is never taken for another one, and one that this version lacks is an error. They belong
to `messages.VERSION`: nodes whose messages differ refuse each other before the first of these.
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
from dandelion.cluster.call_messages import Count
from dandelion.cluster.handshake import BadPeer
from dandelion.cluster.kept_copies import Offered, Version
from dandelion.errors import ErrorRecord

T = TypeVar("T", bound=msgspec.Struct)
Wait = Annotated[float, msgspec.Meta(ge=0, le=3600)]


class AskLife(msgspec.Struct, frozen=True, tag="life"):
    """Ask which start of the node this is."""


class Life(msgspec.Struct, frozen=True, tag="life"):
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


class Written(msgspec.Struct, frozen=True, tag="written"):
    """They are stored, but for those that were left out.

    Attributes:
        refused: a higher ballot that was promised; then nothing was stored.
        problem: why they could not be stored.
        left: ids of invocations that were left out, since this node keeps enough copies.
        number, free_bytes: for how much more it has room.
    """

    refused: Ballot | None = None
    problem: str = ""
    left: tuple[str, ...] = ()
    number: int = 0
    free_bytes: int = 0


class Offer(msgspec.Struct, frozen=True, tag="offer"):
    """All that a journal has."""

    journal: str
    ballot: Ballot
    records: tuple[Offered, ...]


class Wanted(msgspec.Struct, frozen=True, tag="wanted"):
    """What is missing.

    Attributes:
        refused: a higher ballot that was promised.
        ids: what is to be sent, with whether the data is missing as well.
        left: how many more are missing, for which there is no room.
    """

    refused: Ballot | None = None
    ids: dict[str, bool] = {}
    left: Count = 0


class Prepare(msgspec.Struct, frozen=True, tag="prepare"):
    """Promise to refuse lower ballots."""

    journal: str
    ballot: Ballot


class Promise(msgspec.Struct, frozen=True, tag="promise"):
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


class DataOf(msgspec.Struct, frozen=True, tag="data"):
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


class Keyed(msgspec.Struct, frozen=True, tag="keyed"):
    """Its id and the digest of its request; empty if there is none."""

    id: str = ""
    digest: str = ""


class OperationAnswer(msgspec.Struct, frozen=True, tag="operation"):
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


class Refusal(msgspec.Struct, frozen=True, tag="refusal"):
    """The question cannot be answered."""

    reason: str


Operation: TypeAlias = Watch | FetchResult | CancelKept | ListKept
KeptQuestion: TypeAlias = AskLife | Write | Offer | Prepare | ReadData | FindKey | Operation

KeptAnswer: TypeAlias = (
    Life | Written | Wanted | Promise | DataOf | Keyed | OperationAnswer | Refusal
)

_QUESTIONS: msgspec.msgpack.Decoder[KeptQuestion] = msgspec.msgpack.Decoder(KeptQuestion)
_ANSWERS: msgspec.msgpack.Decoder[KeptAnswer] = msgspec.msgpack.Decoder(KeptAnswer)
_ERRORS = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)


def encode_kept(message: KeptQuestion | KeptAnswer) -> bytes:
    """Write a message."""
    return msgspec.msgpack.encode(message)


def decode_question(content: bytes) -> KeptQuestion:
    """Read a question.

    Raises:
        BadPeer: it is not one of this version.
    """
    try:
        return _QUESTIONS.decode(content)
    except _ERRORS as error:
        raise BadPeer(f"a question cannot be read: {error}") from None


def decode_answer(content: bytes, kind: type[T]) -> T:
    """Read an answer.

    Raises:
        BadPeer: it is not one of that kind; the other node could not give it.
    """
    try:
        answer = _ANSWERS.decode(content)
    except _ERRORS as error:
        raise BadPeer(f"its answer cannot be read: {error}") from None
    if isinstance(answer, Refusal):
        raise BadPeer(f"it did not answer: {answer.reason[:500]}")
    if not isinstance(answer, kind):
        raise BadPeer(f"it answered with {type(answer).__name__}, not {kind.__name__}")
    return answer
