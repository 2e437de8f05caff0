"""Imports that use too much: their zygote ends with all its processes, and the next one works."""

from __future__ import annotations

import contextlib
import errno
import gc
import os
import signal
import subprocess
import textwrap
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from dandelion.backends.process import import_limits, sandbox_pool, zygote_messages
from dandelion.backends.process.import_limits import ImportLimits, ImportWatch
from dandelion.backends.process.sandbox_pool import ImportFailed, SandboxContent, SandboxPool

from dandelion.testing import wait_until

LIMITS = ImportLimits(wall_s=20.0, memory_bytes=192 << 20, processes=8, threads=32)
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
    "memory that processes could share": (
        """
        import mmap
        x = mmap.mmap(-1, 256 << 20)
        for _ in range(256):
            x.write(bytes(1 << 20))
        """,
        MEMORY,
    ),
    "memory of a process whose name is no text": (
        """
        import ctypes
        ctypes.CDLL(None).prctl(15, b'\\xff\\xfe', 0, 0, 0)
        x = b'x' * (256 << 20)
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
    "threads": (
        """
        import threading
        for _ in range(40):
            threading.Thread(target=time.sleep, args=(60,)).start()
        """,
        "its imports start more than 32 threads",
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
    wait_until(lambda: not sessions(started))
    return str(caught.value)


@pytest.mark.parametrize("kind", GREEDY)
def test_imports_that_use_too_much_end_with_a_reason(pool: SandboxPool, kind: str) -> None:
    gc.collect()
    threads, descriptors = set(threading.enumerate()), set(os.listdir("/proc/self/fd"))
    text, reason = GREEDY[kind]
    assert refused(pool, text) == reason
    assert set(threading.enumerate()) <= threads
    assert set(os.listdir("/proc/self/fd")) <= descriptors
    (Path(pool.content.environment) / "greedy.py").write_text("x = bytes(8 << 20)\n")
    pool.take(time.monotonic_ns() + 30_000_000_000).close()


def test_imports_that_take_too_long_end_with_a_reason(
    pool: SandboxPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(import_limits, "LIMITS", ImportLimits(wall_s=0.3))
    assert refused(pool, "") == "its imports take more than 0.3 s"


def test_a_zygote_that_is_killed_from_outside_in_its_imports_is_replaced(pool: SandboxPool) -> None:
    os.kill(pool.pid(), signal.SIGKILL)
    pool.take(time.monotonic_ns() + 30_000_000_000).close()


def test_imports_that_kill_their_process_each_time_end_with_a_reason(pool: SandboxPool) -> None:
    kill = "import os, signal\nos.kill(os.getpid(), signal.SIGKILL)\n"
    (Path(pool.content.environment) / "greedy.py").write_text(kill)
    with pytest.raises(ImportFailed, match="ended the process with code -9"):
        pool.take(time.monotonic_ns() + 30_000_000_000)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("ValueError('x' * 100_000)", "ValueError: xxx"),
        ("ValueError('a\\udcff')", r"ValueError: a\?"),
        ("type('Silent', (Exception,), {'__str__': None})", r"Silent: \(no text"),
    ],
)
def test_what_imports_raise_is_shown_whatever_its_text(
    pool: SandboxPool, text: str, reason: str
) -> None:
    (Path(pool.content.environment) / "greedy.py").write_text(f"raise {text}\n")
    with pytest.raises(ImportFailed, match=reason):
        pool.take(time.monotonic_ns() + 30_000_000_000)


def test_each_call_gets_the_reason_why_imports_fail(pool: SandboxPool) -> None:
    module = Path(pool.content.environment) / "greedy.py"
    module.write_text("raise ValueError('no room')\n")
    for _ in range(2):
        with pytest.raises(ImportFailed, match="ValueError: no room"):
            pool.take(time.monotonic_ns() + 30_000_000_000)
    module.write_text("")
    pool.take(time.monotonic_ns() + 30_000_000_000).close()


@pytest.mark.parametrize("text", ["", "os._exit(3)"])
def test_the_number_of_a_session_is_taken_as_long_as_it_is_watched(
    pool: SandboxPool, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    close, codes = ImportWatch.close, []

    def note(watch: ImportWatch) -> None:
        codes.append(watch._stop.__self__.process.returncode)  # type: ignore[attr-defined]  # a method
        close(watch)

    kill = sandbox_pool._Zygote._kill_group

    def kill_and_wait(zygote: sandbox_pool._Zygote) -> None:  # a poll would reap it then
        kill(zygote)
        if zygote.process.returncode is None:
            os.waitid(os.P_PID, zygote.process.pid, os.WEXITED | os.WNOWAIT)

    monkeypatch.setattr(ImportWatch, "close", note)
    monkeypatch.setattr(sandbox_pool._Zygote, "_kill_group", kill_and_wait)
    (Path(pool.content.environment) / "greedy.py").write_text(f"import os\n{text}\n")
    with contextlib.suppress(ImportFailed):
        pool.take(time.monotonic_ns() + 30_000_000_000).close()
    pool.close()
    assert codes[0] is None


def test_limits_hold_after_the_node_had_no_descriptor_left(
    pool: SandboxPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    members, failed = import_limits._members, []

    def fail_once(session: int) -> Iterator[import_limits._Member]:
        if not failed:
            failed.append(session)
            raise OSError(errno.EMFILE, "too many open files")
        return members(session)

    monkeypatch.setattr(import_limits, "_members", fail_once)
    assert refused(pool, GREEDY["memory"][0]) == MEMORY
    assert failed


def test_any_name_of_a_process_can_be_read() -> None:
    name = Path("/proc/self/comm")
    before = name.read_bytes()
    name.write_bytes(b"\xff) Z 1 1 1")
    try:
        assert zygote_messages._parent_of(os.getpid()) == os.getppid()
        session = os.getsid(0)
        assert os.getpid() in sessions([session])
    finally:
        name.write_bytes(before)


def test_memory_files_of_two_file_systems_may_have_the_same_number(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = os.stat

    def same_number(path: str) -> Any:
        real = found(path)
        if not path.endswith(tuple(f"/fd/{file}" for file in files)):
            return real
        fields = {name: getattr(real, name) for name in ("st_mode", "st_nlink", "st_dev")}
        return SimpleNamespace(**fields, st_blocks=real.st_blocks, st_ino=1)

    own = [import_limits._Member(os.getpid(), os.getppid(), 1)]
    files = [os.memfd_create("large"), os.open(tmp_path, os.O_TMPFILE | os.O_RDWR)]
    try:
        with monkeypatch.context() as patch:
            patch.setattr(os, "stat", same_number)
            before = import_limits._memory_bytes(own)
            os.write(files[0], bytes(64 << 20))
            assert import_limits._memory_bytes(own) > before + (48 << 20)
    finally:
        for file in files:
            os.close(file)


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


def test_a_zygote_that_becomes_ready_while_it_is_measured_goes_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What was measured may be its sandboxes."""
    monkeypatch.setattr(import_limits, "LIMITS", ImportLimits(processes=0))
    messages = iter([False, True])
    stopped: list[str] = []
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE, start_new_session=True) as zygote:
        watch = ImportWatch(zygote.pid, lambda: next(messages, True), stopped.append)
        watch._thread.join()
    assert not stopped
