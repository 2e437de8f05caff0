"""What peers leave in shared memory is removed, and nothing else."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from dandelion.bench.systems import steps
from dandelion.bench.systems.steps import remove_semaphores, semaphores


@pytest.fixture
def shared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(steps, "_SHARED", tmp_path)
    return tmp_path


def gone() -> int:
    process = subprocess.Popen([sys.executable, "-S", "-c", ""])
    process.wait()
    return process.pid


def test_semaphores_of_processes_that_are_gone_are_removed(
    shared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(steps, "_END_S", 0.05)
    dead, alive = gone(), os.getpid()
    remaining = [f"sem.hdr{dead}-1", f"sem.hdr{alive}-2", "sem.mine", "sem.object-3"]
    (shared / remaining[0]).touch()
    before = semaphores()
    for name in [*remaining[1:], f"sem.hdr{dead}-4", f"sem.obj{dead}-4"]:
        (shared / name).touch()
    remove_semaphores(before)
    assert sorted(os.listdir(shared)) == sorted(remaining)


def test_a_process_that_ends_late_is_waited_for(shared: Path) -> None:
    process = subprocess.Popen([sys.executable, "-S", "-c", "input()"], stdin=subprocess.PIPE)
    (shared / f"sem.hdr{process.pid}-1").touch()

    def end() -> None:
        process.communicate(b"\n")

    timer = threading.Timer(0.1, end)
    timer.start()
    remove_semaphores(set())
    timer.join()
    assert process.returncode is not None
    assert not list(shared.iterdir())
