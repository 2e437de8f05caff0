"""What is stored and shown of an asynchronous invocation.

A `KeptRecord` is stored; it has no data of the invocation. A `KeptView` is what its tenant sees. A
`KeptEvent` is one line of its history, which is in memory only. Times are seconds since the epoch.
"""

from __future__ import annotations

import enum
import re
from typing import TypeAlias

import msgspec

from dandelion.errors import DandelionError, ErrorRecord, InvalidInput
from dandelion.markup import code, dim, heading, page

KEY_LIMIT = 255  # characters of an idempotency key
_KEY = re.compile(r"[\x21-\x7e]+")


class KeptState(enum.Enum):
    """The state of an asynchronous invocation."""

    WAITING = "waiting"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def has_ended(self) -> bool:
        """Whether it does not change any more."""
        return self not in (KeptState.WAITING, KeptState.RUNNING)


class CallbackState(enum.Enum):
    """What became of a callback."""

    WAITING = "waiting"
    DELIVERED = "delivered"
    GIVEN_UP = "given_up"


class CallbackRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """A request to a URL of the caller, at the end.

    Attributes:
        url: where it is sent.
        state: whether it was delivered.
        attempts: how often it was sent.
        due_s: when it is sent next.
        problem: why the last attempt failed.
    """

    url: str
    state: CallbackState = CallbackState.WAITING
    attempts: int = 0
    due_s: float = 0.0
    problem: str = ""


class KeptRequest(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """What a caller asks for, besides the sets.

    Attributes:
        name, version: what to invoke.
        deadline_s: of each attempt, in seconds; None is the node's default.
        priority: among waiting calls of the tenant.
        key: the caller's idempotency key; empty if there is none.
        callback: a URL that is called at the end; empty if there is none.
    """

    name: str
    version: int | None = None
    deadline_s: float | None = None
    priority: int = 0
    key: str = ""
    callback: str = ""


Ballot: TypeAlias = tuple[int, str]
"""A number, and the node that gave it: the higher one holds."""


class KeptMark(msgspec.Struct, frozen=True, array_like=True):
    """Which version of a record this is, among the nodes of a cluster.

    Attributes:
        journal: of the node that accepted the invocation.
        ballot: under which its holder wrote this.
        step: counts what that holder wrote.
        data: names the inputs or the result that belong to it; empty if there are none.
    """

    journal: str
    ballot: Ballot
    step: int
    data: str = ""

    @property
    def version(self) -> tuple[Ballot, int]:
        """Of two versions of a record the higher one is newer."""
        return self.ballot, self.step


class KeptRecord(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """One asynchronous invocation, as it is stored.

    Attributes:
        id: 128 random bits, hexadecimal.
        tenant: whose it is.
        request: what was asked for.
        digest: SHA-256 of request and inputs, if there is a key.
        state: WAITING also while it runs: after the end of the process it has to be run again.
        attempts: how often it was begun. An attempt counts before it begins.
        created_s, started_s, ended_s: 0 before that.
        input_bytes, result_bytes: what the store keeps.
        error: why it failed.
        callback: what becomes of it.
        mark: its version, in a cluster.
    """

    id: str
    tenant: str
    request: KeptRequest
    state: KeptState = KeptState.WAITING
    digest: str = ""
    attempts: int = 0
    created_s: float = 0.0
    started_s: float = 0.0
    ended_s: float = 0.0
    input_bytes: int = 0
    result_bytes: int = 0
    error: ErrorRecord | None = None
    callback: CallbackRecord | None = None
    mark: KeptMark | None = None

    @property
    def kept_bytes(self) -> int:
        """Bytes that the store keeps for it."""
        return self.result_bytes if self.state.has_ended else self.input_bytes

    def begun(self, now_s: float) -> KeptRecord:
        """Return it with one more attempt."""
        return msgspec.structs.replace(self, attempts=self.attempts + 1, started_s=now_s)

    def unbegun(self) -> KeptRecord:
        """Return it without its last attempt, which did not begin."""
        return msgspec.structs.replace(self, attempts=self.attempts - 1, started_s=0.0)

    def ended(self, state: KeptState, error: DandelionError | None, now_s: float) -> KeptRecord:
        """Return it after its end without a result."""
        record = None if error is None else error.record()
        return msgspec.structs.replace(
            self, state=state, ended_s=now_s, result_bytes=0, error=record
        )


class Progress(msgspec.Struct, frozen=True, omit_defaults=True):
    """How far an invocation is. Applications are those of the invoked composition itself.

    Attributes:
        applications: how many there are.
        applications_ended: how many have ended.
        instances_ended, instances_in_flight: of all functions, also of nested compositions.
    """

    applications: int = 0
    applications_ended: int = 0
    instances_ended: int = 0
    instances_in_flight: int = 0


class OutputSize(msgspec.Struct, frozen=True):
    """How large an output set is."""

    items: int
    size_bytes: int


class KeptEvent(msgspec.Struct, frozen=True, omit_defaults=True):
    """One line of the history of an invocation.

    Attributes:
        id: ``RUN-NUMBER``; the run is that of the node's process.
        kind: ``state``, ``progress`` or ``application``.
        state: of the invocation.
        application: the one that ended.
        outputs: output sets of the invocation that are complete since then.
        progress: at that time.
        error: why it failed.
    """

    id: str
    kind: str
    state: KeptState
    application: str = ""
    outputs: dict[str, OutputSize] = {}
    progress: Progress | None = None
    error: ErrorRecord | None = None


class KeptView(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """What the tenant of an invocation sees of it.

    Attributes:
        id, name, version, state, attempts, created_s, started_s, ended_s, error: as in the record.
        expires_s: when it is forgotten; 0 before its end.
        result_bytes: of the stored result.
        progress: None unless it runs.
        callback: what becomes of it.
    """

    id: str
    name: str
    version: int | None
    state: KeptState
    attempts: int
    created_s: float
    started_s: float = 0.0
    ended_s: float = 0.0
    expires_s: float = 0.0
    result_bytes: int = 0
    error: ErrorRecord | None = None
    progress: Progress | None = None
    callback: CallbackRecord | None = None

    def _repr_html_(self) -> str:
        found = self.progress
        return page(
            heading("invocation", self.name, self.state.value, self.id),
            None if found is None else dim(_progress_text(found)),
            None if self.error is None else code(f"{self.error.type}: {self.error.message}"),
        )


def _progress_text(found: Progress) -> str:
    return f"{found.instances_ended} calls ended, {found.instances_in_flight} under way"


class Watched(msgspec.Struct, frozen=True):
    """What a watcher of an invocation is told: its view, and what happened since the last time."""

    view: KeptView
    events: tuple[KeptEvent, ...] = ()


class KeptPage(msgspec.Struct, frozen=True):
    """Some invocations, newest first; `after` continues the list, None at its end."""

    invocations: tuple[KeptView, ...]
    after: str | None = None


def check_key(where: str, key: str) -> None:
    """Refuse a text that is not a valid idempotency key.

    Raises:
        InvalidInput: it is longer than 255 characters, or has others than visible ASCII.
    """
    if len(key) > KEY_LIMIT or _KEY.fullmatch(key) is None:
        message = f"{key[:40]!r} is not a valid idempotency key"
        raise InvalidInput(where, message, f"use 1 to {KEY_LIMIT} visible ASCII characters")
