"""A durable catalogue whose process is killed at any moment loses nothing it acknowledged.

A child runs operation after operation and acknowledges each over a pipe; it is killed with SIGKILL.
What is found afterwards must be what a catalogue in memory holds after the acknowledged operations,
or after one more, which was under way. Children are forked by a **fork server**, a process that has
imported everything already, so that a round costs milliseconds.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

import pytest

import dandelion
from dandelion.catalog import (
    Batch,
    Catalog,
    CompositionRecord,
    LibraryRecord,
    MemoryCatalog,
    Record,
    open_catalog,
    used_blobs,
)
from dandelion.data import Bytes
from dandelion.errors import CatalogCorrupt
from dandelion.function import CodeObject, Digest, FunctionSpec, digest_of

ROUNDS = 45
STEPS_OPERATIONS = 3
DURABLE_CALLS = frozenset(
    {
        *("mkdir", "write", "pwrite", "ftruncate", "fsync", "replace", "unlink", "rmdir"),
        *("execute", "executemany", "executescript"),
    }
)


def operate(catalog: Catalog, number: int) -> None:
    """Do the operation of that number: two registrations, then a removal, and so on."""
    if number % 3 == 2:
        catalog.remove(FunctionSpec, f"A{(number - 2) % 5}")
        return
    own, big = b"own %d" % number, b"%08d" % number * 10_000
    blobs: dict[Digest, Bytes] = {digest_of(d): d for d in (own, big, b"shared")}
    code = CodeObject("python", digest_of(own), {"shared": digest_of(b"shared")})
    a, b = (FunctionSpec(f"{letter}{number % 5}", code=(code,)) for letter in "AB")
    composition = CompositionRecord("C", f"text {number}", (), (), (b.name,))
    library = LibraryRecord("L", digest_of(big), len(big))
    catalog.register(Batch([a, b], [composition], [library], blobs))


def after(count: int) -> MemoryCatalog:
    model = MemoryCatalog()
    for number in range(count):
        operate(model, number)
    return model


def everything(catalog: Catalog) -> list[Record]:
    """All versions of all records."""
    found: list[Record] = []
    for newest in catalog.records():
        for version in catalog.versions(type(newest), newest.name):
            if isinstance(newest, LibraryRecord):
                record: Record | None = catalog.find_library(newest.name, version)
            else:
                record = catalog.find_callable(newest.name, version)
            assert record is not None
            found.append(record)
    return found


def files_below(folder: Path) -> set[Path]:
    return {p for sub in ("blobs", "staging") for p in (folder / sub).rglob("*") if p.is_file()}


def assert_whole(catalog: Catalog, folder: Path) -> None:
    used = used_blobs(everything(catalog))
    for digest in used:
        assert digest_of(catalog.blob(digest)) == digest
    assert files_below(folder) == {folder / "blobs" / d[:2] / d[2:] for d in used}


# --- in the fork server -------------------------------------------------------------------------


def fork_server() -> None:
    """Fork a child for each order on standard input, and say how it ended."""
    for line in sys.stdin:
        order = json.loads(line)
        child = os.fork()
        if child == 0:
            try:
                live(order["folder"], order["first"], order["last"], order["step"])
            finally:
                os._exit(0)
        say("forked", child)
        _, status = os.waitpid(child, 0)
        say("ended", os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0)


def say(word: str, number: int) -> None:
    os.write(1, f"{word} {number}\n".encode())


def live(folder: str, first: int, last: int, step: int) -> None:
    if step:
        sys.setprofile(KillAt(step))
    catalog = open_catalog(f"sqlite:{folder}")
    for number in range(first, last):
        operate(catalog, number)
        say("did", number)
    catalog.close()


class KillAt:
    """Kills this process before its n-th call that changes a disk or a pipe."""

    def __init__(self, step: int) -> None:
        self._left = step

    def __call__(self, frame: FrameType, event: str, arg: object) -> None:
        if event == "c_call" and getattr(arg, "__name__", "") in DURABLE_CALLS:
            self._left -= 1
            if self._left == 0:
                os.kill(os.getpid(), signal.SIGKILL)


# --- in the test ----------------------------------------------------------------------------


class ForkServer:
    """The parent's end of the pipes."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self._early: list[tuple[str, int]] = []

    def start(self, folder: Path, first: int, last: int, step: int = 0) -> int:
        """Start a child and give its process id."""
        order = {"folder": str(folder), "first": first, "last": last, "step": step}
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()
        while (message := self.next())[0] != "forked":
            self._early.append(message)  # the child was faster than the fork server
        return message[1]

    def next(self) -> tuple[str, int]:
        assert self._process.stdout is not None
        word, number = self._process.stdout.readline().split()
        return word, int(number)

    def until(self, count: int) -> tuple[int, int | None]:
        """Read up to `count` acknowledgements; give how many there were and how the child ended."""
        done = 0
        while done < count:
            word, number = self._early.pop(0) if self._early else self.next()
            if word == "ended":
                return done, number
            done += 1
        return done, None


@pytest.fixture(scope="module")
def children() -> Iterator[ForkServer]:
    code = "import sys; sys.path.insert(0, sys.argv[1]); import test_registry_kill as t; "
    code += "t.fork_server()"
    root = Path(dandelion.__file__).parents[1]
    process = subprocess.Popen(
        [sys.executable, "-c", code, str(Path(__file__).parent)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=dict(os.environ, PYTHONPATH=str(root)),
    )
    with process:
        yield ForkServer(process)
        assert process.stdin is not None
        process.stdin.close()
        assert process.wait(20) == 0


def test_killed_at_random_moments(children: ForkServer, tmp_path: Path) -> None:
    folder = tmp_path / "catalog"
    dice = random.Random(20250)
    done = killed = 0
    for _ in range(ROUNDS):
        child = children.start(folder, done, 100_000)
        acknowledged, ended = children.until(dice.randrange(5))
        assert ended is None
        spin_until = time.perf_counter() + dice.random() * (0.02 if not acknowledged else 0.004)
        while time.perf_counter() < spin_until:
            pass
        os.kill(child, signal.SIGKILL)
        more, ended = children.until(100_000)
        killed += ended == signal.SIGKILL
        done += acknowledged + more
        with contextlib.closing(open_catalog(f"sqlite:{folder}")) as catalog:
            found = everything(catalog)
            if found != everything(after(done)):
                done += 1  # the operation under way was committed but not acknowledged
                assert found == everything(after(done))
            assert_whole(catalog, folder)
    assert killed == ROUNDS
    assert done > ROUNDS


def test_killed_at_every_step(children: ForkServer, tmp_path: Path) -> None:
    states = [everything(after(n)) for n in range(STEPS_OPERATIONS + 1)]
    one_more = 0
    for step in range(1, 1000):
        folder = tmp_path / str(step)
        children.start(folder, 0, STEPS_OPERATIONS, step)
        done, ended = children.until(1000)
        with contextlib.closing(open_catalog(f"sqlite:{folder}")) as catalog:
            found = everything(catalog)
            assert found in states[done : done + 2], f"killed at step {step} after {done}"
            assert_whole(catalog, folder)
            one_more += found != states[done]
            for number in range(states.index(found), STEPS_OPERATIONS):
                operate(catalog, number)
            assert everything(catalog) == states[-1]
            assert_whole(catalog, folder)
        shutil.rmtree(folder)
        if ended == 0:
            break
    assert ended == 0
    assert step > 30  # the steps were indeed counted
    assert one_more


def test_a_copy_of_an_open_store_is_whole(tmp_path: Path) -> None:
    with contextlib.closing(open_catalog(f"sqlite:{tmp_path / 'catalog'}")) as catalog:
        for number in (0, 1, 3, 4):
            operate(catalog, number)
            copy = tmp_path / str(number)
            shutil.copytree(tmp_path / "catalog", copy)
            assert {p.name for p in copy.iterdir() if p.is_file()} == {"catalog.sqlite", "lock"}
            with contextlib.closing(open_catalog(f"sqlite:{copy}")) as copied:
                assert everything(copied) == everything(catalog)
                assert_whole(copied, copy)


def killed_within_a_commit(folder: Path, to: Path) -> Path:
    """Copy a store in the midst of a commit: half of it is in the database, the journal is hot."""
    with contextlib.closing(open_catalog(f"sqlite:{folder}")) as catalog:
        for number in range(30):
            operate(catalog, number)
    with contextlib.closing(sqlite3.connect(folder / "catalog.sqlite", isolation_level=None)) as db:
        db.execute("PRAGMA cache_size = 1")  # so it writes pages back before the end
        db.execute("BEGIN IMMEDIATE")
        db.execute("UPDATE records SET version = version + 1000")
        shutil.copytree(folder, to)
    assert (to / "catalog.sqlite").read_bytes() != (folder / "catalog.sqlite").read_bytes()
    return to


def test_half_a_commit_is_undone(tmp_path: Path) -> None:
    folder = killed_within_a_commit(tmp_path / "catalog", tmp_path / "copy")
    with contextlib.closing(open_catalog(f"sqlite:{folder}")) as catalog:
        assert everything(catalog) == everything(after(30))
        assert_whole(catalog, folder)


def test_a_cut_or_missing_journal_is_reported_or_undone(tmp_path: Path) -> None:
    source = killed_within_a_commit(tmp_path / "catalog", tmp_path / "copy")
    journal = (source / "catalog.sqlite-journal").read_bytes()
    blobs = {p.relative_to(source) for p in files_below(source)}
    for cut in [-1, *range(0, len(journal), 499), len(journal) - 1]:
        folder = tmp_path / "cut"
        shutil.copytree(source, folder)
        if cut < 0:
            (folder / "catalog.sqlite-journal").unlink()
        else:
            (folder / "catalog.sqlite-journal").write_bytes(journal[:cut])
        try:
            with contextlib.closing(open_catalog(f"sqlite:{folder}")) as catalog:
                assert everything(catalog) == everything(after(30))
        except CatalogCorrupt:
            assert {p.relative_to(folder) for p in files_below(folder)} == blobs
        shutil.rmtree(folder)


def test_a_store_with_a_write_ahead_log_is_taken_over(tmp_path: Path) -> None:
    """Stores were kept with a log before; what is only there must not be left behind."""
    folder, copy = tmp_path / "catalog", tmp_path / "copy"
    with contextlib.closing(open_catalog(f"sqlite:{folder}")) as catalog:
        for number in range(4):
            operate(catalog, number)
    with contextlib.closing(sqlite3.connect(folder / "catalog.sqlite", isolation_level=None)) as db:
        db.execute("PRAGMA journal_mode = WAL")
        db.execute("UPDATE state SET generation = 77")
        shutil.copytree(folder, copy)
    log = (copy / "catalog.sqlite-wal").read_bytes()
    for tail, generation in ((log + random.Random(1).randbytes(10_000), 77), (log[:-1], 4)):
        (copy / "catalog.sqlite-wal").write_bytes(tail)
        again = tmp_path / str(generation)
        shutil.copytree(copy, again)
        with contextlib.closing(open_catalog(f"sqlite:{again}")) as catalog:
            assert catalog.generation == generation
            assert everything(catalog) == everything(after(4))
            assert not (again / "catalog.sqlite-wal").exists()


def test_a_cut_database_is_reported_not_guessed_at(tmp_path: Path) -> None:
    folder = tmp_path / "catalog"
    with contextlib.closing(open_catalog(f"sqlite:{folder}")) as catalog:
        for number in range(30):
            operate(catalog, number)
    whole = (folder / "catalog.sqlite").read_bytes()
    for part in (0.3, 0.6, 0.9):
        (folder / "catalog.sqlite").write_bytes(whole[: int(len(whole) * part)])
        with pytest.raises(CatalogCorrupt):
            open_catalog(f"sqlite:{folder}")
    (folder / "catalog.sqlite").write_bytes(whole)
    with contextlib.closing(open_catalog(f"sqlite:{folder}")) as catalog:
        assert everything(catalog) == everything(after(30))
