"""A catalogue whose file or disk cannot be used now."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import sqlite3
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from dandelion.registry import disk_errors, sqlite

from dandelion.catalog import Batch, CompositionRecord, open_catalog
from dandelion.errors import (
    CatalogCorrupt,
    CatalogUnavailable,
    DandelionError,
    DiskFull,
)
from dandelion.function import FunctionSpec
from tests.faults.damaged_store import FILE, blobs_in, function, names_in, opened


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A store of many functions, closed."""
    folder = tmp_path / "catalog"
    with opened(folder) as catalog:
        for number in range(40):
            catalog.register(function(f"F{number:02}", b"%d" % number * 50))
    return folder


def test_a_database_locked_by_another_program(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite, "BUSY_S", 0.01)
    with contextlib.closing(sqlite3.connect(folder / FILE, isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        with pytest.raises(CatalogUnavailable) as caught:
            open_catalog(f"sqlite:{folder}")
        assert "locked" in caught.value.message
        other.execute("ROLLBACK")
        with opened(folder) as catalog:
            other.execute("BEGIN EXCLUSIVE")
            with pytest.raises(CatalogUnavailable):
                catalog.register(function("G", b"g"))
            with pytest.raises(CatalogUnavailable):
                catalog.remove(FunctionSpec, "F00")
            assert len(names_in(catalog)) == 40
            other.execute("ROLLBACK")
            catalog.register(function("G", b"g"))
            catalog.remove(FunctionSpec, "F00")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_database_that_may_not_be_read(folder: Path) -> None:
    (folder / FILE).chmod(0)
    with pytest.raises(CatalogUnavailable):
        open_catalog(f"sqlite:{folder}")
    (folder / FILE).chmod(0o600)
    with opened(folder) as catalog:
        assert len(names_in(catalog)) == 40


class FailingConnection:
    """A connection to SQLite whose n-th statement fails.

    Args:
        inner: the real one.
        code: of SQLite.
    """

    def __init__(self, inner: sqlite3.Connection, code: int) -> None:
        self._inner = inner
        self._code = code
        self.left = 0

    def _count(self) -> None:
        self.left -= 1
        if self.left == 0:
            error = sqlite3.OperationalError("disk I/O error")
            error.sqlite_errorcode = self._code
            raise error

    def execute(self, statement: str, *arguments: Any) -> sqlite3.Cursor:
        if statement != "ROLLBACK":
            self._count()
        return self._inner.execute(statement, *arguments)

    def executemany(self, statement: str, rows: Any) -> sqlite3.Cursor:
        self._count()
        return self._inner.executemany(statement, rows)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


CASES = [
    (sqlite3.SQLITE_FULL, None, DiskFull),
    (sqlite3.SQLITE_IOERR_WRITE, errno.EDQUOT, DiskFull),
    (sqlite3.SQLITE_CANTOPEN, errno.ENOSPC, DiskFull),
    (sqlite3.SQLITE_IOERR_FSYNC, errno.EIO, CatalogUnavailable),
    (sqlite3.SQLITE_IOERR_FSYNC, None, CatalogUnavailable),
    (sqlite3.SQLITE_READONLY, errno.EROFS, CatalogUnavailable),
    (sqlite3.SQLITE_CANTOPEN, errno.EACCES, CatalogUnavailable),
    (sqlite3.SQLITE_BUSY, None, CatalogUnavailable),
    (sqlite3.SQLITE_CORRUPT, None, CatalogCorrupt),
]


@pytest.mark.parametrize(("code", "cause", "expected"), CASES)
def test_a_statement_that_fails_changes_nothing(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    code: int,
    cause: int | None,
    expected: type[DandelionError],
) -> None:
    made: list[FailingConnection] = []
    connect = sqlite3.connect

    def failing(*arguments: Any, **options: Any) -> Any:
        made.append(FailingConnection(connect(*arguments, **options), code))
        return made[-1]

    def requested(path: Path) -> OSError | None:
        return None if cause is None else OSError(cause, os.strerror(cause))

    with monkeypatch.context() as patch:
        patch.setattr(sqlite3, "connect", failing)
        patch.setattr(disk_errors, "_probe_file_system", requested)
        with opened(folder) as catalog:
            generation, blobs = catalog.generation, blobs_in(folder)
            for step in range(1, 6):  # begin, record, version, generation, commit
                made[0].left = step
                with pytest.raises(expected):
                    catalog.register(function("G", b"g"))
            for step in range(1, 5):
                made[0].left = step
                with pytest.raises(expected):
                    catalog.remove(FunctionSpec, "F00")
            assert catalog.generation == generation
            assert blobs_in(folder) == blobs
            (record,) = catalog.register(function("G", b"g"))
            assert record.version == 1
    with opened(folder) as catalog:
        assert len(names_in(catalog)) == 41


def test_an_error_of_opening_is_that_of_the_disk(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(fd: int, data: bytes, offset: int) -> int:
        raise OSError(errno.EDQUOT, os.strerror(errno.EDQUOT))

    monkeypatch.setattr(os, "pwrite", full)  # the owner's number in the lock
    with pytest.raises(DiskFull) as caught:
        open_catalog(f"sqlite:{folder}")
    assert "quota" in caught.value.reason


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 512 KiB and 200 files."""
    disk = tmp_path / "disk"
    disk.mkdir()
    options = ["-t", "tmpfs", "-o", "size=512k,nr_inodes=200", "tmpfs", str(disk)]
    if shutil.which("mount") is None or subprocess.run(["mount", *options], check=False).returncode:
        pytest.skip("mounting a tmpfs needs the rights of root")
    try:
        yield disk
    finally:
        subprocess.run(["umount", "--lazy", str(disk)], check=True)


def with_blob(number: int, size: int) -> Batch:
    return function(f"F{number:03}", b"%06d" % number * (size // 6))


def with_text(number: int, size: int) -> Batch:
    """Needs room in the database alone."""
    return Batch(compositions=[CompositionRecord(f"C{number:03}", "t" * size, (), ())])


@pytest.mark.parametrize(
    ("size", "make"),
    [
        (6, with_blob),
        (6000, with_blob),
        (60_000, with_blob),
        (6000, with_text),
        (60_000, with_text),
    ],
)
def test_a_full_disk(small_disk: Path, size: int, make: Callable[[int, int], Batch]) -> None:
    folder = small_disk / "catalog"
    done: list[str] = []
    with opened(folder) as catalog:
        ballast = small_disk / "ballast"
        ballast.write_bytes(bytes(200_000))
        for _ in range(2):  # full, room, full again
            with pytest.raises(DiskFull) as caught:
                for number in range(len(done), 1000):
                    (record,) = catalog.register(make(number, size))
                    done.append(record.name)
            assert caught.value.reason == os.strerror(errno.ENOSPC)
            assert names_in(catalog) == done
            if ballast.exists():
                ballast.unlink()
                made = len(done)
        assert len(done) > made or size == 6  # that many files are too many, with room or without
        assert len(blobs_in(folder)) == (len(done) if make is with_blob else 0)
    with opened(folder) as catalog:
        assert names_in(catalog) == done


def test_a_store_that_is_opened_on_a_full_disk(small_disk: Path) -> None:
    folder = small_disk / "catalog"
    with pytest.raises(OSError, match="No space"):
        (small_disk / "ballast").write_bytes(bytes(1 << 20))
    with pytest.raises(DiskFull):
        open_catalog(f"sqlite:{folder}")
    (small_disk / "ballast").unlink()
    with opened(folder) as catalog:
        catalog.register(function("F", b"f"))


def test_a_read_only_disk(small_disk: Path) -> None:
    folder = small_disk / "catalog"
    with opened(folder) as catalog:
        catalog.register(function("F", b"f"))
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    with pytest.raises(CatalogUnavailable) as caught:
        open_catalog(f"sqlite:{folder}")
    assert caught.value.message == os.strerror(errno.EROFS)
    subprocess.run(["mount", "-o", "remount,rw", str(small_disk)], check=True)
    with opened(folder) as catalog:
        assert names_in(catalog) == ["F"]
