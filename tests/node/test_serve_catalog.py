"""`dandelion serve` keeps registrations in the user's data folder, and says so."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import pwd
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from dandelion.catalog import open_catalog
from dandelion.cli.data_folder import announcement, default_catalog
from dandelion.cli.serve import make_node
from dandelion.cli.settings import load_settings, setting_help
from dandelion.documents import CodeDocument, FunctionDocument
from dandelion.errors import (
    CatalogCorrupt,
    CatalogUnavailable,
    Conflict,
    DandelionError,
    DiskFull,
    InvalidInput,
)
from dandelion.frontend.client import Client
from dandelion.node import Node
from dandelion.settings import Settings

ROOT = Path(__file__).resolve().parent.parent.parent
COMMAND = [sys.executable, "-m", "dandelion", "serve", "--port", "0", "--backends", "null"]
FUNCTION = FunctionDocument("f", ("a",), ("b",), code=(CodeDocument("null"),))


def environment(home: Path) -> dict[str, str]:
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("DANDELION_", "XDG_"))}
    return kept | {"HOME": str(home)}


@contextlib.contextmanager
def serving(home: Path, *options: str) -> Iterator[tuple[str, str]]:
    """Start a node in a home; yield its URL and the line about its catalogue."""
    with subprocess.Popen(
        [*COMMAND, "--arena-bytes", "4MiB", *options],
        cwd=ROOT,
        env=environment(home),
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as process:
        try:
            assert process.stdout is not None
            said = process.stdout.readline()
            url = process.stdout.readline().partition("listens on ")[2].partition(";")[0]
            yield url, said
        finally:
            process.terminate()
    assert process.returncode == 0


def test_registrations_outlive_the_node(tmp_path: Path) -> None:
    folder = tmp_path / ".local/share/dandelion"
    with serving(tmp_path) as (url, said), Client(url) as client:
        assert str(folder) in said
        assert "--catalog memory:" in said
        client.register(FUNCTION)
        second = subprocess.run(
            [*COMMAND, "--json"],
            env=environment(tmp_path),
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=False,
        )
        assert second.returncode == 1
        assert "has it open" in second.stderr
        assert client.invoke("f", a="x").b.text() == "x"
    assert folder.stat().st_mode & 0o777 == 0o700
    with serving(tmp_path) as (url, _), Client(url) as client:
        assert client.invoke("f", a="y").b.text() == "y"


# --- where it is --------------------------------------------------------------------------------


def test_the_folder_is_that_of_xdg(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/u")
    monkeypatch.delenv("XDG_DATA_HOME", raising=False)
    assert default_catalog() == "sqlite:/home/u/.local/share/dandelion"
    monkeypatch.setenv("XDG_DATA_HOME", "/data")
    assert default_catalog() == "sqlite:/data/dandelion"
    monkeypatch.setenv("XDG_DATA_HOME", "relative")  # the standard says that it is ignored
    assert default_catalog() == "sqlite:/home/u/.local/share/dandelion"


def test_a_user_without_a_home(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HOME", raising=False)
    monkeypatch.delenv("XDG_DATA_HOME", raising=False)
    monkeypatch.setattr(pwd, "getpwuid", {}.__getitem__)  # of a user who is not in the database
    with pytest.raises(InvalidInput) as caught:
        load_settings(None, {}, {}, default_catalog)
    assert caught.value.where == "HOME"
    assert "--catalog memory:" in caught.value.hint
    assert load_settings(None, {}, {"catalog": ["memory:"]}, default_catalog).catalog == "memory:"


def test_every_source_of_settings_overrides_it(tmp_path: Path) -> None:
    file = tmp_path / "node.toml"
    file.write_text('catalog = "sqlite:/of/the/file"\n')
    for settings in (
        load_settings(file, {}, {}, default_catalog),
        load_settings(None, {"DANDELION_CATALOG": "sqlite:/of/the/file"}, {}, default_catalog),
        load_settings(None, {}, {"catalog": ["sqlite:/of/the/file"]}, default_catalog),
    ):
        assert settings.catalog == "sqlite:/of/the/file"
    assert "data folder" in setting_help("catalog")


def test_an_embedded_node_writes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    with Node(Settings(backends=("null",), arena_bytes=4 << 20)) as node:
        node.register(FUNCTION)
    assert list(tmp_path.iterdir()) == []


def test_the_announcement() -> None:
    assert announcement(Settings()) == announcement(Settings(catalog="memory"))
    assert "until this node ends" in announcement(Settings())
    home = str(Path("~/x").expanduser())
    assert home in announcement(Settings(catalog="sqlite:~/x"))
    assert "kept in other:place (" in announcement(Settings(catalog="other:place"))


# --- a folder that cannot be used ---------------------------------------------------------------


def newer(folder: Path) -> None:
    open_catalog(f"sqlite:{folder}").close()
    with contextlib.closing(sqlite3.connect(folder / "catalog.sqlite")) as db:
        db.execute("PRAGMA user_version = 99")


def records_lost(folder: Path) -> None:
    (folder / "blobs/ab").mkdir(parents=True)
    (folder / "blobs/ab" / ("0" * 62)).touch()


def file_above(folder: Path) -> None:
    folder.parent.touch()


@pytest.mark.parametrize("make", [newer, records_lost, file_above])
def test_a_folder_that_is_unusable(make: Callable[[Path], None], tmp_path: Path) -> None:
    folder = tmp_path / "share" / "dandelion"
    if make is not file_above:
        folder.mkdir(parents=True)
    make(folder)
    before = sorted(tmp_path.rglob("*"))
    refused(folder, CatalogCorrupt)
    assert sorted(p for p in tmp_path.rglob("*") if p.name not in {"lock"}) == [
        p for p in before if p.name != "lock"
    ]


def test_a_folder_of_another_node(tmp_path: Path) -> None:
    with contextlib.closing(open_catalog(f"sqlite:{tmp_path}")):
        assert str(os.getpid()) in str(refused(tmp_path, Conflict))


@pytest.mark.parametrize(
    ("number", "kind"),
    [
        (errno.EACCES, CatalogUnavailable),
        (errno.EROFS, CatalogUnavailable),
        (errno.ENOSPC, DiskFull),
        (errno.EDQUOT, DiskFull),
    ],
)
@pytest.mark.parametrize("step", ["mkdir", "open"])
def test_a_disk_that_refuses(
    number: int,
    kind: type[DandelionError],
    step: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The home is not writable, its disk read-only or full: for the folder, or for its files."""
    folder = tmp_path / "dandelion"
    owner: Any = Path if step == "mkdir" else os
    if step == "open":
        folder.mkdir()

    def refuse(path: object, *_: object, **__: object) -> None:
        raise OSError(number, os.strerror(number), str(path))

    with monkeypatch.context() as patch:
        patch.setattr(owner, step, refuse)
        refused(folder, kind)
    opened = make_node(Settings(catalog=f"sqlite:{folder}", backends=("null",)))
    opened.close()


def refused(folder: Path, kind: type[DandelionError]) -> DandelionError:
    """Expect an error that names the folder and the other choices."""
    with pytest.raises(kind) as caught:
        make_node(Settings(catalog=f"sqlite:{folder}", backends=("null",), arena_bytes=4 << 20))
    (note,) = caught.value.__notes__
    assert "--catalog memory:" in note
    assert "--catalog sqlite:FOLDER" in note
    assert str(folder) in note
    assert str(folder.parent) in str(caught.value)
    return caught.value


def test_the_place_as_json(tmp_path: Path) -> None:
    with subprocess.Popen(
        [*COMMAND, "--json", "--catalog", f"sqlite:{tmp_path}"],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as process:
        assert process.stdout is not None
        place = json.loads(process.stdout.readline())
        process.terminate()
    assert place["catalog"] == f"sqlite:{tmp_path}"
