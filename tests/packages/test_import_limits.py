"""Imports that use too much: their zygote ends with all its processes, and the next one works."""

from __future__ import annotations

import gc
import os
import textwrap
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from dandelion.backends.process import import_limits, sandbox_pool
from dandelion.backends.process.import_limits import ImportLimits
from dandelion.backends.process.sandbox_pool import ImportFailed, SandboxContent, SandboxPool

from dandelion.testing import wait_until

LIMITS = ImportLimits(wall_s=20.0, memory_bytes=192 << 20, processes=8)
MEMORY = "its imports use more than 192 MiB of memory"
PROCESSES = "its imports start more than 8 processes"

GREEDY = {
    "memory": ("x = b'x' * (256 << 20)", MEMORY),
    "memory of several processes": (
        """
        for _ in range(3):
            if os.fork() == 0:
                x = b'x' * (96 << 20)
                time.sleep(60)
        """,
        MEMORY,
    ),
    "memory files that are not mapped": (
        """
        files = [os.memfd_create('x') for _ in range(4)]
        for file in files * 64:
            os.write(file, bytes(1 << 20))
        """,
        MEMORY,
    ),
    "orphans": (
        """
        for _ in range(20):
            if os.fork() == 0:
                os.fork() and os._exit(0)
                time.sleep(60)
            os.wait()
        """,
        PROCESSES,
    ),
    "processes that start processes": (
        """
        while True:
            os.fork()
            time.sleep(0.02)
        """,
        PROCESSES,
    ),
}


@pytest.fixture
def pool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SandboxPool]:
    monkeypatch.setattr(import_limits, "LIMITS", LIMITS)
    (tmp_path / "greedy.py").write_text("import os, time\n")
    with closing(SandboxPool("limits", SandboxContent(("greedy",), str(tmp_path), "t"), 1)) as pool:
        yield pool


def sessions(pids: list[int]) -> list[int]:
    return [member.pid for pid in pids for member in import_limits._members(pid)]


def refused(pool: SandboxPool, text: str) -> str:
    """Take a sandbox whose imports fail; return why. Nothing may be left of its zygote."""
    (Path(pool.content.environment) / "greedy.py").write_text(
        "import os, time\n" + textwrap.dedent(text) + "\ntime.sleep(60)\n"
    )
    started = []
    zygote = sandbox_pool._Zygote.__init__

    def note(self: sandbox_pool._Zygote, *how: object) -> None:
        zygote(self, *how)  # type: ignore[arg-type]
        started.append(self.process.pid)

    with pytest.MonkeyPatch.context() as patch, pytest.raises(ImportFailed) as caught:
        patch.setattr(sandbox_pool._Zygote, "__init__", note)
        pool.take(time.monotonic_ns() + 30_000_000_000)
    assert len(started) == 1
    wait_until(lambda: not sessions(started), 5.0)
    return str(caught.value)


@pytest.mark.parametrize("kind", GREEDY)
def test_imports_that_use_too_much_end_with_a_reason(pool: SandboxPool, kind: str) -> None:
    gc.collect()
    threads, descriptors = threading.active_count(), set(os.listdir("/proc/self/fd"))
    text, reason = GREEDY[kind]
    assert refused(pool, text) == reason
    assert threading.active_count() == threads
    assert set(os.listdir("/proc/self/fd")) <= descriptors
    (Path(pool.content.environment) / "greedy.py").write_text("x = bytes(8 << 20)\n")
    pool.take(time.monotonic_ns() + 30_000_000_000).close()


def test_imports_that_take_too_long_end_with_a_reason(
    pool: SandboxPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(import_limits, "LIMITS", ImportLimits(wall_s=0.3))
    assert refused(pool, "") == "its imports take more than 0.3 s"


def test_only_imports_are_limited(pool: SandboxPool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(import_limits, "LIMITS", ImportLimits(wall_s=20.0, processes=1))
    pool.take(time.monotonic_ns() + 30_000_000_000).close()
    zygote = pool._zygote
    assert zygote is not None
    assert zygote._watch is not None
    zygote._watch.close()  # what it would still do is done
    pool.replace()
    pool.take(time.monotonic_ns() + 30_000_000_000).close()
    assert zygote.ended_in_imports == ""
