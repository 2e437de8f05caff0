"""A durable catalogue: records in SQLite, blobs as files.

A folder holds ``catalog.sqlite`` (write-ahead log, flushed at every commit), ``blobs/`` (see
`blob_folder`) and ``lock``. One process at a time owns it, by a lock that ends with the process.

What `register` has returned for is on the disk; what it has not returned for is there whole or not
at all. The order makes it so, and a kill between any two steps leaves nothing half-registered::

    register:  write and flush blobs -> commit records -> show them in memory
    remove:    commit the removal -> hide it in memory -> unlink blobs
    open:      read records -> sweep blobs that no record refers to

Blobs are written outside the catalogue's lock, so large registrations do not hold up small ones. A
registration under way counts as a reference to each of its blobs; so a removal at the same time
cannot take away a blob that is about to be referred to.

Reads come from memory; the disk is asked for blobs alone.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

import msgspec

from dandelion.catalog import (
    Batch,
    CompositionRecord,
    LibraryRecord,
    MemoryCatalog,
    Record,
    kind_of,
    used_blobs,
)
from dandelion.data import Bytes
from dandelion.errors import CatalogCorrupt, Conflict, ContextFull, InvalidInput
from dandelion.function import Digest, FunctionSpec

from .blob_folder import BlobFolder, flush_folder

SCHEMA = 1

_CREATE = f"""
BEGIN IMMEDIATE;
CREATE TABLE records (
    kind TEXT NOT NULL,
    name TEXT NOT NULL,
    version INTEGER NOT NULL,
    body BLOB NOT NULL,
    PRIMARY KEY (kind, name, version)
) WITHOUT ROWID;
CREATE TABLE versions (
    kind TEXT NOT NULL,
    name TEXT NOT NULL,
    newest INTEGER NOT NULL,
    PRIMARY KEY (kind, name)
) WITHOUT ROWID;
CREATE TABLE state (generation INTEGER NOT NULL);
INSERT INTO state VALUES (0);
PRAGMA user_version = {SCHEMA};
COMMIT;
"""

_KINDS: dict[str, type[Record]] = {
    kind_of(cls): cls for cls in (FunctionSpec, CompositionRecord, LibraryRecord)
}


def open_catalog(path: str) -> SqliteCatalog:
    """Open the catalogue in a folder, which is made if need be.

    Raises:
        InvalidInput: no path is given.
        Conflict: another process has it open.
        CatalogCorrupt: its files are damaged, unreadable, or from a newer version.
    """
    if not path:
        raise InvalidInput("registry", "a folder is missing", "write sqlite:PATH")
    return SqliteCatalog(Path(path).expanduser())


class SqliteCatalog(MemoryCatalog):
    """The catalogue in a folder. Safe to call from any thread of the process that owns it."""

    FILE: ClassVar[str] = "catalog.sqlite"

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self._folder = folder
        self._closed = False
        with contextlib.ExitStack() as opened:
            with _reported(folder):
                self._lock_fd = _own(folder)
                opened.callback(os.close, self._lock_fd)
                self._db = _connect(folder / self.FILE)
                opened.callback(self._db.close)
                self._load()
                self._files = BlobFolder(folder, self._references.__contains__)
            self._opened = opened.pop_all()

    def close(self) -> None:
        with self._lock:
            self._closed = True
            self._opened.close()

    def has_blob(self, digest: Digest) -> bool:
        return digest in self._files

    def blob(self, digest: Digest) -> Bytes:
        if digest not in self._files and digest in self._used():
            raise CatalogCorrupt(str(self._files.path(digest)), "the blob is missing or damaged")
        return self._files.read(digest)

    def _register(self, batch: Batch) -> list[Record]:
        with self._held(batch):
            for digest, data in batch.blobs.items():
                if digest not in self._files:
                    self._files.write(digest, data)
            return super()._register(batch)

    @contextlib.contextmanager
    def _held(self, batch: Batch) -> Iterator[None]:
        with self._lock:
            self._references.update(batch.blobs.keys())
        try:
            yield
        finally:
            with self._lock:
                self._release(batch.blobs)

    def _used(self) -> set[Digest]:
        with self._lock:
            return used_blobs(r for versions in self._records.values() for r in versions.values())

    def _keep_blobs(self, blobs: dict[Digest, Bytes]) -> None:
        pass  # they were written before

    def _drop_blob(self, digest: Digest) -> None:
        self._files.delete(digest)

    def _save(self, added: list[Record]) -> None:
        with self._transaction():
            for record in added:
                body = msgspec.msgpack.encode(record)
                row = (kind_of(record), record.name, record.version)
                self._db.execute("INSERT INTO records VALUES (?, ?, ?, ?)", (*row, body))
                self._db.execute("INSERT OR REPLACE INTO versions VALUES (?, ?, ?)", row)

    def _erase(self, removed: list[Record]) -> None:
        delete = "DELETE FROM records WHERE kind = ? AND name = ? AND version = ?"
        with self._transaction():
            rows = [(kind_of(r), r.name, r.version) for r in removed]
            self._db.executemany(delete, rows)

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[None]:
        if self._closed:
            raise Conflict("catalogue", str(self._folder), "it is closed")
        with _reported(self._folder / self.FILE):
            self._db.execute("BEGIN IMMEDIATE")
            try:
                yield
                self._db.execute("UPDATE state SET generation = ?", (self.generation + 1,))
                self._db.execute("COMMIT")
            except BaseException:
                if self._db.in_transaction:
                    self._db.execute("ROLLBACK")
                raise

    def _load(self) -> None:
        (self.generation,) = self._db.execute("SELECT generation FROM state").fetchone()
        for kind, name, version, body in self._db.execute("SELECT * FROM records"):
            try:
                self._insert(msgspec.msgpack.decode(body, type=_KINDS[kind]))
            except (KeyError, msgspec.MsgspecError) as error:
                where = f"{kind} '{name}' version {version}"
                raise CatalogCorrupt(str(self._folder / self.FILE), f"{where}: {error}") from None
        for kind, name, newest in self._db.execute("SELECT * FROM versions"):
            self._next[kind, name] = newest


def _own(folder: Path) -> int:
    if not folder.is_dir():
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        flush_folder(folder.parent)
    fd = os.open(folder / "lock", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        owner = os.pread(fd, 32, 0).decode("ascii", "replace").strip()
        os.close(fd)
        by = f"process {owner}" if owner else "another process"
        raise Conflict("catalogue", str(folder), f"{by} has it open") from None
    os.ftruncate(fd, 0)
    os.pwrite(fd, b"%d\n" % os.getpid(), 0)
    return fd


def _connect(path: Path) -> sqlite3.Connection:
    db = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    try:
        _prepare(db, path)
    except BaseException:
        db.close()
        raise
    return db


def _prepare(db: sqlite3.Connection, path: Path) -> None:
    db.execute("PRAGMA journal_mode = WAL")
    db.execute("PRAGMA synchronous = FULL")
    (schema,) = db.execute("PRAGMA user_version").fetchone()
    if schema > SCHEMA:
        message = f"it was written by a newer Dandelion (schema {schema}, this one reads {SCHEMA})"
        raise CatalogCorrupt(str(path), message)
    (verdict,) = db.execute("PRAGMA quick_check(1)").fetchone()
    if verdict != "ok":
        raise CatalogCorrupt(str(path), str(verdict))
    if schema == 0:
        db.executescript(_CREATE)
        flush_folder(path.parent)


@contextlib.contextmanager
def _reported(path: Path) -> Iterator[None]:
    """Turn what SQLite and the file system say into the catalogue's errors."""
    try:
        yield
    except sqlite3.Error as error:
        if getattr(error, "sqlite_errorcode", 0) == sqlite3.SQLITE_FULL:
            free = shutil.disk_usage(path.parent).free
            raise ContextFull(str(path), 0, free) from None
        raise CatalogCorrupt(str(path), str(error)) from None
    except OSError as error:
        raise CatalogCorrupt(str(error.filename or path), error.strerror or str(error)) from None
