"""What a node and a frontend process say to each other; see the package's text.

The node sends `Open` first; the frontend answers `Ready` when it takes connections. Requests of a
frontend carry a number that is unique on the link, and their answers carry it too. The number of a
`Lease`, and of an answer that names memory, stands for that memory until it is in a `Release`.
"""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from dandelion.asynchronous.records import KeptRequest, KeptState
from dandelion.errors import ErrorRecord
from dandelion.frontend_process.query_messages import Query
from dandelion.frontend_process.wire import Blob, WireSet, WireSets
from dandelion.namespaces import DEFAULT_TENANT
from dandelion.settings import Settings
from dandelion.tokens import TokenRecord
from dandelion.trace_context import InvocationSpan

# --- from a frontend ------------------------------------------------------------------------------


class Ready(msgspec.Struct, frozen=True, array_like=True, tag="ready"):
    """The frontend takes connections."""


class Part(msgspec.Struct, frozen=True, array_like=True, gc=False, tag="part"):
    """Some items of a set of an invocation or a result; its `Submit` or `Ended` follows.

    The items of one set may come in several parts.
    """

    number: int
    set: WireSet


class Submit(msgspec.Struct, frozen=True, array_like=True, gc=False, tag="submit"):
    """Invoke; answered by `Ended` or `Failed`. `sets` has all sets, without the items of parts."""

    number: int
    name: str
    version: int | None
    deadline_s: float | None
    priority: int
    sets: WireSets
    tenant: str = DEFAULT_TENANT
    span: InvocationSpan | None = None


class Cancel(msgspec.Struct, frozen=True, array_like=True, gc=False, tag="cancel"):
    """Cancel an invocation, or drop its parts. Its answer, if there is one, is not read."""

    number: int


class Lease(msgspec.Struct, frozen=True, array_like=True, gc=False, tag="lease"):
    """Ask for memory of the arena; answered by `Leased` or `Failed`.

    Attributes:
        size: in bytes.
        ahead: nothing waits for it, so the answer may come with the next one.
    """

    number: int
    size: int
    ahead: bool = False


class WatchKept(msgspec.Struct, frozen=True, array_like=True, tag="watch"):
    """Ask about an asynchronous invocation, a `Watched`."""

    id: str
    after: str
    wait_s: float
    end: bool


class CancelKept(msgspec.Struct, frozen=True, array_like=True, tag="cancel"):
    """End or forget an asynchronous invocation; the answer is a `KeptView`."""

    id: str


class ListKept(msgspec.Struct, frozen=True, array_like=True, tag="list"):
    """Ask for some asynchronous invocations, a `KeptPage`."""

    state: KeptState | None
    after: str
    limit: int


KeptQuery: TypeAlias = WatchKept | CancelKept | ListKept


class Keep(msgspec.Struct, frozen=True, array_like=True, gc=False, tag="keep"):
    """Accept an asynchronous invocation; answered by `Answered` with a `KeptView`, or `Failed`.

    `sets` are as of `Submit`.
    """

    number: int
    request: KeptRequest
    sets: WireSets
    tenant: str


class AskKept(msgspec.Struct, frozen=True, array_like=True, gc=False, tag="ask_kept"):
    """Ask about asynchronous invocations; answered by `Answered` or `Failed`.

    It may wait for long, with neither a thread nor memory of the arena. `Cancel` ends it.
    """

    number: int
    query: KeptQuery
    tenant: str


class FetchKept(msgspec.Struct, frozen=True, array_like=True, gc=False, tag="fetch_kept"):
    """Ask for the result of an asynchronous invocation; answered as `Submit`."""

    number: int
    id: str
    tenant: str


class Release(msgspec.Struct, frozen=True, array_like=True, gc=False, tag="release"):
    """Give memory back."""

    numbers: tuple[int, ...]


class LinesDropped(msgspec.Struct, frozen=True, array_like=True, tag="lines_dropped"):
    """Count lines of the access log that were lost."""

    count: int


class Ask(msgspec.Struct, frozen=True, array_like=True, tag="ask"):
    """Ask a query; answered by `Answered` or `Failed`."""

    number: int
    query: Query


# --- from the node --------------------------------------------------------------------------------


class Open(msgspec.Struct, frozen=True, array_like=True, tag="open"):
    """Begin to serve.

    Attributes:
        settings: of the node; limits of connections are this frontend's share.
        host: what the server was asked to listen on.
        drain_s: how long requests may take after `Drain`, in seconds.
        log_level: of the node, as `logging` numbers it.
        status_offset: of the node's status in the arena, see `status`.
        tokens: what callers may do; None without a file of tokens.
    """

    settings: Settings
    host: str
    drain_s: int
    log_level: int
    status_offset: int
    tokens: tuple[TokenRecord, ...] | None = None


class Reload(msgspec.Struct, frozen=True, array_like=True, tag="reload"):
    """Use these tokens from now on, and read other files again.

    Attributes:
        tokens: None without a file of tokens.
        files: whether to read the certificate, and to open the access log again.
    """

    tokens: tuple[TokenRecord, ...] | None
    files: bool


class Drain(msgspec.Struct, frozen=True, array_like=True, tag="drain"):
    """Take no more connections, end the requests under way, and leave."""


class Ended(msgspec.Struct, frozen=True, array_like=True, gc=False, tag="ended"):
    """An invocation gave its outputs. `sets` has all sets, without the items of parts."""

    number: int
    id: str
    sets: WireSets


class Leased(msgspec.Struct, frozen=True, array_like=True, gc=False, tag="leased"):
    """Memory of the arena, with any content."""

    number: int
    offset: int


class Answered(msgspec.Struct, frozen=True, array_like=True, gc=False, tag="answered"):
    """The answer of a query, in MessagePack."""

    number: int
    answer: Blob


class Failed(msgspec.Struct, frozen=True, array_like=True, tag="failed"):
    """What was asked for cannot be had; `id` is that of the invocation, if there was one."""

    number: int
    id: str
    error: ErrorRecord


FromFrontend: TypeAlias = (
    Ready
    | Part
    | Submit
    | Cancel
    | Lease
    | Release
    | LinesDropped
    | Ask
    | Keep
    | AskKept
    | FetchKept
)
FromNode: TypeAlias = Open | Reload | Drain | Part | Ended | Leased | Answered | Failed

from_frontend: msgspec.msgpack.Decoder[list[FromFrontend]] = msgspec.msgpack.Decoder(
    list[FromFrontend]
)
from_node: msgspec.msgpack.Decoder[list[FromNode]] = msgspec.msgpack.Decoder(list[FromNode])
