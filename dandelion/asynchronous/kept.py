"""One kept invocation in the node's memory, and the books of what each tenant keeps."""

from __future__ import annotations

import enum
from collections.abc import Iterator, ValuesView
from dataclasses import dataclass, field

import msgspec

from dandelion.asynchronous.failures import KeptFull
from dandelion.asynchronous.records import KeptRecord, KeptState
from dandelion.errors import Overloaded


class KeptLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Limits of kept invocations.

    Attributes:
        running: at once on the node.
        number, total_bytes: that a tenant keeps, those under way included.
        keep_s: how long one is kept after its end.
        attempts: how often one is begun at most.
    """

    running: int
    number: int
    total_bytes: int
    keep_s: float
    attempts: int


class Phase(enum.Enum):
    """Where an invocation is; see the module's text."""

    ACCEPTING = "accepting"
    QUEUED = "queued"
    PREPARING = "preparing"
    RUNNING = "running"
    RETURNING = "returning"
    ENDING = "ending"
    ENDED = "ended"


@dataclass(slots=True, eq=False)
class Kept:
    """One invocation.

    Attributes:
        record: as it was last given to the store.
        phase: where it is.
        shown: as its tenant sees it; None before it is accepted.
        has_place: it counts as running.
        is_suspect: it was interrupted, and this would be its last attempt.
        cancelling: it was asked to end.
        unsaved: its end is not in the store.
        calling: its callback is being sent.
        bytes_: that it counts for its tenant.
        saves: how many steps of it are with the store.
    """

    record: KeptRecord
    phase: Phase
    shown: KeptRecord | None = None
    has_place: bool = False
    is_suspect: bool = False
    cancelling: bool = False
    unsaved: bool = False
    calling: bool = False
    bytes_: int = 0
    saves: int = 0

    @property
    def state(self) -> KeptState:
        """Its state, as its tenant sees it."""
        if self.shown is not None and self.shown.state.has_ended:
            return self.shown.state
        runs = self.has_place and self.phase in (Phase.RUNNING, Phase.ENDING)
        return KeptState.RUNNING if runs else KeptState.WAITING


@dataclass(slots=True)
class KeptTenant:
    """What one tenant keeps.

    Attributes:
        kept: by id, oldest first.
        ended: ids, in the order of their ends.
        keys: ids by idempotency key.
        bytes_: of all.
    """

    kept: dict[str, Kept] = field(default_factory=dict)
    ended: dict[str, None] = field(default_factory=dict)
    keys: dict[str, str] = field(default_factory=dict)
    bytes_: int = 0


class KeptBooks:
    """All kept invocations, by id and by tenant.

    Args:
        limits: that hold for each tenant.
    """

    def __init__(self, limits: KeptLimits) -> None:
        self._limits = limits
        self.all: dict[str, Kept] = {}
        self.tenants: dict[str, KeptTenant] = {}

    def values(self) -> ValuesView[Kept]:
        """All of them."""
        return self.all.values()

    def with_key(self, tenant: str, key: str) -> Kept | None:
        """Find the invocation of an idempotency key."""
        mine = self.tenants.get(tenant)
        id_ = mine.keys.get(key) if mine is not None and key else None
        return None if id_ is None else self.all[id_]

    def newest_first(self, tenant: str) -> Iterator[Kept]:
        """Give the invocations of a tenant that it may see."""
        mine = self.tenants.get(tenant)
        for kept in reversed(mine.kept.values()) if mine is not None else ():
            if kept.shown is not None:
                yield kept

    def usage(self, tenant: str) -> tuple[int, int]:
        """Return how many a tenant keeps, and their bytes."""
        mine = self.tenants.get(tenant)
        return (0, 0) if mine is None else (len(mine.kept), mine.bytes_)

    def add(self, kept: Kept) -> None:
        """Take a new one."""
        record = kept.record
        mine = self.tenants.setdefault(record.tenant, KeptTenant())
        self.all[record.id] = kept
        mine.kept[record.id] = kept
        if record.request.key:
            mine.keys[record.request.key] = record.id
        self.count(kept)

    def put_in_order(self, tenant: str) -> None:
        """Put the invocations of a tenant in order, since older ones may have been added."""
        mine = self.tenants.get(tenant)
        if mine is not None:
            by_age = sorted(mine.kept.values(), key=lambda k: (k.record.created_s, k.record.id))
            mine.kept = {kept.record.id: kept for kept in by_age}

    def count(self, kept: Kept) -> None:
        """Count the bytes of a changed record."""
        mine = self.tenants[kept.record.tenant]
        mine.bytes_ += kept.record.kept_bytes - kept.bytes_
        kept.bytes_ = kept.record.kept_bytes

    def end(self, kept: Kept) -> None:
        """Note that it may be forgotten from now on."""
        self.tenants[kept.record.tenant].ended[kept.record.id] = None

    def remove(self, kept: Kept) -> None:
        """Forget one."""
        record = kept.record
        mine = self.tenants[record.tenant]
        mine.bytes_ -= kept.bytes_
        del self.all[record.id], mine.kept[record.id]
        mine.ended.pop(record.id, None)
        if mine.keys.get(record.request.key) == record.id:
            del mine.keys[record.request.key]
        if not mine.kept:
            del self.tenants[record.tenant]

    def victims(self, tenant: str, number: int, size_bytes: int) -> list[Kept]:
        """Choose what is forgotten for something new: the oldest that ended, as many as necessary.

        Args:
            tenant: the one that would store more.
            number: how many more; with 0 only what is too much already is to be forgotten.
            size_bytes: how many bytes more; may be below 0.

        Raises:
            Overloaded, KeptFull: forgetting all that ended is not enough.
        """
        limits = self._limits
        mine = self.tenants.get(tenant) or KeptTenant()
        over = len(mine.kept) + number - limits.number
        over_bytes = mine.bytes_ + size_bytes - limits.total_bytes
        found = []
        for id_ in mine.ended:
            if over <= 0 and over_bytes <= 0:
                break
            found.append(self.all[id_])
            over -= 1
            over_bytes -= found[-1].bytes_
        label = f"tenant '{tenant}'"
        if number > 0 and over > 0:
            count = len(mine.kept) - len(mine.ended)
            raise Overloaded(count, limits.number, "kept invocations under way", label)
        if size_bytes > 0 and over_bytes > 0:
            raise KeptFull(label, size_bytes, max(0, size_bytes - over_bytes))
        return found
