"""The stored log: a kill, a truncation or damage at any place."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from unittest.mock import Mock

import pytest

from dandelion.cluster import log_file
from dandelion.cluster.ballots import Command, Saved, SavedBase, SavedCommand, SavedVote
from dandelion.cluster.log_driver import LogDriver
from dandelion.cluster.log_file import LogFile
from dandelion.cluster.replication import Replica
from dandelion.errors import CatalogCorrupt

DURABLE_CALLS = ("pwrite", "ftruncate", "fsync", "fdatasync", "replace", "unlink")


def vote(place: int, number: int = 1) -> SavedVote:
    return SavedVote(place, (number, "a"), (0, ""), None)


def command(place: int, size: int = 10) -> SavedCommand:
    return SavedCommand(place, Command(f"a {place}", "register", b"\xee" * size))


def opened(folder: Path) -> LogFile:
    return LogFile(folder, False)


OPERATIONS: list[Callable[[LogFile], None]] = [
    lambda file: file.append([vote(0)]),
    lambda file: file.append([command(0)]),
    lambda file: file.carried_out(1),
    lambda file: file.append([vote(1), command(1, 1500)]),
    lambda file: file.carried_out(2),
    lambda file: file.rewrite([SavedBase(2), vote(2)]),
    lambda file: file.append([command(2)]),
    lambda file: file.keep_snapshot(7, b"state"),
    lambda file: file.rewrite([SavedBase(7), vote(7)]),
    lambda file: file.carried_out(7),
    lambda file: file.drop_snapshot(),
    lambda file: file.append([command(7)]),
    lambda file: file.carried_out(8),
]
State = tuple[list[Saved], int, tuple[int, bytes] | None]


def state_of(file: LogFile) -> State:
    return (file.saved, file.applied, file.snapshot)


def after(count: int, folder: Path) -> State:
    """What is there after so many operations and a start."""
    folder.mkdir()
    file = opened(folder)
    for operation in OPERATIONS[:count]:
        operation(file)
    file.close()
    again = opened(folder)
    again.close()
    return state_of(again)


class Killed(BaseException):
    """The process is gone."""


def test_a_kill_between_any_two_steps_loses_nothing_that_was_stored(tmp_path: Path) -> None:
    states = [after(count, tmp_path / f"whole{count}") for count in range(len(OPERATIONS) + 1)]
    assert states[8][2] == (7, b"state")
    assert states[-1] == ([SavedBase(7), vote(7), command(7)], 8, None)
    steps = 0
    while True:
        folder = tmp_path / f"killed{steps}"
        folder.mkdir()
        done = killed_at(steps, folder)
        again = opened(folder)
        again.close()
        assert state_of(again) in states[done : done + 2], f"killed at step {steps}, after {done}"
        if done == len(OPERATIONS):
            break
        again = opened(folder)  # it can be used
        again.append([vote(20)])
        again.close()
        last = opened(folder)
        last.close()
        assert last.saved[-1] == vote(20)
        steps += 1
        shutil.rmtree(folder)
    assert steps > 25


def killed_at(step: int, folder: Path) -> int:
    """Carry out operations until a step; return how many were done. Writes are cut in half."""
    count = -1
    done = 0
    with pytest.MonkeyPatch.context() as patch:
        for name in DURABLE_CALLS:
            real = getattr(os, name)

            def call(*given, real=real, name=name, **named):  # type: ignore[no-untyped-def]
                nonlocal count
                count += 1
                if count == step:
                    if name == "pwrite":
                        real(given[0], given[1][: len(given[1]) // 2], given[2])
                    raise Killed
                return real(*given, **named)

            patch.setattr(os, name, call)
        file: LogFile | None = None
        try:
            file = opened(folder)
            for operation in OPERATIONS:
                operation(file)
                done += 1
        except Killed:
            pass
    if file is not None:
        file.close()
    return done


@pytest.fixture
def frames(tmp_path: Path) -> tuple[Path, list[int]]:
    """A log of three frames, and where each of them begins."""
    file = opened(tmp_path)
    starts = []
    for place in range(3):
        starts.append(file.size_bytes)
        file.append([vote(place), command(place, 700)])
    file.close()
    return tmp_path / "cluster.log", starts


def test_a_log_that_ends_anywhere_in_the_last_frame(frames: tuple[Path, list[int]]) -> None:
    path, starts = frames
    data = path.read_bytes()
    for end in range(starts[2], len(data), 11):
        path.write_bytes(data[:end])
        file = opened(path.parent)
        file.close()
        assert len(file.saved) == 4
        assert path.stat().st_size == starts[2]


def test_a_last_frame_without_the_content_of_blocks(frames: tuple[Path, list[int]]) -> None:
    path, starts = frames
    data = path.read_bytes()
    for empty in (
        data[: starts[2]] + bytes(len(data) - starts[2]),
        data[: starts[2] + 100] + bytes(len(data) - starts[2] - 100),
        data[:2048] + bytes(len(data) - 2048),
    ):
        path.write_bytes(empty)
        file = opened(path.parent)
        file.close()
        assert len(file.saved) == 4


@pytest.mark.parametrize("frame", range(3))
def test_a_damaged_byte_is_an_error_and_cuts_off_nothing(
    frames: tuple[Path, list[int]], frame: int
) -> None:
    """Also one of the length of a frame."""
    path, starts = frames
    data = path.read_bytes()
    for at in (*range(starts[frame], starts[frame] + 30), starts[frame] + 500):
        path.write_bytes(data[:at] + bytes([data[at] ^ 0x41]) + data[at + 1 :])
        with pytest.raises(CatalogCorrupt, match="damaged"):
            opened(path.parent)
        assert path.stat().st_size == len(data)
    path.write_bytes(data)
    opened(path.parent).close()


def test_a_missing_frame_is_an_error(frames: tuple[Path, list[int]]) -> None:
    path, starts = frames
    data = path.read_bytes()
    path.write_bytes(data[: starts[1]] + data[starts[2] :])
    with pytest.raises(CatalogCorrupt, match="missing"):
        opened(path.parent)


def test_files_that_do_not_fit_together_are_an_error(tmp_path: Path) -> None:
    file = opened(tmp_path)
    file.append([command(0)])
    file.append([command(1)])
    file.carried_out(1)
    file.carried_out(2)
    file.rewrite([SavedBase(2), vote(2)])
    file.close()
    applied = (tmp_path / "cluster.applied").read_bytes()
    log = (tmp_path / "cluster.log").read_bytes()
    (tmp_path / "cluster.applied").unlink()
    with pytest.raises(CatalogCorrupt, match="applied"):
        opened(tmp_path)
    (tmp_path / "cluster.applied").write_bytes(b"\xff" * len(applied))
    with pytest.raises(CatalogCorrupt, match="applied"):
        opened(tmp_path)
    (tmp_path / "cluster.applied").write_bytes(applied)
    (tmp_path / "cluster.log").write_bytes(b"")
    with pytest.raises(CatalogCorrupt, match="applied"):
        opened(tmp_path)
    (tmp_path / "cluster.applied").unlink()
    with pytest.raises(CatalogCorrupt, match="empty"):
        LogFile(tmp_path, True)
    (tmp_path / "cluster.applied").write_bytes(applied)
    (tmp_path / "cluster.log").write_bytes(b"\x40\x00\x00\x00 a log of another version")
    with pytest.raises(CatalogCorrupt, match="damaged"):
        opened(tmp_path)
    (tmp_path / "cluster.log").write_bytes(log)
    (tmp_path / "cluster.snapshot").write_bytes(b"not whole")
    with pytest.raises(CatalogCorrupt, match="snapshot"):
        opened(tmp_path)
    (tmp_path / "cluster.snapshot").unlink()
    opened(tmp_path).close()


def test_the_size_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_file, "COMPACT_BYTES", 4000)
    file = opened(tmp_path)
    largest = 0
    for place in range(200):
        file.append([vote(place), command(place, 100)])
        file.carried_out(place + 1)
        if file.is_long:
            file.rewrite([SavedBase(place + 1), vote(place + 1)])
        largest = max(largest, (tmp_path / "cluster.log").stat().st_size)
    file.close()
    assert largest < 4500
    again = opened(tmp_path)
    again.close()
    assert again.applied == 200


def test_nothing_grows_while_votes_cannot_be_stored() -> None:
    class Stuck(Mock):
        def store(self, work: object) -> None:
            """The disk is full, so the thread tries again and again."""

    file = Mock(applied=0, snapshot=None, pending=(), is_long=False, is_durable=True, saved=())
    catalog = Mock(keeps_blobs=lambda *given: True)
    replica = Replica("a:1", ("a:1",), 1, ())
    driver = LogDriver(replica, file, catalog, Mock(), Mock(), Mock(), Stuck())
    driver.propose(Command("a 1", "kind", b""))
    assert driver._storing
    before = len(driver._changes)
    for _ in range(100):
        driver.heard_length("b:1", 0)
    assert len(driver._changes) == before
