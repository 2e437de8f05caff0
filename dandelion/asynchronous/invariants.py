"""What holds of `KeptLives` after every event; tests check it."""

from __future__ import annotations

from dandelion.asynchronous.kept import Kept, Phase
from dandelion.asynchronous.life import KeptLives

_WITH_THE_STORE = (Phase.ACCEPTING, Phase.PREPARING, Phase.RETURNING, Phase.ENDING)
_WITH_PLACE = (Phase.PREPARING, Phase.RUNNING)


def check_lives(lives: KeptLives) -> None:
    """Raise AssertionError if an invariant is broken. Takes time in proportion to what is kept."""
    every = lives.books.all
    placed = [kept for kept in every.values() if kept.has_place]
    places = lives.places
    assert places.running == len(placed) <= lives.limits.running
    suspects = [kept.record.id for kept in placed if kept.is_suspect]
    assert suspects == ([] if places.suspect is None else [places.suspect])
    queued = {id_ for id_, kept in every.items() if kept.phase is Phase.QUEUED}
    assert queued == places.line._members.keys() | places.suspects._members.keys()
    assert not places.line._members.keys() & places.suspects._members.keys()
    assert lives._unsaved <= every.keys()
    assert lives._expiries._due.keys() <= every.keys()
    assert lives._callbacks._due.keys() <= every.keys()
    assert all(lives._outdated.values())
    for kept in every.values():
        _check_kept(kept, lives)
    _check_tenants(lives)


def _check_kept(kept: Kept, lives: KeptLives) -> None:
    phase, record = kept.phase, kept.record
    assert (kept.shown is None) == (phase is Phase.ACCEPTING)
    assert record.state.has_ended == (phase in (Phase.ENDING, Phase.ENDED))
    assert kept.bytes_ == record.kept_bytes
    assert record.attempts <= lives.limits.attempts
    assert kept.saves >= 0
    if not lives.is_closing:
        assert kept.saves == (phase in _WITH_THE_STORE) or phase is Phase.ENDED
    if phase in _WITH_PLACE:
        assert kept.has_place
        assert record.attempts >= 1
    if phase in (Phase.QUEUED, Phase.RETURNING, Phase.ENDED):
        assert not kept.has_place
    if phase is Phase.ENDED:
        assert kept.shown is record
    elif kept.shown is not None:
        assert not kept.shown.state.has_ended, "the end is shown only when it is stored"


def _check_tenants(lives: KeptLives) -> None:
    count = 0
    for name, mine in lives.books.tenants.items():
        count += len(mine.kept)
        for id_, kept in mine.kept.items():
            assert lives.books.all[id_] is kept
            assert (kept.record.id, kept.record.tenant) == (id_, name)
        assert mine.bytes_ == sum(kept.bytes_ for kept in mine.kept.values())
        ended = {i for i, kept in mine.kept.items() if kept.phase is Phase.ENDED}
        assert mine.ended.keys() == ended
        keys = {k.record.request.key: i for i, k in mine.kept.items() if k.record.request.key}
        assert mine.keys == keys
    assert count == len(lives.books.all)
