"""The copies of asynchronous invocations that a node has: pure, for one thread.

A node writes what it accepts to a **journal**, and every voter has a copy of it. A journal has one
**holder**, at first the node that began it; only the holder runs its invocations. When the holder
is gone, another node asks the voters to `prepare` a higher ballot. A voter that promised one
refuses what is written under lower ones. A majority that promised knows everything that was
acknowledged before, and from then on the earlier holder can have nothing acknowledged. So each
invocation ends once, also if its first holder was only slow.

Of two versions of a record the one with the higher mark is newer: ballot, then step. What is
dropped leaves its id for a while, so that a voter that has missed this does not bring it back.

Source: Lamport, "Paxos Made Simple", 2001; a journal is a set of independent decisions.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator

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


def data_part(record: KeptRecord) -> Part | None:
    """Return which data belongs to a record."""
    if not record.state.has_ended:
        return Part.INPUTS
    return Part.RESULT if record.state is KeptState.SUCCEEDED else None


class Offered(msgspec.Struct, frozen=True, array_like=True):
    """A record that a holder has, to one that may lack it."""

    id: str
    version: Version
    data: str


class KeptCopies:
    """All copies of a node, its own invocations included.

    Attributes:
        records: by id; each has its mark.
        promised: the highest ballot of each journal that is known here.
    """

    def __init__(self) -> None:
        self.records: dict[str, KeptRecord] = {}
        self.promised: OrderedDict[str, Ballot] = OrderedDict()
        self._journals: dict[str, dict[str, None]] = {}
        self._dropped: OrderedDict[str, tuple[Version, str]] = OrderedDict()

    def ids(self, journal: str) -> list[str]:
        """Return the ids of a journal."""
        return list(self._journals.get(journal, ()))

    def journals(self) -> Iterator[tuple[str, Ballot]]:
        """Yield the journals that have records, with the ballots of their holders."""
        for journal in list(self._journals):
            yield journal, self.ballot(journal)

    def ballot(self, journal: str) -> Ballot:
        """Return the highest ballot of a journal."""
        return self.promised.get(journal, first_ballot(journal))

    def with_key(self, tenant: str, key: str) -> KeptRecord | None:
        """Find the invocation of an idempotency key. Takes time in proportion to all records."""
        for record in self.records.values():
            if record.request.key == key and record.tenant == tenant:
                return record
        return None

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
        self.records[record.id] = record
        self._journals.setdefault(mark_of(record).journal, {})[record.id] = None
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
            self.records[id_] = before
            self._journals.setdefault(mark_of(before).journal, {})[id_] = None

    def _forget(self, id_: str) -> None:
        record = self.records.pop(id_, None)
        if record is None:
            return
        journal = mark_of(record).journal
        mine = self._journals[journal]
        del mine[id_]
        if not mine:
            del self._journals[journal]

    def dropped(self, journal: str) -> dict[str, Version]:
        """Return what was dropped of a journal."""
        return {id_: version for id_, (version, of) in self._dropped.items() if of == journal}

    # --- catching up ------------------------------------------------------------------------------

    def offer(self, journal: str) -> tuple[Offered, ...]:
        """Tell what a journal has here."""
        found = []
        for id_ in self.ids(journal):
            mark = mark_of(self.records[id_])
            found.append(Offered(id_, mark.version, mark.data))
        return tuple(found)

    def compare(
        self, journal: str, offered: Iterable[Offered]
    ) -> tuple[dict[str, bool], dict[str, Version]]:
        """Compare with what the holder of a journal has.

        Returns:
            Ids that are missing or older here, with whether the data is missing as well; and ids
            that the holder does not have, with the versions of them here.
        """
        wanted: dict[str, bool] = {}
        known = set()
        for one in offered:
            known.add(one.id)
            record = self.records.get(one.id)
            if record is None:
                wanted[one.id] = bool(one.data)
            elif mark_of(record).version < one.version:
                wanted[one.id] = bool(one.data) and mark_of(record).data != one.data
        gone = {id_: mark_of(self.records[id_]).version for id_ in self.ids(journal)}
        return wanted, {id_: version for id_, version in gone.items() if id_ not in known}


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
