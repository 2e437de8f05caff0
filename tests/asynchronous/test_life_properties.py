"""`KeptLives` against a model, with a store that fails and a process that ends at any step."""

from __future__ import annotations

from collections import Counter, deque

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from dandelion.asynchronous.actions import (
    Accepted,
    Action,
    Begin,
    Call,
    Erase,
    Refused,
    Save,
    Stop,
)
from dandelion.asynchronous.failures import KeptFull, KeyReused
from dandelion.asynchronous.invariants import check_lives
from dandelion.asynchronous.kept import KeptLimits
from dandelion.asynchronous.life import KeptLives
from dandelion.asynchronous.records import CallbackRecord, KeptRecord, KeptRequest, KeptState
from dandelion.asynchronous.store import Drop, MemoryKeptStore, Part, Put
from dandelion.errors import Cancelled, DiskFull, FunctionError, Overloaded

LIMITS = KeptLimits(running=3, number=5, total_bytes=1000, keep_s=100.0, attempts=3)
FULL = DiskFull("disk", "full", 1, 0)
TENANTS = ("acme", "beta")
pick = st.integers(0, 1 << 16)


class LifeMachine(RuleBasedStateMachine):
    """One node after the other on the same store.

    `shown` has the ends that callers saw, `begun` counts attempts that really began, `accepted` the
    ids that callers know, `forgotten` those that were erased on purpose.
    """

    def __init__(self) -> None:
        super().__init__()
        self.disk = MemoryKeptStore()
        self.lives = KeptLives(LIMITS)
        self.now = 1000.0
        self.count = 0
        self.steps: deque[Save | Erase] = deque()
        self.refused: list[Save | Erase] = []  # steps of what another node has taken meanwhile
        self.running: list[str] = []
        self.calling: list[str] = []
        self.begun: Counter[str] = Counter()
        self.accepted: set[str] = set()
        self.forgotten: set[str] = set()
        self.ends: dict[str, KeptState] = {}
        self.may_keep_too_much = False

    # --- the node, as simple as it can be -----------------------------------------------------

    def carry_out(self) -> None:
        for action in self.lives.take():
            self.carry(action)

    def carry(self, action: Action) -> None:
        match action:
            case Save() | Erase():
                self.steps.append(action)
                if isinstance(action, Erase):
                    self.forgotten.add(action.id)
            case Accepted(id_):
                stored = {record.id for record in self.disk.load()}
                assert id_ in stored, "accepted before it was stored"
                self.accepted.add(id_)
            case Refused(id_):
                self.forgotten.add(id_)
            case Begin(record):
                assert record.id not in self.running, "it runs already"
                assert self.disk.read(record.id, Part.INPUTS) == b"in"
                self.running.append(record.id)
                self.begun[record.id] += 1
            case Stop(id_):
                assert id_ in self.running
            case Call(record):
                self.calling.append(record.id)

    def write(self, action: Save | Erase) -> None:
        if isinstance(action, Erase):
            self.disk.write([Drop(action.id)])
            return
        part = action.part
        chunks = () if part is None else (b"in" if part is Part.INPUTS else b"out",)
        self.disk.write([Put(action.record, part, chunks)])

    @rule(number=st.integers(1, 4))
    def store(self, number: int) -> None:
        for _ in range(min(number, len(self.steps))):
            self.store_one()
            self.carry_out()

    def store_one(self) -> None:
        step = self.steps.popleft()
        if self.is_refused(step):
            self.fail(step)
            return
        self.write(step)
        if isinstance(step, Save):
            self.lives.stored(step.record.id, self.now)

    def is_refused(self, step: Save | Erase) -> bool:
        return any(step is one for one in self.refused)

    @precondition(lambda self: self.steps)
    @rule()
    def store_fails(self) -> None:
        self.fail(self.steps.popleft())
        self.carry_out()

    def fail(self, step: Save | Erase) -> None:
        if isinstance(step, Save):
            self.lives.store_failed(step.record.id, FULL, self.now)
        else:
            self.lives.erase_failed(step.id)

    # --- callers ------------------------------------------------------------------------------

    @rule(
        tenant=st.sampled_from(TENANTS),
        key=st.sampled_from(("", "", "k1", "k2")),
        size=st.sampled_from((0, 10, 600)),
        called=st.booleans(),
        priority=st.integers(-1, 1),
    )
    def submit(self, tenant: str, key: str, size: int, called: bool, priority: int) -> None:
        self.count += 1
        record = KeptRecord(
            id=f"{self.count:032x}",
            tenant=tenant,
            request=KeptRequest(name="f", key=key, priority=priority),
            digest=f"{size}" if key else "",
            created_s=self.now,
            input_bytes=size,
            callback=CallbackRecord("https://x.example/") if called else None,
        )
        before = {k.record.request.key: k for k in self.lives.books.newest_first(tenant)}
        try:
            id_ = self.lives.submit(record, self.now)
        except (Overloaded, KeptFull, KeyReused) as error:
            if isinstance(error, KeyReused):
                assert key
            assert self.lives.books.all.get(record.id) is None
            self.carry_out()
            return
        if id_ != record.id:
            assert self.lives.books.all[id_].record.digest == record.digest
        elif key:
            assert key not in before, "one key has one invocation"
        self.carry_out()

    @precondition(lambda self: self.accepted - self.forgotten)
    @rule(at=pick)
    def cancel(self, at: int) -> None:
        known = sorted(self.accepted - self.forgotten)
        self.lives.cancel(known[at % len(known)], self.now)
        self.carry_out()

    # --- the scheduler ------------------------------------------------------------------------

    @precondition(lambda self: self.running)
    @rule(at=pick, outcome=st.sampled_from(("out", "large", "error", "cancelled", "postponed")))
    def end(self, at: int, outcome: str) -> None:
        id_ = self.running.pop(at % len(self.running))
        if outcome == "postponed":
            self.begun[id_] -= 1
            self.lives.postponed(id_, self.now)
        elif outcome in ("out", "large"):
            self.lives.finished(id_, 3 if outcome == "out" else 2000, self.now)
        else:
            error = Cancelled("stop") if outcome == "cancelled" else FunctionError("f")
            self.lives.failed(id_, error, self.now)
        self.carry_out()

    @precondition(lambda self: self.calling)
    @rule(problem=st.sampled_from(("", "refused")))
    def called(self, problem: str) -> None:
        self.lives.called(self.calling.pop(0), problem, self.now)
        self.carry_out()

    @rule(seconds=st.sampled_from((0.1, 1.0, 60.0)))
    def tick(self, seconds: float) -> None:
        self.now += seconds
        self.lives.tick(self.now)
        self.carry_out()

    # --- other nodes --------------------------------------------------------------------------

    @precondition(lambda self: self.lives.books.all)
    @rule(at=pick, back=st.booleans())
    def taken(self, at: int, back: bool) -> None:
        """Another node takes one over, and perhaps is lost: it comes back as it was stored."""
        known = sorted(self.lives.books.all)
        id_ = known[at % len(known)]
        self.lives.abandoned([id_], Cancelled("taken over"), self.now)
        assert id_ not in self.lives.books.all
        self.carry_out()
        self.refused += [step for step in self.steps if _id_of(step) == id_]
        self.running = [one for one in self.running if one != id_]
        self.ends.pop(id_, None)
        stored = [record for record in self.disk.load() if record.id == id_]
        if back and stored:
            self.accepted.add(id_)
            self.forgotten.discard(id_)
            self.lives.recovered(stored, self.now)
        else:
            self.disk.write([Drop(id_)])
            self.forgotten.add(id_)
        self.may_keep_too_much = True
        self.carry_out()

    # --- the process --------------------------------------------------------------------------

    @rule(written=st.integers(0, 3))
    def crash(self, written: int) -> None:
        """The process ends; of what the store was given, only a beginning is on the disk."""
        for _ in range(min(written, len(self.steps))):
            step = self.steps.popleft()
            if not self.is_refused(step):
                self.write(step)
        self.restart()

    @rule()
    def close(self) -> None:
        """The process closes in order: all steps are on the disk."""
        for id_ in self.running:
            self.begun[id_] -= 1
        self.lives.closing()
        self.carry_out()
        while self.steps:
            self.store_one()
        for id_ in self.running:
            self.lives.failed(id_, Cancelled("the node is shutting down"), self.now)
        self.lives.tick(self.now + 1000)
        assert self.lives.take() == [], "it goes on after it was closed"
        self.restart()

    def restart(self) -> None:
        unsaved = {i for i, k in self.lives.books.all.items() if k.unsaved or k.saves}
        if any(kept.unsaved for kept in self.lives.books.all.values()):
            self.may_keep_too_much = True  # what had ended, and was not counted, begins again
        unsaved |= self.forgotten
        self.steps.clear()
        self.running.clear()
        self.calling.clear()
        self.lives = KeptLives(LIMITS)
        records = {record.id: record for record in self.disk.load()}
        for id_ in self.accepted - self.forgotten:
            assert id_ in records, "an accepted invocation is lost"
        for id_, state in self.ends.items():
            if id_ in records and id_ not in unsaved:
                assert records[id_].state is state, "an end that was shown is lost"
        for record in records.values():
            assert record.attempts >= self.begun[record.id] or record.state.has_ended
            if record.state is KeptState.SUCCEEDED:
                assert self.disk.read(record.id, Part.RESULT) == b"out"
            self.accepted.add(record.id)  # its caller may have been told just before
        if self.forgotten & records.keys():  # an erasure was not on the disk yet
            self.may_keep_too_much = True
            self.forgotten -= records.keys()
        self.ends = {i: s for i, s in self.ends.items() if i in records and i not in unsaved}
        self.lives.recovered(records.values(), self.now)
        self.carry_out()

    # --- what holds ---------------------------------------------------------------------------

    @invariant()
    def holds(self) -> None:
        check_lives(self.lives)
        for id_, kept in self.lives.books.all.items():
            if kept.shown is not None and kept.shown.state.has_ended:
                assert self.ends.setdefault(id_, kept.shown.state) is kept.shown.state
        for tenant in TENANTS:
            number, total = self.lives.books.usage(tenant)
            if not self.may_keep_too_much:
                assert number <= LIMITS.number
                assert total <= LIMITS.total_bytes
        assert all(count <= LIMITS.attempts for count in self.begun.values())

    def teardown(self) -> None:
        """When the faults stop, everything ends."""
        for _ in range(500):
            if not self.steps and not self.running:
                if not any(not k.state.has_ended for k in self.lives.books.all.values()):
                    break
                self.now += 1.0
                self.lives.tick(self.now)
                self.carry_out()
            while self.steps:
                self.store(1)
            while self.running:
                self.lives.finished(self.running.pop(), 3, self.now)
                self.carry_out()
            check_lives(self.lives)
        states = {k.state for k in self.lives.books.all.values()}
        assert all(state.has_ended for state in states), states


LifeMachine.TestCase.settings = settings(
    max_examples=120, stateful_step_count=40, deadline=None, derandomize=True
)
TestLife = LifeMachine.TestCase


def _id_of(action: Save | Erase) -> str:
    return action.record.id if isinstance(action, Save) else action.id
