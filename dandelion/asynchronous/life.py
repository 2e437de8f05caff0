"""The lives of all kept invocations: a pure state machine, events in, actions out.

No clock, no I/O, no lock. The store and the scheduler answer actions by events, in any order among
different invocations.

::

    submit -> ACCEPTING --stored--> QUEUED --place free--> PREPARING --stored--> RUNNING
                  |  '--stored, place free-------------------------------------^   |
                  '--store_failed--> (does not exist)                              |
    QUEUED <--stored-- RETURNING <--postponed--------------------------------------+
    ENDED <--stored-- ENDING <--finished, failed, cancel---------------------------'

* ACCEPTING, PREPARING, RETURNING and ENDING wait for the store. What a caller sees (`shown`) is
  what is stored: an invocation exists when its inputs are, and has succeeded when its result is.
* An attempt is counted in the store before it begins. After the end of the process everything that
  had not ended is QUEUED again. So each is run at least once, and one that ends the process each
  time is found out: after `attempts` it fails.
* Others that ran beside it were interrupted as often. So everything that begins its last attempt
  and was interrupted before begins **alone among such** (`Places`): only one that ends the
  process by itself can use up its attempts.
* The end of a process that closes in order is no interruption: `closing` takes the attempt back.
* If a result cannot be stored, the invocation fails with that error. If that cannot be stored
  either, it is shown all the same and stored later (`unsaved`), at the latest by `closing`.
* An attempt that the scheduler has no room for is taken back in the store, too. Then nothing of its
  tenant is tried for a while, and one at a time after that; other tenants go on.
* Places bound what runs at once. The line is fair to tenants (`waiting`).
* A tenant's oldest ended invocations are erased if it would keep too many, or too many bytes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from dandelion.asynchronous.actions import (
    Accepted,
    Action,
    Begin,
    Call,
    Changed,
    Erase,
    Refused,
    Save,
    Stop,
)
from dandelion.asynchronous.callbacks import LONGEST_PAUSE_S, after_attempt, first_due
from dandelion.asynchronous.failures import InterruptedTooOften, KeptFull, KeyReused
from dandelion.asynchronous.kept import Kept, KeptBooks, KeptLimits, Phase
from dandelion.asynchronous.places import Places
from dandelion.asynchronous.records import CallbackState, KeptRecord, KeptState
from dandelion.asynchronous.store import Part
from dandelion.asynchronous.waiting import DueTimes
from dandelion.errors import Cancelled, DandelionError


class KeptLives:
    """All kept invocations of a node. For one thread at a time.

    Args:
        limits: that hold.

    Attributes:
        places: which of them run, and which wait.
        books: all of them, by id and by tenant.
    """

    def __init__(self, limits: KeptLimits) -> None:
        self.limits = limits
        self.is_closing = False
        self.books = KeptBooks(limits)
        self.places = Places(limits.running)
        self._expiries = DueTimes()
        self._callbacks = DueTimes(2 * LONGEST_PAUSE_S)
        self._unsaved: set[str] = set()
        self._unerased: set[str] = set()
        self._outdated: dict[str, int] = {}  # how many saves of what was removed are not over
        self._actions: list[Action] = []

    def take(self) -> list[Action]:
        """Take the actions to carry out, in order."""
        actions, self._actions = self._actions, []
        return actions

    # --- questions --------------------------------------------------------------------------------

    def find(self, id_: str, tenant: str) -> Kept | None:
        """Find an invocation that its tenant may see."""
        kept = self.books.all.get(id_)
        if kept is None or kept.record.tenant != tenant or kept.shown is None:
            return None
        return kept

    def __len__(self) -> int:
        return len(self.books.all)

    def waits_for_time(self) -> bool:
        """Whether `tick` has something to do, now or later."""
        due = self._expiries or self._callbacks
        return bool(due or self._unsaved or self._unerased or len(self.places))

    # --- the caller -------------------------------------------------------------------------------

    def submit(self, record: KeptRecord, now_s: float) -> str:
        """Accept an invocation; return its id, or that of an earlier one with its key.

        Raises:
            KeyReused: the key belongs to another request.
            Overloaded, KeptFull: the tenant keeps too many, or too many bytes.
            Cancelled: the node is closing.
        """
        if self.is_closing:
            raise Cancelled("the node is shutting down")
        earlier = self.books.with_key(record.tenant, record.request.key)
        if earlier is not None:
            if earlier.record.digest != record.digest:
                raise KeyReused(record.request.key, earlier.record.id)
            return earlier.record.id
        self._make_room(record.tenant, 1, record.input_bytes)
        kept = Kept(record, Phase.ACCEPTING)
        self.books.add(kept)
        if self.places.may_begin(now_s) and not self.places.line:
            self.places.take(kept)
            kept.record = record.begun(now_s)
        self._save(kept, Part.INPUTS)
        return record.id

    def cancel(self, id_: str, now_s: float) -> None:
        """End an invocation, or forget it if it has ended."""
        kept = self.books.all[id_]
        if kept.phase is Phase.ENDED:
            self._forget(kept)
        elif kept.phase is Phase.QUEUED:
            self.places.leave(kept)
            self._end(kept, KeptState.CANCELLED, Cancelled("by its caller"), now_s)
        elif kept.phase is not Phase.ENDING and not kept.cancelling:
            kept.cancelling = True
            if kept.phase is Phase.RUNNING:
                self._actions.append(Stop(id_))

    # --- the store --------------------------------------------------------------------------------

    def stored(self, id_: str, now_s: float) -> None:
        """A `Save` is done."""
        kept = self._saved(id_)
        if kept is None:
            return
        if self.is_closing:
            return
        if kept.phase is Phase.ACCEPTING:
            self._actions.append(Accepted(id_))
            self._prepared(kept, now_s)
        elif kept.phase is Phase.PREPARING:
            self._prepared(kept, now_s)
        elif kept.phase is Phase.RETURNING:
            self._returned(kept, now_s)
        elif kept.phase is Phase.ENDING:
            self._ended(kept, now_s)
        elif kept.unsaved and not kept.saves:
            kept.unsaved = False
            self._unsaved.discard(id_)

    def _prepared(self, kept: Kept, now_s: float) -> None:
        kept.shown = kept.record
        if kept.cancelling:
            self._end(kept, KeptState.CANCELLED, Cancelled("by its caller"), now_s)
        elif kept.has_place:
            kept.phase = Phase.RUNNING
            self._actions += (Changed(kept.record.id), Begin(kept.record))
        else:
            self._actions.append(Changed(kept.record.id))
            self._queue(kept)
            self._fill(now_s)

    def store_failed(self, id_: str, error: DandelionError, now_s: float) -> None:
        """A `Save` failed; nothing of it is in the store."""
        kept = self._saved(id_)
        if kept is None:
            return
        if self.is_closing:
            return
        if kept.phase is Phase.ACCEPTING:
            self.places.leave(kept)
            self.books.remove(kept)
            self._actions.append(Refused(id_, error))
            self._fill(now_s)
        elif kept.phase is Phase.PREPARING:
            self.places.pause(now_s)
            self._back(kept)
            self._returned(kept, now_s)
        elif kept.phase is Phase.RETURNING:  # the store counts an attempt too many
            self.places.pause(now_s)
            self._returned(kept, now_s)
        elif kept.phase is Phase.ENDING and kept.record.state is KeptState.SUCCEEDED:
            self._end(kept, KeptState.FAILED, error, now_s)
        elif kept.phase is Phase.ENDING:
            kept.unsaved = True
            self._unsaved.add(id_)
            self._ended(kept, now_s)
        else:
            kept.unsaved = True
            self._unsaved.add(id_)

    def _saved(self, id_: str) -> Kept | None:
        """Count a `Save` that is over; None if its invocation was removed meanwhile."""
        outdated = self._outdated.pop(id_, 0)
        if outdated > 1:
            self._outdated[id_] = outdated - 1
        kept = self.books.all.get(id_)
        if outdated or kept is None:  # those of an id end in the order in which they began
            return None
        kept.saves -= 1
        return kept

    def erase_failed(self, id_: str) -> None:
        """An `Erase` failed; it is tried again, unless the invocation came back."""
        if id_ not in self.books.all:
            self._unerased.add(id_)

    # --- the scheduler ----------------------------------------------------------------------------

    def postponed(self, id_: str, now_s: float) -> None:
        """The scheduler has no room for it now, or none for its tenant."""
        kept = self.books.all.get(id_)
        if kept is not None and kept.phase is Phase.RUNNING and not self.is_closing:
            self.places.pause_tenant(kept.record.tenant, now_s)
            self._back(kept)
            self._save(kept, None)
            self._fill(now_s)

    def finished(self, id_: str, result_bytes: int, now_s: float) -> bool:
        """It gave its outputs. Return whether they are to be stored."""
        kept = self.books.all.get(id_)
        if kept is None or kept.phase is not Phase.RUNNING or self.is_closing:
            return False
        try:
            self._make_room(kept.record.tenant, 0, result_bytes - kept.bytes_)
        except KeptFull as error:
            self._end(kept, KeptState.FAILED, error, now_s)
            return False
        kept.record = msgspec.structs.replace(
            kept.record, state=KeptState.SUCCEEDED, ended_s=now_s, result_bytes=result_bytes
        )
        kept.phase = Phase.ENDING
        self.books.count(kept)
        self._save(kept, Part.RESULT)
        return True

    def failed(self, id_: str, error: DandelionError, now_s: float) -> None:
        """It failed, or was cancelled."""
        kept = self.books.all.get(id_)
        if kept is None or kept.phase is not Phase.RUNNING or self.is_closing:
            return
        cancelled = kept.cancelling and isinstance(error, Cancelled)
        self._end(kept, KeptState.CANCELLED if cancelled else KeptState.FAILED, error, now_s)

    # --- the rest ---------------------------------------------------------------------------------

    def called(self, id_: str, problem: str, now_s: float) -> None:
        """A callback was sent; an empty problem is a success."""
        kept = self.books.all.get(id_)
        if kept is None or not kept.calling or self.is_closing:
            return  # it was erased meanwhile, and perhaps came back from another node
        kept.calling = False
        assert kept.record.callback is not None
        callback = after_attempt(kept.record.callback, problem, now_s)
        kept.record = kept.shown = msgspec.structs.replace(kept.record, callback=callback)
        if callback.state is CallbackState.WAITING:
            self._callbacks.set(callback.due_s, id_)
        self._save(kept, None)

    def tick(self, now_s: float) -> None:
        """Erase what expired, send callbacks that are due, and try again what failed."""
        if self.is_closing:
            return
        for id_ in self._expiries.take(now_s):
            self._forget(self.books.all[id_])
        for id_ in self._callbacks.take(now_s):
            kept = self.books.all[id_]
            kept.calling = True
            self._actions.append(Call(kept.record))
        if not self.places.is_paused(now_s):
            for id_ in sorted(self._unsaved):
                if not self.books.all[id_].saves:
                    self._save(self.books.all[id_], None)
                    self.places.pause(now_s)
            unerased, self._unerased = self._unerased, set()
            self._actions += [Erase(id_) for id_ in sorted(unerased)]
        self._fill(now_s)

    def recovered(
        self,
        records: Iterable[KeptRecord],
        now_s: float,
        refused: Mapping[str, DandelionError] | None = None,
    ) -> None:
        """Go on with what the store has: after a start of the process, or from another node.

        Erasures that did not reach the store are done again, as far as it is known: of two records
        with the same key the older one was forgotten, and limits hold.

        Args:
            records: what the store has.
            now_s: the time.
            refused: why this node cannot run some of them, by id; these fail.
        """
        refused = refused or {}
        oldest_first = sorted(records, key=lambda r: (r.created_s, r.id))
        over = []
        newest = {(r.tenant, r.request.key): r.id for r in oldest_first if r.request.key}
        for record in oldest_first:
            if newest.get((record.tenant, record.request.key), record.id) != record.id:
                self._actions.append(Erase(record.id))
                continue
            if record.id in self.books.all:
                continue
            kept = Kept(record, Phase.ENDED, shown=record)
            self.books.add(kept)
            self._unerased.discard(record.id)
            if record.state.has_ended:
                over.append(kept)
            elif record.id in refused:
                self._end(kept, KeptState.FAILED, refused[record.id], now_s)
            else:
                self._recover(kept, now_s)
        for tenant in {record.tenant for record in oldest_first}:
            self.books.put_in_order(tenant)
        for kept in sorted(over, key=lambda k: k.record.ended_s):
            self._enter_ended(kept)
        for tenant in list(self.books.tenants):
            self._make_room(tenant, 0, 0)
        self._fill(now_s)

    def _recover(self, kept: Kept, now_s: float) -> None:
        attempts = kept.record.attempts
        if attempts >= self.limits.attempts:
            self._end(kept, KeptState.FAILED, InterruptedTooOften(attempts), now_s)
            return
        kept.is_suspect = 0 < attempts == self.limits.attempts - 1
        self._queue(kept)

    def abandoned(self, ids: Iterable[str], error: DandelionError, now_s: float) -> None:
        """Another node has taken these: forget them, and erase nothing.

        Args:
            ids: of invocations; unknown ones are passed over.
            error: why those that are not accepted yet are refused.
            now_s: the time.
        """
        for id_ in ids:
            kept = self.books.all.get(id_)
            if kept is None:
                continue
            self.places.leave(kept)
            self._remove(kept)
            if kept.phase is Phase.RUNNING:
                self._actions.append(Stop(id_))
            accepted = kept.phase is not Phase.ACCEPTING
            self._actions.append(Changed(id_) if accepted else Refused(id_, error))
        self._fill(now_s)

    def closing(self) -> None:
        """The node closes in order: attempts under way do not count, and ends are stored.

        Later events change nothing.
        """
        self.is_closing = True
        for kept in self.books.values():
            if kept.phase in (Phase.RUNNING, Phase.PREPARING):
                kept.record = kept.record.unbegun()
                self._save(kept, None)
            elif kept.unsaved and not kept.saves:
                self._save(kept, None)

    # --- places -----------------------------------------------------------------------------------

    def _fill(self, now_s: float) -> None:
        """Give free places to those that wait."""
        while not self.is_closing and (id_ := self.places.next(now_s)) is not None:
            kept = self.books.all[id_]
            self.places.take(kept)
            kept.phase = Phase.PREPARING
            kept.record = kept.record.begun(now_s)
            self._save(kept, None)

    def _queue(self, kept: Kept, *, first: bool = False) -> None:
        kept.phase = Phase.QUEUED
        self.places.wait(kept, first=first)

    def _back(self, kept: Kept) -> None:
        """Take its place away, and take back its attempt, which did not begin."""
        self.places.leave(kept)
        kept.phase = Phase.RETURNING
        kept.record = kept.shown = kept.record.unbegun()

    def _returned(self, kept: Kept, now_s: float) -> None:
        """Let it wait again."""
        if kept.cancelling:
            self._end(kept, KeptState.CANCELLED, Cancelled("by its caller"), now_s)
            return
        self._actions.append(Changed(kept.record.id))
        self._queue(kept, first=True)
        self._fill(now_s)

    # --- ends -------------------------------------------------------------------------------------

    def _end(
        self, kept: Kept, state: KeptState, error: DandelionError | None, now_s: float
    ) -> None:
        kept.record = kept.record.ended(state, error, now_s)
        kept.phase = Phase.ENDING
        self.books.count(kept)
        self._save(kept, None)

    def _ended(self, kept: Kept, now_s: float) -> None:
        self.places.leave(kept)
        kept.phase = Phase.ENDED
        callback = kept.record.callback
        if callback is not None:
            callback = first_due(callback, now_s)
            kept.record = msgspec.structs.replace(kept.record, callback=callback)
        kept.shown = kept.record
        self._enter_ended(kept)
        self._actions.append(Changed(kept.record.id))
        self.places.resume(kept.record.tenant)
        self._fill(now_s)

    def _enter_ended(self, kept: Kept) -> None:
        record = kept.record
        self.books.end(kept)
        self._expiries.set(record.ended_s + self.limits.keep_s, record.id)
        callback = record.callback
        if callback is not None and callback.state is CallbackState.WAITING:
            self._callbacks.set(callback.due_s, record.id)

    # --- private ----------------------------------------------------------------------------------

    def _make_room(self, tenant: str, number: int, size_bytes: int) -> None:
        for kept in self.books.victims(tenant, number, size_bytes):
            self._forget(kept)

    def _save(self, kept: Kept, part: Part | None) -> None:
        kept.saves += 1
        self._actions.append(Save(kept.record, part))

    def _forget(self, kept: Kept) -> None:
        self._remove(kept)
        self._actions += (Changed(kept.record.id), Erase(kept.record.id))

    def _remove(self, kept: Kept) -> None:
        """Remove it from all that knows it, since the id may come back from another node."""
        self.books.remove(kept)
        id_ = kept.record.id
        if kept.saves:
            self._outdated[id_] = self._outdated.get(id_, 0) + kept.saves
        self._unsaved.discard(id_)
        self._expiries.remove(id_)
        self._callbacks.remove(id_)
