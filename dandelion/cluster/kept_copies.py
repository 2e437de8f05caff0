"""The copies of asynchronous invocations that a node has: pure, for one thread.

A node writes what it accepts to a **journal**, and every voter has a copy of it. A journal has one
**holder**, at first the node that began it; only the holder runs its invocations. When the holder
is gone, another node asks the voters to `prepare` a higher ballot. A voter that promised one
refuses what is written under lower ones. A majority that promised knows everything that was
acknowledged before, and from then on the earlier holder can have nothing acknowledged. So each
invocation ends once, also if its first holder was only slow.

Of two versions of a record the one with the higher mark is newer: ballot, then step. What is
dropped leaves its id for a while, so that a voter that has missed this does not bring it back.

Copies of what other nodes hold are bounded (`CopyLimits`). What exceeds the bound is *left out*:
the voter reports it, and the holder offers it again later. What is acknowledged is stored by a
majority all the same. A journal that was taken over has the bound twice, so that the loss of a node
is not made worse by nodes that are full. A change that needs no more bytes is always taken.

Source: Lamport, "Paxos Made Simple", 2001; a journal is a set of independent decisions.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field

import msgspec

from dandelion.asynchronous.records import Ballot, KeptMark, KeptRecord, KeptState
from dandelion.asynchronous.store import Part

DROPPED_LIMIT = 100_000
JOURNALS_LIMIT = 10_000
"""Journals without records beyond these are forgotten, the oldest first."""

Version = tuple[Ballot, int]
Before = dict[str, KeptRecord | None]
"""What was here of some invocations before something was written, by id."""


def holder_of(ballot: Ballot) -> str:
    """Return the name of the node that gave a ballot."""
    return ballot[1].rpartition("#")[0]


def first_ballot(journal: str) -> Ballot:
    """Return the ballot of a journal's first holder: a journal is ``NODE#LIFE#NUMBER``."""
    return 0, journal.rpartition("#")[0]


def node_of(journal: str) -> str:
    """Return the name of the node that began a journal: its first holder."""
    return journal.rsplit("#", 2)[0]


def data_part(record: KeptRecord) -> Part | None:
    """Return which data belongs to a record."""
    if not record.state.has_ended:
        return Part.INPUTS
    return Part.RESULT if record.state is KeptState.SUCCEEDED else None


class Offered(msgspec.Struct, frozen=True, array_like=True):
    """A record that a holder has, to one that may lack it.

    Attributes:
        data: as in its mark.
        size_bytes: of its inputs or its result.
    """

    id: str
    version: Version
    data: str
    size_bytes: int = 0


@dataclass(frozen=True, slots=True)
class CopyLimits:
    """How many copies of what other nodes hold a node keeps.

    Attributes:
        number: of invocations.
        total_bytes: of their inputs and results.
    """

    number: int = 100_000
    total_bytes: int = 4 << 30


class CopyRoom:
    """How much more a node keeps of one journal of another node.

    Attributes:
        number: invocations.
        free_bytes: of inputs and results.
    """

    __slots__ = ("free_bytes", "number")

    def __init__(self, number: int, free_bytes: int) -> None:
        self.number, self.free_bytes = number, free_bytes

    def take(self, size_bytes: int, known: KeptRecord | None) -> bool:
        """Take room for a version.

        Args:
            size_bytes: of the data that is kept with it.
            known: the version that it replaces, if there is one.

        Returns:
            Whether there is enough.
        """
        new = known is None
        more_bytes = size_bytes - (0 if known is None else known.kept_bytes)
        if (new and self.number <= 0) or (more_bytes > 0 and more_bytes > self.free_bytes):
            return False
        self.number -= new
        self.free_bytes -= more_bytes
        return True


@dataclass(slots=True)
class _Journal:
    """What is here of a journal."""

    ids: dict[str, None] = field(default_factory=dict)
    kept_bytes: int = 0


class KeptCopies:
    """All copies of a node, its own invocations included.

    Args:
        limits: of copies of what other nodes hold.

    Attributes:
        records: by id; each has its mark.
        promised: the highest ballot of each journal that is known here.
        kept_bytes: of the inputs and results of all records.
    """

    def __init__(self, limits: CopyLimits | None = None) -> None:
        self._limits = limits or CopyLimits()
        self.records: dict[str, KeptRecord] = {}
        self.promised: OrderedDict[str, Ballot] = OrderedDict()
        self.kept_bytes = 0
        self._journals: dict[str, _Journal] = {}
        self._keys: dict[tuple[str, str], dict[str, None]] = {}
        self._dropped: OrderedDict[str, tuple[Version, str]] = OrderedDict()

    def ids(self, journal: str) -> list[str]:
        """Return the ids of a journal."""
        found = self._journals.get(journal)
        return [] if found is None else list(found.ids)

    def is_empty(self, journal: str) -> bool:
        """Whether nothing of a journal is here."""
        return journal not in self._journals

    def journals(self) -> Iterator[tuple[str, Ballot]]:
        """Yield the journals that have records, with the ballots of their holders."""
        for journal in list(self._journals):
            yield journal, self.ballot(journal)

    def ballot(self, journal: str) -> Ballot:
        """Return the highest ballot of a journal."""
        return self.promised.get(journal, first_ballot(journal))

    def with_key(self, tenant: str, key: str) -> KeptRecord | None:
        """Find the invocation of an idempotency key; of several the one that is newest."""
        found = [self.records[id_] for id_ in self._keys.get((tenant, key), ())]
        return max(found, key=lambda record: (record.created_s, record.id), default=None)

    def room(self, journal: str, held: Collection[str]) -> CopyRoom:
        """Return how much more this node keeps of a journal that another node holds.

        Args:
            journal: of the other node.
            held: the journals that this node holds, which do not count.
        """
        number, size_bytes = len(self.records), self.kept_bytes
        for name in held:
            mine = self._journals.get(name)
            if mine is not None:
                number -= len(mine.ids)
                size_bytes -= mine.kept_bytes
        times = 2 if self.ballot(journal)[0] else 1
        limits = self._limits
        return CopyRoom(limits.number * times - number, limits.total_bytes * times - size_bytes)

    # --- ballots ----------------------------------------------------------------------------------

    def prepare(self, journal: str, ballot: Ballot) -> bool:
        """Promise to refuse lower ballots; False if a higher one was promised."""
        return ballot > self.ballot(journal) and self.accept(journal, ballot)

    def accept(self, journal: str, ballot: Ballot) -> bool:
        """Whether what is written under a ballot is taken."""
        if ballot < self.ballot(journal):
            return False
        self.promised[journal] = ballot
        self.promised.move_to_end(journal)
        if len(self.promised) > JOURNALS_LIMIT:
            for name in self.promised:
                if name not in self._journals:
                    del self.promised[name]
                    break
        return True

    # --- records ----------------------------------------------------------------------------------

    def put(self, record: KeptRecord) -> bool:
        """Take a version of a record; False if a newer one is here, or it was dropped since."""
        version = mark_of(record).version
        known = self.records.get(record.id)
        if known is not None and mark_of(known).version >= version:
            return False
        if record.id in self._dropped:
            if self._dropped[record.id][0] > version:
                return False
            del self._dropped[record.id]
        self._replace(record)
        return True

    def drop(self, journal: str, id_: str, version: Version) -> bool:
        """Drop a record; False if a newer version of it is here."""
        known = self.records.get(id_)
        if known is not None and mark_of(known).version > version:
            return False
        self._dropped[id_] = version, journal
        if len(self._dropped) > DROPPED_LIMIT:
            self._dropped.popitem(last=False)
        self._forget(id_)
        return True

    def restore(self, id_: str, failed: KeptRecord | None, before: KeptRecord | None) -> None:
        """Take back what the store could not write, if nothing newer is here.

        Args:
            id_: of the invocation.
            failed: the version that was put; None if it was dropped.
            before: what the store still has.
        """
        if self.records.get(id_) is not failed:
            return
        self._forget(id_)
        if before is not None:
            self._dropped.pop(id_, None)
            self._replace(before)

    def _replace(self, record: KeptRecord) -> None:
        journal = mark_of(record).journal
        known = self.records.get(record.id)
        if known is not None and mark_of(known).journal == journal:
            self._count(journal, -known.kept_bytes)
        else:
            self._forget(record.id)
            self._journals.setdefault(journal, _Journal()).ids[record.id] = None
            if record.request.key:
                self._keys.setdefault((record.tenant, record.request.key), {})[record.id] = None
        self.records[record.id] = record
        self._count(journal, record.kept_bytes)

    def _count(self, journal: str, more_bytes: int) -> None:
        self._journals[journal].kept_bytes += more_bytes
        self.kept_bytes += more_bytes

    def _forget(self, id_: str) -> None:
        record = self.records.pop(id_, None)
        if record is None:
            return
        journal = mark_of(record).journal
        self._count(journal, -record.kept_bytes)
        del self._journals[journal].ids[id_]
        if not self._journals[journal].ids:
            del self._journals[journal]
        key = record.tenant, record.request.key
        if key in self._keys:
            del self._keys[key][id_]
            if not self._keys[key]:
                del self._keys[key]

    def dropped(self, journal: str) -> dict[str, Version]:
        """Return what was dropped of a journal."""
        return {id_: version for id_, (version, of) in self._dropped.items() if of == journal}

    # --- catching up ------------------------------------------------------------------------------

    def offer(self, journal: str) -> tuple[Offered, ...]:
        """Tell what a journal has here."""
        found = []
        for id_ in self.ids(journal):
            record = self.records[id_]
            mark = mark_of(record)
            found.append(Offered(id_, mark.version, mark.data, record.kept_bytes))
        return tuple(found)

    def gone(self, journal: str, offered: Iterable[Offered]) -> dict[str, Version]:
        """Return what is here and the holder of a journal does not have, with its versions."""
        known = {one.id for one in offered}
        missing = [id_ for id_ in self.ids(journal) if id_ not in known]
        return {id_: mark_of(self.records[id_]).version for id_ in missing}

    def lacks(self, offered: Iterable[Offered], room: CopyRoom) -> tuple[dict[str, bool], int]:
        """Compare with what the holder of a journal has.

        Returns:
            Ids that are missing or older here and for which there is room, with whether the data is
            missing as well; and for how many there is no room.
        """
        wanted: dict[str, bool] = {}
        left = 0
        for one in offered:
            record = self.records.get(one.id)
            if record is not None and mark_of(record).version >= one.version:
                continue
            if not room.take(one.size_bytes, record):
                left += 1
            elif record is None:
                wanted[one.id] = bool(one.data)
            else:
                wanted[one.id] = bool(one.data) and mark_of(record).data != one.data
        return wanted, left


def mark_of(record: KeptRecord) -> KeptMark:
    """Return the mark of a record that is a copy."""
    assert record.mark is not None, "all records of a cluster have marks"
    return record.mark


def newest(
    promises: Iterable[tuple[Iterable[KeptRecord], dict[str, Version]]],
) -> list[KeptRecord]:
    """Return what a majority has: the newest version of each record that was not dropped."""
    found: dict[str, KeptRecord] = {}
    dropped: dict[str, Version] = {}
    for records, gone in promises:
        for record in records:
            known = found.get(record.id)
            if known is None or mark_of(known).version < mark_of(record).version:
                found[record.id] = record
        for id_, version in gone.items():
            dropped[id_] = max(version, dropped.get(id_, version))
    return [
        record
        for record in found.values()
        if dropped.get(record.id, mark_of(record).version) <= mark_of(record).version
    ]
