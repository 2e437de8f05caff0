"""The durable store of asynchronous invocations, beside the catalogue ``sqlite:FOLDER``.

``FOLDER/invocations.sqlite`` has the records, and inputs and results up to `INLINE_BYTES`. Larger
ones are files ``FOLDER/invocations/ID.PART``. The catalogue owns the folder and is opened first, so
no other process uses these files.

::

    prepare: write and flush a file in pieces
    write:  write and flush files -> flush their folder -> commit -> unlink files
    open:   check the database -> delete files that no row refers to

A write is there completely or not at all, also after SIGKILL or loss of power at any point: files
count only once a row refers to them. If the database is missing or empty while there are files, it
was lost, and opening is refused. Steps of many invocations are one commit. The database uses a
write-ahead log, which costs one flush for a commit; it is part of the database, so copy both while
no node runs.

The name of a file is the id, which the node made; ids of records are checked as they are read.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import re
import sqlite3
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import msgspec

from dandelion.asynchronous.failures import KeptCorrupt
from dandelion.asynchronous.records import KeptRecord
from dandelion.asynchronous.store import Drop, KeptStore, Part, Put, StoreStep
from dandelion.data import Bytes
from dandelion.errors import CatalogCorrupt, Conflict, InvalidInput, Unknown

from .blob_folder import flush_folder
from .disk_errors import reported

SCHEMA = 1
INLINE_BYTES = 64 * 1024
"""Larger data is a file of its own."""
PIECE_BYTES = 1024 * 1024
"""So much of a file is flushed at once."""
APPLICATION = 0x444B4956  # "DKIV"
BUSY_S = 5.0

_ID = re.compile(r"[0-9a-f]{32}")
_CREATE = f"""
BEGIN IMMEDIATE;
CREATE TABLE invocations (id TEXT PRIMARY KEY NOT NULL, body BLOB NOT NULL) WITHOUT ROWID;
CREATE TABLE parts (
    id TEXT NOT NULL,
    part TEXT NOT NULL,
    body BLOB,
    PRIMARY KEY (id, part)
);
PRAGMA application_id = {APPLICATION};
PRAGMA user_version = {SCHEMA};
COMMIT;
"""


def open_invocations(path: str) -> SqliteKeptStore:
    """Open the store in the folder of a catalogue.

    Raises:
        InvalidInput: no path is given.
        KeptCorrupt: it is damaged, or from a newer version.
        CatalogUnavailable, DiskFull: it cannot be opened now.
    """
    if not path:
        raise InvalidInput("registry", "a folder is missing", "write sqlite:PATH")
    return SqliteKeptStore(Path(path).expanduser())


class SqliteKeptStore(KeptStore):
    """The store in a folder, which the catalogue has locked.

    Args:
        folder: of the catalogue.
    """

    is_durable = True
    FILE = "invocations.sqlite"

    def __init__(self, folder: Path) -> None:
        self._path = folder / self.FILE
        self._files = folder / "invocations"
        self._closed = False
        self._reading = threading.Lock()
        with contextlib.ExitStack() as opened, _described(self._path):
            self._files.mkdir(mode=0o700, exist_ok=True)
            self._db = _connect(self._path)
            opened.callback(self._db.close)
            self._reader = sqlite3.connect(
                self._path, timeout=BUSY_S, isolation_level=None, check_same_thread=False
            )
            opened.callback(self._reader.close)
            self._records = self._loaded()
            self._sweep()
            flush_folder(folder)
            self._opened = opened.pop_all()

    def load(self) -> list[KeptRecord]:
        records, self._records = self._records, []
        return records

    def close(self) -> None:
        with self._reading:
            self._closed = True
            self._opened.close()

    def read(self, id_: str, part: Part) -> Bytes:
        with self._reading, reported(self._path):
            self._refuse_if_closed()
            query = "SELECT body FROM parts WHERE id = ? AND part = ?"
            row = self._reader.execute(query, (id_, part.value)).fetchone()
        if row is None:
            raise Unknown(f"{part.value} of invocation", id_)
        if row[0] is not None:
            return bytes(row[0])
        path = self._file(id_, part)
        with reported(path), path.open("rb") as file:
            if not os.fstat(file.fileno()).st_size:
                raise CatalogCorrupt(str(path), "it is empty")
            return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))

    def prepare(self, step: Put) -> Put:
        if step.part is None or not _is_file(step):
            return step
        path = self._file(step.record.id, step.part)
        prepared = msgspec.structs.replace(step, chunks=(), is_prepared=True)
        try:
            with reported(path):
                _write_flushed(path, step.chunks)
        except BaseException:
            self.discard(prepared)
            raise
        return prepared

    def discard(self, step: Put) -> None:
        assert step.part is not None
        with contextlib.suppress(OSError):  # else it is deleted when the folder is opened
            self._file(step.record.id, step.part).unlink()

    def write(self, steps: Sequence[StoreStep]) -> None:
        written: list[Path] = []
        gone: list[Path] = []
        try:
            with reported(self._path):
                self._refuse_if_closed()
                files = [step for step in steps if isinstance(step, Put) and _is_file(step)]
                for put in files:
                    assert put.part is not None
                    if not put.is_prepared:
                        written.append(self._file(put.record.id, put.part))
                        _write_flushed(written[-1], put.chunks)
                if files:
                    flush_folder(self._files)
                with self._transaction():
                    for step in steps:
                        self._apply(step, gone)
        except BaseException:
            for path in written:  # a result that was stored before is never written again
                with contextlib.suppress(OSError):
                    path.unlink()
            raise
        for path in gone:
            with contextlib.suppress(OSError):  # else it is deleted when the folder is opened
                path.unlink()

    def _apply(self, step: StoreStep, gone: list[Path]) -> None:
        execute = self._db.execute
        if isinstance(step, Drop):
            execute("DELETE FROM invocations WHERE id = ?", (step.id,))
            self._drop_parts(step.id, tuple(Part), gone)
            return
        record = step.record
        assert _ID.fullmatch(record.id)
        row = (record.id, msgspec.msgpack.encode(record))
        execute("INSERT OR REPLACE INTO invocations VALUES (?, ?)", row)
        if step.part is not None:
            body = None if _is_file(step) else b"".join(step.chunks)
            part = (record.id, step.part.value, body)
            execute("INSERT OR REPLACE INTO parts VALUES (?, ?, ?)", part)
        if record.state.has_ended:
            self._drop_parts(record.id, (Part.INPUTS,), gone)

    def _drop_parts(self, id_: str, parts: Sequence[Part], gone: list[Path]) -> None:
        for part in parts:
            where = (id_, part.value)
            is_file = "SELECT 1 FROM parts WHERE id = ? AND part = ? AND body IS NULL"
            found = self._db.execute(is_file, where).fetchone()
            self._db.execute("DELETE FROM parts WHERE id = ? AND part = ?", where)
            if found is not None:
                gone.append(self._file(id_, part))

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[None]:
        self._db.execute("BEGIN IMMEDIATE")
        try:
            yield
            self._db.execute("COMMIT")
        except BaseException:
            if self._db.in_transaction:
                with contextlib.suppress(sqlite3.Error):  # the first error is more useful
                    self._db.execute("ROLLBACK")
            raise

    def _refuse_if_closed(self) -> None:
        if self._closed:
            raise Conflict("invocations", str(self._path), "the store is closed")

    def _file(self, id_: str, part: Part) -> Path:
        assert _ID.fullmatch(id_)
        return self._files / f"{id_}.{part.value}"

    def _loaded(self) -> list[KeptRecord]:
        records = []
        for id_, body in self._db.execute("SELECT id, body FROM invocations"):
            try:
                record = msgspec.msgpack.decode(body, type=KeptRecord)
            except (msgspec.MsgspecError, UnicodeDecodeError, TypeError) as error:
                raise CatalogCorrupt(str(self._path), f"invocation {id_!r}: {error}") from None
            if record.id != id_ or not _ID.fullmatch(record.id):
                raise CatalogCorrupt(str(self._path), f"invocation {id_!r}: its record is another")
            records.append(record)
        return records

    def _sweep(self) -> None:
        used = {
            f"{id_}.{part}"
            for id_, part in self._db.execute("SELECT id, part FROM parts WHERE body IS NULL")
        }
        for path in self._files.iterdir():
            if path.name not in used and not path.is_dir():  # such as lost+found
                path.unlink()


def _is_file(step: Put) -> bool:
    is_large = step.is_prepared or step.size_bytes > INLINE_BYTES
    return step.part is not None and is_large


@contextlib.contextmanager
def _described(path: Path) -> Iterator[None]:
    """Add to errors of opening what an operator can do."""
    try:
        with reported(path):
            yield
    except CatalogCorrupt as error:
        remedy = (
            f"restore {path.parent} from a copy; or give up all asynchronous invocations that are "
            f"kept: move {path}, {path.name}-wal, {path.name}-shm and {path.stem}/ away; the "
            "catalogue is not affected"
        )
        raise KeptCorrupt(error.path, error.message, remedy) from None


def _connect(path: Path) -> sqlite3.Connection:
    if path.is_dir():
        raise CatalogCorrupt(str(path), "it is a folder, not a file")
    if not path.exists() or not path.stat().st_size:
        _check_new(path, "it is empty" if path.exists() else "it is missing")
    os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))  # the log gets the same mode
    db = sqlite3.connect(path, timeout=BUSY_S, isolation_level=None, check_same_thread=False)
    try:
        _prepare(db, path)
    except BaseException:
        db.close()
        raise
    return db


def _check_new(path: Path, state: str) -> None:
    """Refuse to begin a new store where there was one; its files would be deleted.

    Raises:
        CatalogCorrupt: the folder of large inputs and results has files.
    """
    folder = path.with_name(path.stem)
    count = sum(1 for _ in folder.iterdir())
    if count:
        message = f"{state}, but {folder} has {count} {'file' if count == 1 else 'files'}"
        raise CatalogCorrupt(str(path), message)


def _prepare(db: sqlite3.Connection, path: Path) -> None:
    def pragma(name: str) -> object:
        return db.execute(f"PRAGMA {name}").fetchone()[0]

    schema = pragma("user_version")
    is_ours = pragma("application_id") == APPLICATION
    if schema == 0 and not is_ours:
        _create(db, path, pragma)
    elif not is_ours or not isinstance(schema, int) or not 0 < schema <= SCHEMA:
        age = "a newer Dandelion" if is_ours else "another program"
        message = f"it was written by {age} (schema {schema}, this one reads {SCHEMA})"
        raise CatalogCorrupt(str(path), message)
    verdict = pragma("quick_check(1)")
    if verdict != "ok":
        raise CatalogCorrupt(str(path), str(verdict))
    mode = pragma("journal_mode = WAL")
    if mode != "wal":
        raise CatalogCorrupt(str(path), f"its journal stays in mode '{mode}'")
    db.execute("PRAGMA synchronous = FULL")  # each commit flushes the log


def _create(db: sqlite3.Connection, path: Path, pragma: Callable[[str], object]) -> None:
    if db.execute("SELECT count(*) FROM sqlite_schema").fetchone()[0]:
        raise CatalogCorrupt(str(path), "it is a database of another program")
    db.execute("PRAGMA journal_mode = WAL")
    db.execute("PRAGMA synchronous = FULL")
    db.executescript(_CREATE)
    flush_folder(path.parent)


def _write_flushed(path: Path, chunks: Sequence[Bytes]) -> None:
    """Write a file in pieces, each flushed: a commit may have to wait for what is not flushed."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    unflushed = 0
    try:
        for chunk in chunks:
            rest = memoryview(chunk).cast("B")
            while rest:
                written = os.write(fd, rest[:PIECE_BYTES])
                rest = rest[written:]
                unflushed += written
                if unflushed >= PIECE_BYTES:
                    os.fdatasync(fd)
                    unflushed = 0
        os.fsync(fd)
    finally:
        os.close(fd)
