"""The folder of environments: made whole or not at all, shared, bounded, repaired."""

from __future__ import annotations

import errno
import fcntl
import os
import signal
import socket
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from threading import Barrier, BrokenBarrierError

import msgspec
import pytest

from dandelion.errors import (
    BackendUnavailable,
    Cancelled,
    DandelionError,
    DiskFull,
    EnvironmentsFull,
    InternalError,
    InvalidFunction,
    Overloaded,
)
from dandelion.function import CodeObject
from dandelion.packages import Environments, PackageSource, environments, prepare_process, preparing
from dandelion.packages.environment_folder import RECORD, EnvironmentRecord, locked, remove, sealed
from dandelion.packages.records import PrepareJob, PrepareLimits
from dandelion.packages.requirements import environment_key
from tests.packages.wheels import digest, wheel
from tests.processes import children

Make = Callable[..., Environments]
LIMITS = PrepareLimits(wall_s=60, disk_bytes=1 << 20)


@pytest.fixture
def wheels(tmp_path: Path) -> Path:
    folder = tmp_path / "wheels"
    wheel(folder, "a", "1.0")
    wheel(folder, "b", "1.0", requires=["a"])
    return folder


@pytest.fixture
def make(tmp_path: Path, wheels: Path) -> Iterator[Make]:
    """Make stores on one folder, as several nodes have them."""
    before = children()
    with ExitStack() as opened:

        def made(
            used: list[CodeObject], limits: PrepareLimits = LIMITS, folder: Path = wheels
        ) -> Environments:
            source = PackageSource(str(folder))
            store = Environments(tmp_path / "cache", source, limits, lambda: used)
            opened.callback(store.close)
            return store

        yield made
    assert children() <= before
    assert not list((tmp_path / "cache").glob(".preparing*"))


def prepared(store: Environments, *packages: str) -> CodeObject:
    with store.prepare(packages, {}, "here") as (requirements, chosen):
        return CodeObject("python", packages=requirements, wheels=chosen)


def refused(store: Environments, *packages: str) -> str:
    with pytest.raises(InvalidFunction) as caught:
        prepared(store, *packages)
    assert caught.value.problems[0].where.startswith("here")
    return caught.value.problems[0].code


def test_an_environment_is_complete_read_only_and_named_by_its_wheels(
    make: Make, wheels: Path
) -> None:
    used: list[CodeObject] = []
    store = make(used)
    code = prepared(store, "b")
    assert code.wheels == {path.name: digest(path) for path in wheels.iterdir()}
    site = Path(store.site(code))
    assert (site / "a.py").read_text() == "VERSION = '1.0'\n"
    assert list(site.glob("__pycache__/a.*.pyc"))
    for path in (site, *site.rglob("*")):
        assert not path.lstat().st_mode & (stat.S_IWUSR | stat.S_IWGRP | stat.S_IWOTH)
        assert path.lstat().st_uid == os.geteuid()
    assert prepared(store, "a", "b") != code  # other requirements, the same wheels
    assert store.site(prepared(store, "a", "b")) == str(site)


def test_equal_sets_are_unpacked_once(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    code = prepared(make([]), "a")
    monkeypatch.setattr(environments, "sealed", None)  # called for what was unpacked
    other = make([])
    assert prepared(other, "a") == code
    assert other.site(code)


def test_nothing_to_prepare_from(make: Make, tmp_path: Path) -> None:
    nothing = Environments(tmp_path / "no", PackageSource(), LIMITS, list)
    with pytest.raises(BackendUnavailable, match="--wheels DIR"):
        prepared(nothing, "a")
    with pytest.raises(DandelionError, match="there is no folder"):
        prepared(make([], folder=tmp_path / "missing"), "a")
    assert not (tmp_path / "no").exists()


def test_what_a_killed_node_left_is_not_taken_for_whole(make: Make, tmp_path: Path) -> None:
    code = prepared(make([]), "a")
    site = Path(make([]).place(code))
    left = tmp_path / "cache" / ".preparing-left"
    site.parent.rename(left)  # the moment before the rename
    (site.parent).mkdir()  # and a folder of another program
    assert make([]).site(code) == str(site)
    assert (site / "a.py").exists()
    assert not left.exists()


def test_a_node_that_is_killed_while_it_removes_leaves_nothing(
    make: Make, wheels: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wheel(wheels, "c", "1.0")
    first = make([])
    prepared(first, "a")
    first.close()
    cache = tmp_path / "cache"
    used_bytes = sum(path.stat().st_size for path in cache.glob("*/site/**/*") if path.is_file())
    limits = PrepareLimits(wall_s=60, disk_bytes=used_bytes * 3 // 2)

    key = environment_key({path.name: digest(path) for path in wheels.glob("a-*")})

    def killed(folder: Path) -> None:
        if key not in folder.name:
            remove(folder)
            return
        (folder / RECORD).unlink()
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(environments, "remove", killed)
        prepared(make([], limits), "c")
    code = prepared(make([], limits), "c")
    (left,) = [path.name for path in cache.iterdir() if path.is_dir()]
    assert left == environment_key(code.wheels)


KILLED = """
import sys
from pathlib import Path
from dandelion.packages import Environments, PackageSource
from dandelion.packages.records import PrepareLimits
store = Environments(Path(sys.argv[2]), PackageSource(index=sys.argv[1]), PrepareLimits(), list)
with store.prepare(["a"], {}, "here"):
    pass
"""


@pytest.fixture
def silent() -> Iterator[socket.socket]:
    """Listen as an index that never answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(30)
        yield server


def test_a_node_that_is_killed_while_it_prepares(
    make: Make, silent: socket.socket, tmp_path: Path
) -> None:
    url = f"http://127.0.0.1:{silent.getsockname()[1]}/simple"
    command = [sys.executable, "-c", KILLED, url, str(tmp_path / "cache")]
    with subprocess.Popen(command) as node, silent.accept()[0] as connection:
        assert list((tmp_path / "cache").glob(".preparing-*"))
        node.kill()
        connection.settimeout(20)  # less than that of its request
        while connection.recv(4096):  # its request, then the end of its process
            pass
    code = prepared(make([]), "a")
    found = {path.name for path in (tmp_path / "cache").iterdir() if path.is_dir()}
    assert found == {Path(make([]).place(code)).parent.name}


def test_a_damaged_environment_is_made_again(make: Make) -> None:
    code = prepared(make([]), "a")
    site = Path(make([]).place(code))
    for damaged in (site / "a.py", site.parent / "environment.json"):
        os.chmod(site, 0o700)
        damaged.unlink()
        damaged.write_bytes(b"")
        assert make([code]).site(code) == str(site)
        assert (site / "a.py").read_text() == "VERSION = '1.0'\n"
    damaged.write_bytes(b"")
    assert prepared(make([code]), "a") == code


def test_an_environment_that_is_deleted_while_the_node_runs_is_made_again(make: Make) -> None:
    used: list[CodeObject] = []
    store = make(used)
    code = prepared(store, "a")
    used.append(code)
    site = Path(store.site(code))
    for path in site.parent.parent.iterdir():
        remove(path) if path.is_dir() else path.unlink()
    assert store.site(code) == str(site)
    assert (site / "a.py").read_text() == "VERSION = '1.0'\n"


def test_an_environment_is_made_again_once_at_a_time(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = prepared(make([]), "a")
    store = make([code])
    remove(Path(store.place(code)).parent)
    run = environments.run_job

    def while_it_runs(*given: object) -> object:
        with pytest.raises(Overloaded):  # so a load of another call is tried again later
            store.site(code)
        return run(*given)  # type: ignore[arg-type]

    monkeypatch.setattr(environments, "run_job", while_it_runs)
    assert Path(store.site(code)).is_dir()
    monkeypatch.undo()
    remove(Path(store.place(code)).parent)
    assert Path(store.site(code)).is_dir()


@pytest.mark.parametrize(
    ("number", "kind"), [(errno.ENOSPC, DiskFull), (errno.EROFS, BackendUnavailable)]
)
def test_a_folder_that_cannot_be_written_is_named(
    make: Make, monkeypatch: pytest.MonkeyPatch, number: int, kind: type[DandelionError]
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(number, os.strerror(number))

    store = make([])
    with monkeypatch.context() as patch:
        patch.setattr(Path, "mkdir", refuse)
        with pytest.raises(kind, match=f"cache: {os.strerror(number)}"):
            prepared(store, "a")
    prepared(store, "a")


def test_recorded_wheels_come_back_although_there_are_newer_ones(make: Make, wheels: Path) -> None:
    code = prepared(make([]), "a")
    wheel(wheels, "a", "2.0")
    remove(Path(make([]).place(code)).parent)
    store = make([code])
    assert (Path(store.site(code)) / "a.py").read_text() == "VERSION = '1.0'\n"
    assert prepared(store, "a").wheels.keys() == {"a-2.0-py3-none-any.whl"}


def test_a_wheel_that_was_replaced_is_not_taken(make: Make, wheels: Path) -> None:
    code = prepared(make([]), "a")
    wheel(wheels, "a", "1.0", {"a.py": "other"})
    remove(Path(make([]).place(code)).parent)
    with pytest.raises(InvalidFunction, match="digest"):
        make([code]).site(code)
    renewed = prepared(make([]), "a")
    assert make([]).place(renewed) != make([]).place(code)


def test_unused_environments_make_room_and_used_ones_do_not(
    make: Make, wheels: Path, tmp_path: Path
) -> None:
    for name in ("x", "y", "z"):
        wheel(wheels, name, "1.0", {f"{name}.bin": bytes(400 << 10)})
    used: list[CodeObject] = []
    store, other = make(used), make([])
    first, second = prepared(store, "x"), prepared(store, "y")
    assert other.site(first)  # another node uses it
    used.append(second)
    with pytest.raises(EnvironmentsFull):
        prepared(store, "z")
    assert Path(store.place(first)).is_dir()
    assert Path(store.place(second)).is_dir()
    other.release_unused()
    third = prepared(store, "z")
    assert not Path(store.place(first)).exists()
    used_keys = {Path(store.place(c)).parent.name for c in (second, third)}
    assert {path.stem for path in (tmp_path / "cache").glob("?*.lock")} == used_keys
    assert {Path(store.place(c)).is_dir() for c in (second, third)} == {True}


def test_an_environment_stays_while_it_is_registered(make: Make, wheels: Path) -> None:
    for name in ("x", "y"):
        wheel(wheels, name, "1.0", {f"{name}.bin": bytes(700 << 10)})
    store = make([])
    with store.prepare(["x"], {}, "here"), pytest.raises(EnvironmentsFull):
        prepared(store, "y")
    prepared(store, "y")


def test_nodes_that_prepare_together_keep_the_limit(
    make: Make, wheels: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("x", "y"):
        wheel(wheels, name, "1.0", {f"{name}.bin": bytes(700 << 10)})
    both, checked, done = Barrier(2), Environments._make_room, Barrier(2)

    def slow(self: Environments, record: EnvironmentRecord) -> None:
        checked(self, record)
        with suppress(BrokenBarrierError):  # the other has to wait for this one
            both.wait(0.3)

    def kept(store: Environments, name: str) -> bool:
        try:
            with store.prepare([name], {}, "here"):
                done.wait(20)
        except EnvironmentsFull:
            done.wait(20)
            return False
        return True

    monkeypatch.setattr(Environments, "_make_room", slow)
    with ThreadPoolExecutor(2) as pool:
        assert sorted(pool.map(kept, (make([]), make([])), ("x", "y"))) == [False, True]


def test_locks_of_environments_that_are_gone_are_removed(make: Make, tmp_path: Path) -> None:
    for name in ("gone", "used"):
        (tmp_path / "cache").mkdir(exist_ok=True)
        (tmp_path / "cache" / f"{name}.lock").touch()
    with closing(make([])) as store, ExitStack() as other:
        lock = locked(tmp_path / "cache" / "used.lock", fcntl.LOCK_SH)
        other.callback(os.close, lock)
        code = prepared(store, "a")
        found = {path.stem for path in (tmp_path / "cache").glob("?*.lock")}
        assert found == {"used", Path(store.place(code)).parent.name}


def test_a_lock_that_is_removed_before_it_is_locked_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, flock = tmp_path / "key.lock", fcntl.flock

    def late(lock: int, how: int) -> None:
        monkeypatch.undo()
        path.unlink()
        flock(lock, how)

    monkeypatch.setattr(fcntl, "flock", late)
    first = locked(path, fcntl.LOCK_EX)
    try:
        with pytest.raises(BlockingIOError):
            locked(path, fcntl.LOCK_EX | fcntl.LOCK_NB)
    finally:
        os.close(first)


def test_limits_of_disk_files_and_time(
    make: Make, wheels: Path, tmp_path: Path, silent: socket.socket
) -> None:
    wheel(wheels, "large", "1.0", {"large.bin": bytes(2 << 20)})
    wheel(wheels, "many", "1.0", {f"m{n}.txt": "" for n in range(50)})
    store = make([], msgspec.structs.replace(LIMITS, files=20))
    assert refused(store, "large") == "too-much-disk"
    assert refused(store, "many") == "too-much-disk"
    source = PackageSource(index=f"http://127.0.0.1:{silent.getsockname()[1]}/simple")
    slow = Environments(tmp_path / "slow", source, msgspec.structs.replace(LIMITS, wall_s=1), list)
    try:
        assert refused(slow, "slow") == "too-much-time"
    finally:
        slow.close()
    assert prepared(store, "a").wheels


def test_closing_ends_a_preparation(tmp_path: Path, silent: socket.socket) -> None:
    before = children()
    source = PackageSource(index=f"http://127.0.0.1:{silent.getsockname()[1]}/simple")
    store = Environments(tmp_path / "cache", source, LIMITS, list)
    with ThreadPoolExecutor(1) as pool:
        preparation = pool.submit(prepared, store, "a")
        connection, _ = silent.accept()
        with connection, ExitStack() as others:
            while preparing._places.acquire(blocking=False):
                others.callback(preparing._places.release)
            with pytest.raises(Overloaded):
                prepared(store, "b")
            store.stop()
            with pytest.raises(Cancelled):
                preparation.result(20)
    assert children() <= before
    assert not list((tmp_path / "cache").glob(".preparing*"))


def test_a_process_that_is_killed_from_outside_is_no_fault_of_packages(
    tmp_path: Path, silent: socket.socket
) -> None:
    before = children()
    source = PackageSource(index=f"http://127.0.0.1:{silent.getsockname()[1]}/simple")
    store = Environments(tmp_path / "cache", source, LIMITS, list)
    with ThreadPoolExecutor(1) as pool, closing(store):
        preparation = pool.submit(prepared, store, "a")
        with silent.accept()[0]:
            (process,) = children() - before
            os.kill(int(process), signal.SIGKILL)
            with pytest.raises(BackendUnavailable, match="was killed"):
                preparation.result(20)


def test_the_process_reads_no_files_but_wheels(make: Make, wheels: Path, tmp_path: Path) -> None:
    outside = wheel(tmp_path / "private", "secret", "1.0")
    (wheels / outside.name).symlink_to(outside)
    with pytest.raises(BackendUnavailable, match="secret"):
        prepared(make([]), "secret")
    assert prepared(make([]), "a").wheels


def test_a_folder_that_others_may_write_to_is_refused(make: Make, tmp_path: Path) -> None:
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache").chmod(0o777)
    with pytest.raises(DandelionError, match="other users"):
        prepared(make([]), "a")


def test_links_to_folders_are_not_sealed(tmp_path: Path) -> None:
    site = tmp_path / "site"
    site.mkdir()
    (site / "package").symlink_to("/usr")
    with pytest.raises(InternalError, match="link"):
        sealed(site, {})


@pytest.mark.parametrize(
    ("number", "kind"),
    [(errno.ENOSPC, DiskFull), (errno.EIO, BackendUnavailable), (errno.ENOENT, BackendUnavailable)],
)
def test_what_the_disk_refuses_is_no_internal_error(
    make: Make, monkeypatch: pytest.MonkeyPatch, number: int, kind: type[DandelionError]
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr("dandelion.packages.resolving.resolve", refuse)
    job = PrepareJob(os.getpid(), ("a",), {}, PackageSource(), PrepareLimits())
    answer = prepare_process.prepare(job, None)
    monkeypatch.setattr(preparing, "_answer", lambda *_: answer)
    with pytest.raises(kind, match=os.strerror(number)):
        prepared(make([]), "a")
