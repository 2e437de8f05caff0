"""A durable catalogue: records in SQLite, blobs as files.

A folder contains ``catalog.sqlite``, ``blobs/`` (see `blob_folder`) and ``lock``. One process at a
time owns it, by a lock that ends with the process.

SQLite uses a rollback journal, not a write-ahead log: between two commits ``catalog.sqlite`` alone
has all records. So a copy of it is complete, and the loss of another file loses no records.

When `register` returns, the batch is on the disk; before, it is there completely or not at all. The
order of steps ensures this, also if the process is killed between any two of them::

    register:  write and flush blobs -> commit records -> show them in memory
    remove:    commit the removal -> hide it in memory -> unlink blobs
    replace:   write and flush blobs -> commit both -> show and hide in memory -> unlink blobs
    open:      read records -> delete blobs that no record refers to

Blobs are written outside the catalogue's lock, so large registrations do not delay small ones. A
running registration counts as a reference to each of its blobs, so a concurrent removal cannot
delete a blob that it will refer to.

Reads of records come from memory; only blobs are read from the disk.

A folder that was edited or copied in part may lack what its records need. Opening it succeeds,
since everything else works, and a warning names what is missing (see `missing`).

Only ``catalog.sqlite`` records which blobs are in use. If it is missing or empty while there are
blobs, it was lost, and opening is refused (`CatalogLost`), so that no blob is deleted because of an
empty file. A store that was killed at its creation has no blobs yet.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, ClassVar, TypeAlias

import msgspec

from dandelion.catalog import (
    KINDS,
    Batch,
    CatalogState,
    MemoryCatalog,
    Record,
    Removal,
    Slot,
    kind_of,
    used_blobs,
)
from dandelion.data import Bytes
from dandelion.errors import (
    CatalogCorrupt,
    CatalogLost,
    CatalogUnavailable,
    Conflict,
    InvalidInput,
)
from dandelion.function import Digest

from .blob_folder import BlobFolder, blob_files, flush_folder, is_digest
from .disk_errors import reported
from .missing import missing
from .sqlite_invocations import open_invocations as open_invocations

SCHEMA = 1
BUSY_S = 5.0
"""Timeout for a lock of another program, such as one that copies the database."""
NAMED_LIMIT = 8
"""So many of the things that a folder lacks are named in the log when it is opened."""

log = logging.getLogger("dandelion.registry")

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

_Count: TypeAlias = Annotated[int, msgspec.Meta(ge=0)]


def open_catalog(path: str) -> SqliteCatalog:
    """Open the catalogue in a folder; create the folder if it does not exist.

    Raises:
        InvalidInput: no path is given.
        Conflict: another node has it open.
        CatalogLost: it has blobs but no records.
        CatalogCorrupt: its files are damaged or from a newer version.
        CatalogUnavailable: its files are locked by a program other than a node, or not permitted,
            or on a read-only or failing disk.
        DiskFull: opening must write, and the disk is full.
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
            with _described(folder / self.FILE), reported(folder / self.FILE):
                self._lock_fd = _own(folder)
                opened.callback(os.close, self._lock_fd)
                self._db = _connect(folder / self.FILE)
                opened.callback(self._db.close)
                counted = self._load()
                self._files = BlobFolder(folder, self._references.__contains__)
                self._warn_of_missing(counted)
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

    def blob_bytes(self, digest: Digest) -> int:
        return self._files.size_bytes(digest)

    def _exchange(self, batch: Batch, replaced: Sequence[Removal]) -> list[Record]:
        with self._written(batch.blobs, set(batch.blobs)):
            return super()._exchange(batch, replaced)

    def restore(self, state: CatalogState, blobs: Mapping[Digest, Bytes]) -> list[Record]:
        with self._written(blobs, used_blobs(state.records()) & blobs.keys()):
            return super().restore(state, blobs)

    @contextlib.contextmanager
    def _written(self, blobs: Mapping[Digest, Bytes], digests: set[Digest]) -> Iterator[None]:
        """Write blobs, and keep them until records refer to them."""
        with self._lock:
            self._references.update(digests)
        try:
            for digest in digests:
                if digest not in self._files:
                    self._files.write(digest, blobs[digest])
            yield
        finally:
            with self._lock:
                self._release(digests)

    def _used(self) -> set[Digest]:
        return used_blobs(self._view.all_records())

    def _keep_blobs(self, blobs: dict[Digest, Bytes]) -> None:
        pass  # already written

    def _drop_blob(self, digest: Digest) -> None:
        self._files.delete(digest)

    def _store(self, added: Sequence[Record], removed: Sequence[Record]) -> None:
        delete = "DELETE FROM records WHERE kind = ? AND name = ? AND version = ?"
        with self._transaction():
            self._write(added)
            rows = [(kind_of(r), r.name, r.version) for r in removed]
            self._db.executemany(delete, rows)

    def _write(self, records: Iterable[Record]) -> None:
        for record in records:
            body = msgspec.msgpack.encode(record)
            row = (kind_of(record), record.name, record.version)
            # An existing row of that version is from a commit that failed after writing it.
            self._db.execute("INSERT OR REPLACE INTO records VALUES (?, ?, ?, ?)", (*row, body))
            self._db.execute("INSERT OR REPLACE INTO versions VALUES (?, ?, ?)", row)

    def _replace(self, state: CatalogState) -> None:
        with self._transaction():
            self._db.execute("DELETE FROM records")
            self._db.execute("DELETE FROM versions")
            self._write(state.records())
            self._db.executemany("INSERT OR REPLACE INTO versions VALUES (?, ?, ?)", state.newest)

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[None]:
        if self._closed:
            raise Conflict("catalogue", str(self._folder), "it is closed")
        with reported(self._folder / self.FILE):
            self._db.execute("BEGIN IMMEDIATE")
            try:
                yield
                self._db.execute("UPDATE state SET generation = ?", (self.generation + 1,))
                self._db.execute("COMMIT")
            except BaseException:
                if self._db.in_transaction:
                    with contextlib.suppress(sqlite3.Error):  # the first error is more useful
                        self._db.execute("ROLLBACK")
                raise

    def _load(self) -> dict[Slot, int]:
        """Read all records; return the newest version that was ever given of each name."""
        counted: dict[Slot, int] = {}
        try:
            state = self._db.execute("SELECT generation FROM state").fetchone()
            (self.generation,) = msgspec.convert(state, tuple[_Count])
            rows = self._db.execute("SELECT kind, name, version, body FROM records")
            shape = tuple[str, str, _Count, bytes]
            found = [_record(*msgspec.convert(row, shape)) for row in rows]
            self._show(found, self._view.changed(found))
            for row in self._db.execute("SELECT kind, name, newest FROM versions"):
                kind, name, newest = msgspec.convert(row, tuple[str, str, _Count])
                counted[kind, name] = newest
            for slot, newest in counted.items():
                self._next[slot] = max(newest, self._next.get(slot, 0))
        except msgspec.MsgspecError as error:
            raise CatalogCorrupt(str(self._folder / self.FILE), str(error)) from None
        return counted

    def _warn_of_missing(self, counted: dict[Slot, int]) -> None:
        found = list(missing(self._view.all_records(), counted, self._files.__contains__))
        if not found:
            return
        more = len(found) - NAMED_LIMIT
        named = "; ".join(found[:NAMED_LIMIT]) + (f"; and {more} more" if more > 0 else "")
        log.warning(
            "the catalogue in %s is not whole: %s. Restore a copy, or register these again",
            self._folder,
            named,
        )


def _record(kind: str, name: str, version: int, body: bytes) -> Record:
    """Read the body of a row.

    Raises:
        msgspec.MsgspecError: it is not a record, or a different one than the row's.
    """
    where = f"{kind} '{name}' version {version}"
    if kind not in KINDS:
        raise msgspec.ValidationError(f"{where}: unknown kind")
    try:
        record = msgspec.msgpack.decode(body, type=KINDS[kind])
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise msgspec.ValidationError(f"{where}: {error}") from None
    if (record.name, record.version) != (name, version):
        message = f"its body is that of '{record.name}' version {record.version}"
        raise msgspec.ValidationError(f"{where}: {message}")
    bad = [digest for digest in used_blobs([record]) if not is_digest(digest)]
    if bad:
        raise msgspec.ValidationError(f"{where}: '{bad[0]}' is not a digest")
    return record


def _own(folder: Path) -> int:
    if not folder.is_dir():
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        flush_folder(folder.parent)
    fd = os.open(folder / "lock", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.ftruncate(fd, 0)
        os.pwrite(fd, b"%d\n" % os.getpid(), 0)
    except BlockingIOError:
        owner = os.pread(fd, 32, 0).decode("ascii", "replace").strip()
        os.close(fd)
        by = f"process {owner}" if owner else "another process"
        raise Conflict("catalogue", str(folder), f"{by} has it open") from None
    except OSError:
        os.close(fd)
        raise
    return fd


@contextlib.contextmanager
def _described(path: Path) -> Iterator[None]:
    """Add to errors of opening what an operator can do."""
    try:
        yield
    except CatalogLost:  # it has a remedy
        raise
    except CatalogCorrupt as error:
        remedy = (
            f"restore {path.parent} from a copy; or start with an empty catalogue, which loses all "
            f"registered records: move {path} and {path.with_name('blobs')} away"
        )
        raise CatalogCorrupt(error.path, f"{error.message}; {remedy}") from None


def _connect(path: Path) -> sqlite3.Connection:
    if path.is_dir():
        raise CatalogCorrupt(str(path), "it is a folder, not a file")
    if not path.exists() or not path.stat().st_size:
        # Before SQLite opens it: beside an empty database SQLite also removes the log.
        _check_new(path, "it is empty" if path.exists() else "it is missing")
    db = sqlite3.connect(path, timeout=BUSY_S, isolation_level=None, check_same_thread=False)
    try:
        _prepare(db, path)
    except BaseException:
        db.close()
        raise
    return db


def _prepare(db: sqlite3.Connection, path: Path) -> None:
    (schema,) = db.execute("PRAGMA user_version").fetchone()
    if schema not in (0, SCHEMA):
        age = "a newer Dandelion" if schema > SCHEMA else "another program"
        message = f"it was written by {age} (schema {schema}, this one reads {SCHEMA})"
        raise CatalogCorrupt(str(path), message)
    (verdict,) = db.execute("PRAGMA quick_check(1)").fetchone()
    if verdict != "ok":
        raise CatalogCorrupt(str(path), str(verdict))
    if schema == 0:
        (tables,) = db.execute("SELECT count(*) FROM sqlite_schema").fetchone()
        if tables:
            raise CatalogCorrupt(str(path), "it is a database of another program")
        _check_new(path, "it has no records")
    (mode,) = db.execute("PRAGMA journal_mode = DELETE").fetchone()
    if mode != "delete":
        raise CatalogUnavailable(
            str(path), f"its journal stays in mode '{mode}'", "close other programs that use it"
        )
    db.execute("PRAGMA synchronous = EXTRA")  # the removal of the journal is the commit
    if schema == 0:
        db.executescript(_CREATE)
        flush_folder(path.parent)


def _check_new(path: Path, state: str) -> None:
    """Refuse to create a new catalogue where there was one.

    Raises:
        CatalogLost: blobs, or a log of SQLite, are beside the file.
    """
    blobs = path.with_name("blobs")
    log = path.with_name(f"{path.name}-wal")
    count = sum(1 for _ in blob_files(blobs))
    if count:
        message = f"{state}, but {blobs} has {count} {'blob' if count == 1 else 'blobs'}"
        new_start = f"move {blobs} away"
    elif log.exists() and log.stat().st_size:
        message = f"{state}, but {log} has records"
        new_start = f"move {log} away"
    else:
        return
    raise CatalogLost(
        str(path),
        message,
        f"restore {path.name} from a copy; or start with an empty catalogue, which loses all "
        f"registered records: {new_start}",
    )
