"""A durable catalogue whose files are damaged, lost or locked, or whose disk is full or read-only.

What comes of it is a typed error that says what is wrong and how to go on; no blob is swept by what
a damaged file says, and nothing that was acknowledged is lost.
"""

from __future__ import annotations

import contextlib
import random
import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest
from dandelion.registry import sqlite

from dandelion import Node, Settings, python_function
from dandelion.catalog import Batch, CompositionRecord, open_catalog
from dandelion.errors import (
    CatalogCorrupt,
    CatalogLost,
    DandelionError,
)
from dandelion.function import FunctionSpec, digest_of
from tests.faults.damaged_store import FILE, blobs_in, function, names_in, opened

PAGE = 4096


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A store of many functions, closed."""
    folder = tmp_path / "catalog"
    with opened(folder) as catalog:
        for number in range(40):
            catalog.register(function(f"F{number:02}", b"%d" % number * 50))
    return folder


def empty_database(file: Path) -> None:
    file.unlink()
    with contextlib.closing(sqlite3.connect(file)) as db:
        db.execute("PRAGMA journal_mode = WAL")


LOSSES: dict[str, Callable[[Path], object]] = {
    "missing": Path.unlink,
    "empty": lambda file: file.write_bytes(b""),
    "no tables": empty_database,
}


@pytest.mark.parametrize("loss", LOSSES)
def test_a_lost_database_beside_blobs_is_no_new_store(folder: Path, loss: str) -> None:
    file = folder / FILE
    copy = file.read_bytes()
    blobs = blobs_in(folder)
    LOSSES[loss](file)
    for _ in range(2):  # the first try leaves nothing that the second one takes for a store
        with pytest.raises(CatalogLost) as caught:
            open_catalog(f"sqlite:{folder}")
        assert blobs_in(folder) == blobs
    assert caught.value.path == str(file)
    assert "40 blobs" in caught.value.message
    assert str(folder / "blobs") in caught.value.remedy
    file.write_bytes(copy)
    with opened(folder) as catalog:
        assert len(names_in(catalog)) == 40


@pytest.mark.parametrize("loss", LOSSES)
def test_moving_the_blobs_away_accepts_the_loss(folder: Path, loss: str) -> None:
    LOSSES[loss](folder / FILE)
    (folder / "blobs").rename(folder / "blobs.old")
    with opened(folder) as catalog:
        assert names_in(catalog) == []
        catalog.register(function("new", b"new"))
    with opened(folder) as catalog:
        assert names_in(catalog) == ["new"]
    assert len(list((folder / "blobs.old").rglob("*"))) > 40


def test_a_log_without_its_database_is_kept(folder: Path) -> None:
    shutil.rmtree(folder / "blobs")
    (folder / FILE).unlink()
    log = folder / f"{FILE}-wal"
    log.write_bytes(b"records")
    with pytest.raises(CatalogLost) as caught:
        open_catalog(f"sqlite:{folder}")
    assert str(log) in caught.value.remedy
    assert log.read_bytes() == b"records"


def test_a_store_that_was_killed_while_it_was_made_is_new(tmp_path: Path) -> None:
    (tmp_path / "blobs" / "ab").mkdir(parents=True)
    (tmp_path / "blobs" / "README").write_text("no blob")
    (tmp_path / FILE).touch()
    with opened(tmp_path) as catalog:
        assert names_in(catalog) == []


def assert_typed(folder: Path) -> bool:
    """Open and read a damaged store; whatever goes wrong is a typed error, and sweeps nothing."""
    blobs = blobs_in(folder)
    try:
        with opened(folder) as catalog:
            with contextlib.suppress(DandelionError):
                names_in(catalog)
            with contextlib.suppress(DandelionError):
                catalog.register(function("F00", b"other"))
            with contextlib.suppress(DandelionError):
                catalog.remove(FunctionSpec, "F01")
    except CatalogCorrupt:
        assert blobs_in(folder) == blobs
        return False
    return True


def test_cut_at_every_page(folder: Path) -> None:
    whole = (folder / FILE).read_bytes()
    assert len(whole) >= 4 * PAGE
    for page in range(0, len(whole), PAGE):
        for cut in {max(0, page - 1), page, page + 1, page + PAGE // 2} - {len(whole)}:
            (folder / FILE).write_bytes(whole[:cut])
            assert not assert_typed(folder), cut
    (folder / FILE).write_bytes(whole)
    with opened(folder) as catalog:
        assert len(names_in(catalog)) == 40


def test_random_bytes_anywhere(folder: Path, tmp_path: Path) -> None:
    dice = random.Random(8)
    whole = (folder / FILE).read_bytes()
    refused = 0
    for _ in range(150):
        damaged = bytearray(whole)
        length = dice.choice((1, 1, 4, 64, PAGE))
        for _ in range(dice.choice((1, 3))):
            at = dice.choice((dice.randrange(128), dice.randrange(len(whole))))
            damaged[at : at + length] = dice.randbytes(length)
        copy = tmp_path / "damaged"
        shutil.copytree(folder, copy)
        (copy / FILE).write_bytes(damaged)
        refused += not assert_typed(copy)
        shutil.rmtree(copy)
    assert refused > 40


@pytest.mark.parametrize("word", [b"TABLE", b"records", b"kind, name"])
def test_a_schema_that_is_no_text(folder: Path, word: bytes) -> None:
    whole = (folder / FILE).read_bytes()
    (folder / FILE).write_bytes(whole.replace(word, b"\xee" * len(word)))
    assert not assert_typed(folder)


@pytest.mark.parametrize("page", range(4))
def test_a_page_of_zeros(folder: Path, page: int) -> None:
    damaged = bytearray((folder / FILE).read_bytes())
    damaged[page * PAGE : (page + 1) * PAGE] = bytes(PAGE)
    (folder / FILE).write_bytes(damaged)
    assert not assert_typed(folder)


@pytest.mark.parametrize(
    "statement",
    [
        "DELETE FROM state",
        "UPDATE state SET generation = 'many'",
        "UPDATE state SET generation = -1",
        "DROP TABLE state",
        "DROP TABLE records",
        "ALTER TABLE versions RENAME newest TO latest",
        "UPDATE records SET version = 'x' WHERE name = 'F00'",
        "UPDATE records SET version = -1 WHERE name = 'F00'",
        "UPDATE records SET body = 'text' WHERE name = 'F00'",
        "UPDATE records SET body = x'' WHERE name = 'F00'",
        "UPDATE records SET name = 'G' WHERE name = 'F00'",
        "UPDATE records SET name = CAST(x'ff' AS TEXT) WHERE name = 'F00'",
        "UPDATE records SET kind = 'thing' WHERE name = 'F00'",
        "UPDATE versions SET newest = 'x' WHERE name = 'F00'",
        "PRAGMA user_version = 2",
        "PRAGMA user_version = -7",
    ],
)
def test_rows_that_no_version_writes(folder: Path, statement: str) -> None:
    with contextlib.closing(sqlite3.connect(folder / FILE)) as db, db:
        db.execute(statement)
    assert not assert_typed(folder)


def test_a_digest_that_is_none(folder: Path) -> None:
    with contextlib.closing(sqlite3.connect(folder / FILE)) as db, db:
        (body,) = db.execute("SELECT body FROM records WHERE name = 'F00'").fetchone()
        digest = digest_of(b"0" * 50).encode()
        db.execute(
            "UPDATE records SET body = ? WHERE name = 'F00'",
            (body.replace(digest, b"../" * 21 + b"x"),),
        )
    assert not assert_typed(folder)


def test_a_database_of_another_program_is_left_alone(tmp_path: Path) -> None:
    with contextlib.closing(sqlite3.connect(tmp_path / FILE)) as db:
        db.execute("CREATE TABLE theirs (x)")
    before = (tmp_path / FILE).read_bytes()
    with pytest.raises(CatalogCorrupt):
        open_catalog(f"sqlite:{tmp_path}")
    assert (tmp_path / FILE).read_bytes() == before


def test_a_folder_in_place_of_the_database(folder: Path) -> None:
    (folder / FILE).unlink()
    (folder / FILE).mkdir()
    with pytest.raises(CatalogCorrupt) as caught:
        open_catalog(f"sqlite:{folder}")
    assert caught.value.path == str(folder / FILE)


def edit(folder: Path, statement: str) -> None:
    with contextlib.closing(sqlite3.connect(folder / FILE)) as db, db:
        db.execute(statement)


@pytest.fixture
def used(tmp_path: Path) -> Path:
    """A store of a function with two versions, and a composition that uses it; closed."""
    folder = tmp_path / "used"
    with opened(folder) as catalog:
        catalog.register(function("F", b"first"))
        catalog.register(function("F", b"second"))
        user = CompositionRecord("C", "composition C", (), (), uses=("F",))
        catalog.register(Batch(compositions=[user]))
    return folder


def warned(folder: Path, caplog: pytest.LogCaptureFixture) -> str:
    """Open a store; return the warning that it is not whole, or an empty text."""
    caplog.clear()
    with opened(folder) as catalog:
        assert catalog.records()
    return "".join(record.getMessage() for record in caplog.records)


def test_missing_versions_are_named(used: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert warned(used, caplog) == ""
    edit(used, "DELETE FROM records WHERE name = 'F'")
    text = warned(used, caplog)
    assert str(used) in text
    assert "composition 'C' version 1 uses 'F'" in text


def test_functions_of_the_platform_are_not_missing(
    used: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with opened(used) as catalog:
        user = CompositionRecord("Fetch", "composition Fetch", (), (), uses=("HTTP", "F"))
        catalog.register(Batch(compositions=[user]))
    assert warned(used, caplog) == ""


@pytest.mark.parametrize("damage", ["missing", "empty"])
def test_a_function_without_its_code_is_not_called(tmp_path: Path, damage: str) -> None:
    text = "def f(x): return 'ok'"
    written = python_function(text, name="f", inputs=["x"], outputs=["y"])
    settings = Settings(catalog=f"sqlite:{tmp_path}", backends=("process",), engines={"process": 1})
    with Node(settings) as node:
        node.register(written)
    (blob,) = (tmp_path / "blobs").glob("*/*")
    if damage == "missing":
        blob.unlink()
    else:
        blob.write_bytes(b"")
    with Node(settings) as node:
        with pytest.raises(CatalogCorrupt):
            node.invoke("f", x="1")
        node.register(written)
        assert node.invoke("f", x="1").y.text() == "ok"


def test_missing_blobs_are_named(used: Path, caplog: pytest.LogCaptureFixture) -> None:
    digest = digest_of(b"first")
    (used / "blobs" / digest[:2] / digest[2:]).unlink()
    text = warned(used, caplog)
    assert f"function 'F' version 1 needs blob {digest}" in text
    assert "version 2" not in text


def test_a_missing_count_of_versions_is_named(used: Path, caplog: pytest.LogCaptureFixture) -> None:
    with opened(used) as catalog:
        catalog.remove(FunctionSpec, "F", 2)
    assert warned(used, caplog) == ""  # what was removed as usual is not missing
    edit(used, "DELETE FROM versions WHERE name = 'F'")
    text = warned(used, caplog)
    assert "function 'F' version 1 is not counted" in text
    assert "'C'" not in text


def test_only_some_of_many_missing_things_are_named(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    shutil.rmtree(folder / "blobs")
    text = warned(folder, caplog)
    assert text.count("needs blob") == sqlite.NAMED_LIMIT
    assert f"and {40 - sqlite.NAMED_LIMIT} more" in text


def test_damage_is_survived_while_the_store_is_open(folder: Path) -> None:
    with opened(folder) as catalog:
        (folder / FILE).write_bytes(random.Random(3).randbytes(8 * PAGE))
        for number in range(3):
            with contextlib.suppress(DandelionError):
                catalog.register(function(f"N{number}", b"n%d" % number))
        assert len([n for n in names_in(catalog) if n.startswith("F")]) == 40
