"""`KeptLives` in single cases; see also `test_life_properties`."""

from __future__ import annotations

from collections import Counter, deque

import msgspec
import pytest

from dandelion.asynchronous.actions import Action, Begin, Call, Erase, Save
from dandelion.asynchronous.callbacks import FIRST_PAUSE_S
from dandelion.asynchronous.failures import InterruptedTooOften
from dandelion.asynchronous.invariants import check_lives
from dandelion.asynchronous.life import KeptLives
from dandelion.asynchronous.places import PAUSE_S, Places
from dandelion.asynchronous.records import CallbackRecord, KeptRecord, KeptRequest, KeptState
from dandelion.asynchronous.store import MemoryKeptStore, Put
from dandelion.errors import Cancelled, FunctionError
from tests.asynchronous.test_life_properties import FULL, LIMITS


def run_to_end(lives: KeptLives, disk: MemoryKeptStore, kills: str) -> dict[str, int]:
    """Begin, and end the process whenever `kills` begins; return how often others began."""
    begun: Counter[str] = Counter()
    for _ in range(100):
        pending = deque(lives.take())
        died = False
        while pending:
            action = pending.popleft()
            if isinstance(action, Save):
                part = action.part
                disk.write([Put(action.record, part, (b"in",) if part else ())])
                lives.stored(action.record.id, 0.0)
            elif isinstance(action, Begin):
                begun[action.record.id] += 1
                died = died or action.record.id == kills
            pending += lives.take()
        if not died:
            for id_, kept in list(lives.books.all.items()):
                if kept.has_place:
                    lives.finished(id_, 0, 0.0)
            if all(kept.state.has_ended for kept in lives.books.all.values()):
                break
        else:
            lives = KeptLives(lives.limits)
            lives.recovered(disk.load(), 0.0)
    records = {record.id: record for record in disk.load()}
    assert all(record.state.has_ended for record in records.values())
    assert records[kills].state is KeptState.FAILED
    assert records[kills].error is not None
    assert records[kills].error.type == InterruptedTooOften.__name__
    others = [record for record in records.values() if record.id != kills]
    assert all(record.state is KeptState.SUCCEEDED for record in others)
    return dict(begun)


def test_one_that_kills_the_node_fails_and_all_others_succeed() -> None:
    limits = msgspec.structs.replace(LIMITS, running=10, number=100)
    lives, disk = KeptLives(limits), MemoryKeptStore()
    for number in range(20):
        record = KeptRecord(id=f"{number:032x}", tenant="acme", request=KeptRequest(name="f"))
        lives.submit(record, 0.0)
    kills = f"{7:032x}"
    begun = run_to_end(lives, disk, kills)
    assert begun[kills] == limits.attempts


def submitted(lives: KeptLives, id_: str, tenant: str = "acme") -> list[Action]:
    """Submit, and let the store answer; return what is to be done then."""
    lives.submit(KeptRecord(id=id_, tenant=tenant, request=KeptRequest(name="f")), 0.0)
    lives.stored(id_, 0.0)
    return lives.take()


def begun_in(actions: list[Action]) -> list[str]:
    return [action.record.id for action in actions if isinstance(action, Begin)]


def test_an_attempt_that_did_not_begin_is_not_counted_in_the_store() -> None:
    lives = KeptLives(LIMITS)
    submitted(lives, "1")
    lives.postponed("1", 0.0)
    (saved,) = [action.record for action in lives.take() if isinstance(action, Save)]
    assert saved.attempts == 0
    lives.stored("1", 0.0)
    check_lives(lives)
    later = KeptLives(msgspec.structs.replace(LIMITS, attempts=1))
    later.recovered([saved], 1.0)
    assert later.books.all["1"].state is KeptState.WAITING


def test_a_tenant_without_room_does_not_delay_others() -> None:
    lives = KeptLives(msgspec.structs.replace(LIMITS, running=10, number=100))
    for id_ in ("1", "2", "3", "4"):
        submitted(lives, id_)
    for id_ in ("2", "3", "4"):
        lives.postponed(id_, 0.0)
        lives.stored(id_, 0.0)
    lives.take()
    submitted(lives, "5", "beta")
    lives.stored("5", 0.0)
    assert begun_in(lives.take()) == ["5"]
    tried = []
    for step in range(1, 5):  # one at a time is tried, and is refused again
        lives.tick(step * 0.3)
        (id_,) = [action.record.id for action in lives.take() if isinstance(action, Save)]
        lives.stored(id_, step * 0.3)
        tried += begun_in(lives.take())
        lives.postponed(id_, step * 0.3)
        lives.stored(id_, step * 0.3)
        lives.take()
        check_lives(lives)
    assert len(tried) == 4
    lives.finished("1", 0, 1.3)  # which makes room for one
    lives.stored("1", 1.3)
    assert len([a for a in lives.take() if isinstance(a, Save) and a.record.attempts]) == 2


@pytest.mark.parametrize("back_s", [1.0, 3600.0])
def test_a_clock_that_is_set_back_makes_no_pause_longer(back_s: float) -> None:
    places = Places(1)
    places.pause(5000.0)
    assert places.is_paused(5000.0)
    assert not places.is_paused(5000.0 - back_s)
    assert not places.is_paused(5000.0 + PAUSE_S)
    places.pause_tenant("acme", 5000.0)
    assert not places._may_try("acme", 5000.1)
    assert places._may_try("acme", 5000.0 - back_s)


def test_a_callback_is_sent_although_the_clock_was_set_back() -> None:
    callback = CallbackRecord("http://x.example/", due_s=90_000.0)
    record = KeptRecord(
        id="1",
        tenant="acme",
        request=KeptRequest(name="f"),
        state=KeptState.SUCCEEDED,
        ended_s=90_000.0,
        callback=callback,
    )
    lives = KeptLives(LIMITS)
    lives.recovered([record], 5000.0)
    lives.tick(5000.0)
    assert [action for action in lives.take() if isinstance(action, Call)] == [Call(record)]
    lives.called("1", "status 500", 5000.0)
    lives.tick(5000.0)
    assert not [action for action in lives.take() if isinstance(action, Call)]
    lives.tick(5000.0 + FIRST_PAUSE_S)
    assert [action for action in lives.take() if isinstance(action, Call)]


def ended_unsaved(lives: KeptLives, callback: CallbackRecord | None = None) -> KeptRecord:
    """Let one end whose end the store refuses; return what the store has of it."""
    record = KeptRecord(id="1", tenant="acme", request=KeptRequest(name="f"), callback=callback)
    lives.submit(record, 0.0)
    lives.stored("1", 0.0)
    stored = lives.books.all["1"].record
    lives.failed("1", FunctionError("f"), 0.0)
    lives.store_failed("1", FULL, 0.0)
    assert lives.books.all["1"].unsaved
    lives.take()
    return stored


def test_one_that_comes_back_is_not_erased_for_its_earlier_end() -> None:
    """Another node had it meanwhile, and was lost before it stored an end."""
    lives = KeptLives(LIMITS)
    stored = ended_unsaved(lives)
    lives.abandoned(["1"], Cancelled("taken over"), 90.0)
    lives.recovered([stored], 91.0)
    lives.take()
    lives.tick(LIMITS.keep_s + 1.0)
    check_lives(lives)
    assert not [action for action in lives.take() if isinstance(action, Erase)]
    lives.stored("1", 102.0)
    lives.finished("1", 0, 102.0)
    lives.stored("1", 102.0)
    lives.tick(LIMITS.keep_s + 101.0)
    assert lives.find("1", "acme") is not None
    lives.tick(LIMITS.keep_s + 103.0)
    assert lives.find("1", "acme") is None


def test_an_answer_to_a_callback_is_not_taken_for_one_that_came_back() -> None:
    lives = KeptLives(LIMITS)
    stored = ended_unsaved(lives, CallbackRecord("https://x.example/"))
    lives.tick(1.0)
    assert [action for action in lives.take() if isinstance(action, Call)]
    lives.abandoned(["1"], Cancelled("taken over"), 2.0)
    lives.recovered([stored], 3.0)
    lives.take()
    lives.called("1", "", 4.0)
    check_lives(lives)
    assert lives.take() == []


def test_an_end_that_could_not_be_stored_is_stored_by_closing() -> None:
    lives = KeptLives(LIMITS)
    ended_unsaved(lives)
    lives.closing()
    (saved,) = [action.record for action in lives.take() if isinstance(action, Save)]
    assert saved.state is KeptState.FAILED


def test_an_erasure_that_was_lost_is_done_again() -> None:
    """The process ended after a key was used again, before the first invocation was erased."""
    request = KeptRequest(name="f", key="k")
    old = KeptRecord(id="1", tenant="acme", request=request, state=KeptState.SUCCEEDED, ended_s=1.0)
    new = KeptRecord(id="2", tenant="acme", request=request, created_s=2.0)
    lives = KeptLives(LIMITS)
    lives.recovered([new, old], 3.0)
    check_lives(lives)
    assert [action.id for action in lives.take() if isinstance(action, Erase)] == ["1"]
    assert lives.find("1", "acme") is None
    assert lives.submit(msgspec.structs.replace(new, id="3"), 4.0) == "2"
    lives.stored("2", 4.0)
    lives.finished("2", 1, 5.0)
    lives.stored("2", 5.0)
    lives.cancel("2", 6.0)
    check_lives(lives)
    assert lives.submit(msgspec.structs.replace(new, id="4"), 7.0) == "4"


def test_limits_hold_after_a_restart() -> None:
    records = [
        KeptRecord(
            id=f"{number}",
            tenant="acme",
            request=KeptRequest(name="f"),
            state=KeptState.SUCCEEDED,
            created_s=float(number),
            ended_s=float(number),
        )
        for number in range(9)
    ]
    lives = KeptLives(LIMITS)
    lives.recovered(records, 10.0)
    check_lives(lives)
    assert [kept.record.id for kept in lives.books.newest_first("acme")] == list("87654")


def test_what_another_node_accepted_takes_its_place_by_age() -> None:
    request = KeptRequest(name="f")
    records = [
        KeptRecord(id=f"{number}", tenant="acme", request=request, created_s=float(number))
        for number in range(5)
    ]
    lives = KeptLives(LIMITS)
    for record in records[1::2]:
        lives.submit(record, record.created_s)
        lives.stored(record.id, record.created_s)
    lives.recovered(records[::2], 10.0)
    check_lives(lives)
    assert [kept.record.id for kept in lives.books.newest_first("acme")] == list("43210")
