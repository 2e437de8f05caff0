"""The collector of cyclic garbage: when it runs, and that its settings are restored."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from dandelion.frontend import collector as collector_module
from dandelion.frontend.collector import BUSY_S, QUIET_S, REST_S, Collector


@pytest.fixture
def full_collections() -> Iterator[list[int]]:
    """One entry for each full collection."""
    seen: list[int] = []

    def note(phase: str, info: dict[str, int]) -> None:
        if phase == "start" and info["generation"] == 2:
            seen.append(1)

    gc.callbacks.append(note)
    yield seen
    gc.callbacks.remove(note)


@pytest.fixture
def freezing(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let collectors freeze, which those of other tests do not; see ``conftest.py``."""
    monkeypatch.setattr(collector_module, "gc", gc)
    yield
    gc.collect()
    gc.freeze()


@pytest.mark.usefixtures("freezing")
def test_full_collections_wait_for_quiet(full_collections: list[int]) -> None:
    before = gc.get_threshold()
    collector = Collector()
    try:
        full_collections.clear()
        kept = [[number] for number in range(300_000)]  # enough for several collections
        assert not full_collections
        for second in range(1, int(BUSY_S)):
            collector.tick(float(second), second, 0)
        assert not full_collections
        collector.tick(BUSY_S, 1000, 0)
        assert len(full_collections) == 1
        collector.tick(BUSY_S + QUIET_S - REST_S / 2, 1000, 0)
        collector.tick(BUSY_S + QUIET_S, 1000, 0)
        assert len(full_collections) == 1, "there was no request for half of the time"
        collector.tick(BUSY_S + QUIET_S + REST_S, 1000, 0)
        assert len(full_collections) == 2
        assert gc.get_freeze_count() >= len(kept)  # the next one does not look at these again
        del kept
    finally:
        collector.close()
    assert gc.get_threshold() == before
    assert not gc.get_freeze_count()


@pytest.mark.usefixtures("freezing")
def test_requests_under_way_are_not_quiet(full_collections: list[int]) -> None:
    collector = Collector()
    try:
        full_collections.clear()
        for second in range(1, 100):
            collector.tick(float(second), 0, under_way=1)
        assert not full_collections
        collector.tick(100.0, 0, under_way=0)
        assert not full_collections
        collector.tick(100.0 + REST_S, 0, under_way=0)
        assert len(full_collections) == 1
    finally:
        collector.close()
