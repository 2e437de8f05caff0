"""Catalogues that are opened again, locked or damaged."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from dandelion.catalog import (
    Batch,
    Catalog,
    open_catalog,
)
from dandelion.data import Bytes
from dandelion.errors import (
    BackendUnavailable,
    CatalogCorrupt,
    Conflict,
    DiskFull,
    InvalidInput,
)
from dandelion.function import Digest, FunctionSpec, digest_of
from tests.conformance.catalog_records import BIG, a_composition, a_function, a_library, opened


@pytest.fixture(params=["memory", "sqlite"])
def catalog(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Catalog]:
    url = "memory:" if request.param == "memory" else f"sqlite:{tmp_path / 'catalog'}"
    with contextlib.closing(open_catalog(url)) as opened:
        yield opened


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "catalog"


def test_everything_is_there_after_reopening(folder: Path) -> None:
    with opened(folder) as catalog:
        catalog.register(a_function("F", b"1", BIG))
        catalog.register(a_function("F", b"2"))
        catalog.register(a_composition("C", "F"))
        catalog.register(a_library("L", b"lib"))
        catalog.register(a_function("gone"))
        catalog.remove(FunctionSpec, "gone")
        records, generation = catalog.records(), catalog.generation
    with opened(folder) as again:
        assert again.records() == records
        assert again.generation == generation
        assert again.versions(FunctionSpec, "F") == [1, 2]
        assert again.blob(digest_of(BIG)) == BIG
        assert not again.has_blob(digest_of(b"gone"))
        (record,) = again.register(a_function("gone"))
        assert record.version == 2


def test_big_blobs_are_mapped_and_outlive_removal_and_closing(folder: Path) -> None:
    with opened(folder) as catalog:
        catalog.register(a_function("F", BIG))
        view = catalog.blob(digest_of(BIG))
        assert isinstance(view, memoryview)
        again = catalog.blob(digest_of(BIG))
        assert isinstance(again, memoryview)
        assert again.obj is view.obj  # one mapping, verified once
        catalog.remove(FunctionSpec, "F")
    assert view == BIG


def test_a_folder_has_one_owner(folder: Path) -> None:
    with opened(folder), pytest.raises(Conflict) as caught:
        open_catalog(f"sqlite:{folder}")
    assert str(os.getpid()) in caught.value.message
    with opened(folder):
        pass


def test_the_owner_may_be_another_process(folder: Path) -> None:
    script = (
        "import sys; from dandelion.catalog import open_catalog\n"
        "c = open_catalog(sys.argv[1]); print('open', flush=True); sys.stdin.read(); c.close()"
    )
    child = subprocess.Popen(
        [sys.executable, "-c", script, f"sqlite:{folder}"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    with child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"open\n"
        with pytest.raises(Conflict) as caught:
            open_catalog(f"sqlite:{folder}")
        assert str(child.pid) in caught.value.message
        child.kill()
    with opened(folder):
        pass


def test_a_lock_without_a_number_is_respected_too(folder: Path) -> None:
    with opened(folder):
        pass
    with (folder / "lock").open("wb") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(Conflict):
            open_catalog(f"sqlite:{folder}")


def test_a_newer_schema_is_refused(folder: Path) -> None:
    with opened(folder):
        pass
    with contextlib.closing(sqlite3.connect(folder / "catalog.sqlite")) as db:
        db.execute("PRAGMA user_version = 99")
    with pytest.raises(CatalogCorrupt) as caught:
        open_catalog(f"sqlite:{folder}")
    assert "99" in caught.value.message
    assert f"restore {folder} from a copy" in caught.value.message
    with contextlib.closing(sqlite3.connect(folder / "catalog.sqlite")) as db:
        db.execute("PRAGMA user_version = 1")
    with opened(folder):
        pass


def test_what_the_error_of_a_newer_schema_says_can_be_done(folder: Path) -> None:
    with opened(folder) as catalog:
        catalog.register(a_function())
    with contextlib.closing(sqlite3.connect(folder / "catalog.sqlite")) as db:
        db.execute("PRAGMA user_version = 99")
    with pytest.raises(CatalogCorrupt, match=r"move .*sqlite and .*blobs away"):
        open_catalog(f"sqlite:{folder}")
    (folder / "catalog.sqlite").unlink()
    shutil.rmtree(folder / "blobs")
    with opened(folder):
        pass


def test_records_of_an_older_version_are_read(folder: Path) -> None:
    """Fields that were added later have their defaults."""
    with opened(folder):
        pass
    body = msgspec.msgpack.encode({"name": "F", "version": 1})
    with contextlib.closing(sqlite3.connect(folder / "catalog.sqlite")) as db, db:
        db.execute("INSERT INTO records VALUES ('function', 'F', 1, ?)", (body,))
    with opened(folder) as catalog:
        assert catalog.records() == [FunctionSpec("F", version=1)]


def test_records_of_a_newer_version_are_named(folder: Path) -> None:
    with opened(folder) as catalog:
        catalog.register(a_function("F"))
    with contextlib.closing(sqlite3.connect(folder / "catalog.sqlite")) as db, db:
        db.execute("UPDATE records SET body = ?", (b"\x81\xa4name\x01",))
    with pytest.raises(CatalogCorrupt) as caught:
        open_catalog(f"sqlite:{folder}")
    assert "function 'F' version 1" in caught.value.message


@pytest.mark.parametrize("garbage", [b"no database" * 500, b"SQLite format 3\0" + b"\xff" * 5000])
def test_a_damaged_database_is_reported(folder: Path, garbage: bytes) -> None:
    with opened(folder) as catalog:
        catalog.register(a_function("F"))
    (folder / "catalog.sqlite").write_bytes(garbage)
    with pytest.raises(CatalogCorrupt) as caught:
        open_catalog(f"sqlite:{folder}")
    assert str(folder) in caught.value.path


def blob_file(folder: Path, data: bytes) -> Path:
    digest = digest_of(data)
    return folder / "blobs" / digest[:2] / digest[2:]


@pytest.mark.parametrize("data", [b"small", BIG])
@pytest.mark.parametrize("damage", ["cut", "empty", "flip", "missing"])
def test_a_damaged_blob_is_reported_and_healed(folder: Path, data: bytes, damage: str) -> None:
    with opened(folder) as catalog:
        catalog.register(a_function("F", data))
        catalog.register(a_function("G", b"whole"))
    file = blob_file(folder, data)
    if damage == "missing":
        file.unlink()
    else:
        flipped = data[:-1] + bytes([data[-1] ^ 1])
        file.write_bytes({"cut": data[:-1], "empty": b"", "flip": flipped}[damage])
    with opened(folder) as catalog:
        with pytest.raises(CatalogCorrupt) as caught:
            catalog.blob(digest_of(data))
        assert caught.value.path == str(file)
        with pytest.raises(CatalogCorrupt):
            catalog.blob(digest_of(data))
        assert not catalog.has_blob(digest_of(data))
        assert bytes(catalog.blob(digest_of(b"whole"))) == b"whole"
        (record,) = catalog.register(a_function("F", data))
        assert record.version == 1
        assert catalog.blob(digest_of(data)) == data
    with opened(folder) as catalog:
        assert catalog.blob(digest_of(data)) == data


def test_leftovers_are_swept_on_opening(folder: Path) -> None:
    with opened(folder) as catalog:
        catalog.register(a_function("F"))
    orphan = blob_file(folder, b"orphan")
    orphan.parent.mkdir(exist_ok=True)
    orphan.write_bytes(b"orphan")
    staged = folder / "staging" / "half"
    staged.write_bytes(b"ha")
    foreign = folder / "blobs" / "README"
    foreign.write_text("not ours")
    with opened(folder) as catalog:
        assert not orphan.exists()
        assert not staged.exists()
        assert foreign.exists()
        assert bytes(catalog.blob(digest_of(b"F"))) == b"F"


def test_nothing_is_left_over_by_use(folder: Path) -> None:
    with opened(folder) as catalog:
        catalog.register(a_function("F", b"1", b"2"))
        with pytest.raises(Conflict):
            catalog.register(Batch(compositions=a_composition("F").compositions, blobs=stray()))
        catalog.remove(FunctionSpec, "F")
        files = [p for sub in ("blobs", "staging") for p in (folder / sub).rglob("*")]
        assert not [p for p in files if p.is_file()]


def stray() -> dict[Digest, Bytes]:
    return {digest_of(b"stray"): b"stray"}


def test_a_disk_without_room_changes_nothing(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(fd: int, data: object) -> int:
        raise OSError(28, "No space left on device")

    with opened(folder) as catalog:
        catalog.register(a_function("F"))
        before = catalog.records(), catalog.generation
        with monkeypatch.context() as patch:
            patch.setattr(os, "write", full)
            with pytest.raises(DiskFull) as caught:
                catalog.register(a_function("G", b"12345"))
        assert caught.value.needed_bytes == 5
        assert (catalog.records(), catalog.generation) == before
        assert not list((folder / "staging").iterdir())
        catalog.register(a_function("G", b"12345"))


def test_a_failed_commit_changes_nothing(folder: Path) -> None:
    with opened(folder) as catalog:
        catalog.register(a_function("F"))
        before = catalog.records(), catalog.generation
        with contextlib.closing(sqlite3.connect(folder / "catalog.sqlite")) as other:
            other.execute(
                "CREATE TRIGGER full BEFORE INSERT ON versions BEGIN SELECT RAISE(ABORT, 'no'); END"
            )
            with pytest.raises(CatalogCorrupt):
                catalog.register(a_function("G"))
            other.execute("DROP TRIGGER full")
        assert (catalog.records(), catalog.generation) == before
        assert not catalog.has_blob(digest_of(b"G"))
        (record,) = catalog.register(a_function("G"))
        assert record.version == 1


def test_a_closed_catalogue_refuses_changes(folder: Path) -> None:
    catalog = open_catalog(f"sqlite:{folder}")
    catalog.close()
    catalog.close()
    with pytest.raises(Conflict):
        catalog.register(a_function("F"))


@pytest.mark.parametrize("url", ["nosuch:x", "", "blob_folder:x", "a.b:x"])
def test_unknown_stores_are_refused(url: str) -> None:
    with pytest.raises(BackendUnavailable):
        open_catalog(url)


def test_a_path_is_needed() -> None:
    with pytest.raises(InvalidInput):
        open_catalog("sqlite:")


def test_a_path_that_is_a_file_is_reported(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text(json.dumps({}))
    with pytest.raises(CatalogCorrupt):
        open_catalog(f"sqlite:{file}")
