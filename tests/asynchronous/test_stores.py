"""Stores of asynchronous invocations: the contract, damage, full disks, and kills at every step."""

from __future__ import annotations

import errno
import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

import msgspec
import pytest

from dandelion.asynchronous.failures import KeptCorrupt
from dandelion.asynchronous.records import KeptRecord, KeptRequest, KeptState
from dandelion.asynchronous.store import (
    Drop,
    KeptStore,
    MemoryKeptStore,
    Part,
    Put,
    open_kept_store,
)
from dandelion.asynchronous.stored_sets import DamagedSets, decode_sets, encode_sets
from dandelion.catalog import open_catalog
from dandelion.data import Item, ItemSet
from dandelion.errors import CatalogCorrupt, DandelionError, DiskFull, Unknown
from dandelion.node import Node, Settings

ROOT = Path(__file__).resolve().parent.parent.parent
LARGE = bytes(range(256)) * 512


def id_of(number: int) -> str:
    return f"{number:032x}"


def record(number: int, **fields: Any) -> KeptRecord:
    request = KeptRequest(name="f", key=f"key {number}")
    return KeptRecord(id=id_of(number), tenant="acme", request=request, **fields)


def done(number: int) -> KeptRecord:
    return record(number, state=KeptState.SUCCEEDED, ended_s=2.0)


@pytest.fixture(params=["memory", "sqlite"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[KeptStore]:
    opened = open_kept_store("memory:" if request.param == "memory" else f"sqlite:{tmp_path}")
    yield opened
    opened.close()
    opened.close()


def stored(store: KeptStore) -> dict[str, KeptRecord]:
    """The records, also of a store that was not opened just now."""
    if isinstance(store, MemoryKeptStore):
        return {found.id: found for found in store.load()}
    return {found.id: found for found in store._loaded()}  # type: ignore[attr-defined]  # of sqlite


def prepared(store: KeptStore, steps: Sequence[Put | Drop]) -> list[Put | Drop]:
    """Have the data of steps written ahead."""
    return [
        store.prepare(step) if isinstance(step, Put) and step.part is not None else step
        for step in steps
    ]


@pytest.mark.parametrize("ahead", [False, True], ids=["", "ahead"])
@pytest.mark.parametrize("data", [b"", b"small", LARGE], ids=["empty", "small", "large"])
def test_what_is_put_is_there(store: KeptStore, data: bytes, ahead: bool) -> None:
    steps = [Put(record(1), Part.INPUTS, (data[:3], data[3:])), Put(record(2))]
    store.write(prepared(store, steps) if ahead else steps)
    assert stored(store) == {id_of(1): record(1), id_of(2): record(2)}
    assert bytes(store.read(id_of(1), Part.INPUTS)) == data
    for id_, part in ((id_of(1), Part.RESULT), (id_of(2), Part.INPUTS), ("x", Part.RESULT)):
        with pytest.raises(Unknown):
            store.read(id_, part)


@pytest.mark.parametrize("data", [b"small", LARGE], ids=["small", "large"])
def test_the_end_drops_inputs_and_a_drop_everything(
    store: KeptStore, data: bytes, tmp_path: Path
) -> None:
    store.write([Put(record(1), Part.INPUTS, (data,))])
    view = store.read(id_of(1), Part.INPUTS)
    store.write([Put(done(1), Part.RESULT, (data,))])
    assert bytes(view) == data
    with pytest.raises(Unknown):
        store.read(id_of(1), Part.INPUTS)
    assert bytes(store.read(id_of(1), Part.RESULT)) == data
    store.write([Drop(id_of(1)), Drop(id_of(7))])
    assert stored(store) == {}
    with pytest.raises(Unknown):
        store.read(id_of(1), Part.RESULT)
    assert not list(tmp_path.glob("invocations/*"))


def test_what_was_prepared_is_no_record_and_can_be_discarded(
    store: KeptStore, tmp_path: Path
) -> None:
    steps = [store.prepare(Put(record(i), Part.INPUTS, (LARGE,))) for i in (1, 2)]
    assert stored(store) == {}
    for step in steps:
        with pytest.raises(Unknown):
            store.read(step.record.id, Part.INPUTS)
    store.discard(steps[0])
    store.write([steps[1]])
    assert stored(store) == {id_of(2): record(2)}
    assert bytes(store.read(id_of(2), Part.INPUTS)) == LARGE
    assert {path.name for path in tmp_path.glob("invocations/*")} <= {f"{id_of(2)}.inputs"}


# --- sets -----------------------------------------------------------------------------------------


def test_sets_are_read_as_they_were_written() -> None:
    items = (Item("a", 7, b"bytes"), Item.of("b", [[1.5, 2.5]]), Item("c", 0, memoryview(LARGE)))
    sets = {"x": ItemSet("x", items), "y": None, "z": ItemSet("z", (Item("é"),), "int8", (-1,))}
    read = decode_sets(b"".join(encode_sets(sets)))
    assert {n: s and msgspec.to_builtins(msgspec.structs.astuple(s)[2:]) for n, s in read.items()}
    assert list(read) == list(sets)
    for name, one in sets.items():
        found = read[name]
        if one is None or found is None:
            assert one is found
            continue
        assert (found.name, found.dtype, found.shape) == (one.name, one.dtype, one.shape)
        for old, new in zip(one.items, found.items, strict=True):
            assert (old.name, old.key, old.dtype, old.shape) == (
                new.name,
                new.key,
                new.dtype,
                new.shape,
            )
            assert old.bytes() == new.bytes()


def test_every_torn_or_changed_byte_is_found() -> None:
    whole = b"".join(encode_sets({"x": ItemSet("x", (Item("a", 1, b"0123456789"),))}))
    for end in range(len(whole)):
        with pytest.raises(DamagedSets):
            decode_sets(whole[:end])
    for at in range(len(whole)):
        changed = bytearray(whole)
        changed[at] ^= 0x55
        with pytest.raises(DamagedSets):
            decode_sets(bytes(changed))


# --- damage ---------------------------------------------------------------------------------------


def filled(folder: Path) -> Path:
    """Make a store with a large result; give the path of the database."""
    store = open_kept_store(f"sqlite:{folder}")
    chunks = encode_sets({"b": ItemSet("b", (Item("b", 0, LARGE),))})
    store.write([Put(done(1), Part.RESULT, chunks), Put(record(2), Part.INPUTS, (b"in",))])
    store.close()
    return folder / "invocations.sqlite"


def newer(path: Path) -> None:
    with sqlite3.connect(path) as db:
        db.execute("PRAGMA user_version = 99")
    db.close()


def another(path: Path) -> None:
    path.unlink()
    with sqlite3.connect(path) as db:
        db.execute("CREATE TABLE songs (name TEXT)")
    db.close()


def bad_record(path: Path) -> None:
    with sqlite3.connect(path) as db:
        db.execute("UPDATE invocations SET body = x'93' WHERE id = ?", (id_of(2),))
    db.close()


def overwritten(path: Path) -> None:
    path.write_bytes(b"not a database" * 1000)


def folder_instead(path: Path) -> None:
    path.unlink()
    path.mkdir()


def emptied(path: Path) -> None:
    lost(path)
    path.touch()


def lost(path: Path) -> None:
    for name in (path.name, f"{path.name}-wal", f"{path.name}-shm"):
        path.with_name(name).unlink(missing_ok=True)


DAMAGES = [newer, another, bad_record, overwritten, folder_instead, emptied, lost]


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_store_is_refused_with_instructions(
    tmp_path: Path, damage: Callable[[Path], None]
) -> None:
    damage(filled(tmp_path))
    files = sorted(tmp_path.glob("invocations/*"))
    settings = Settings(backends=("null",), catalog=f"sqlite:{tmp_path}")
    with pytest.raises(KeptCorrupt) as caught:
        Node(settings)
    assert sorted(tmp_path.glob("invocations/*")) == files != []
    assert "invocations.sqlite" in caught.value.path
    assert "away" in caught.value.remedy
    named = (
        "invocations.sqlite",
        "invocations.sqlite-wal",
        "invocations.sqlite-shm",
        "invocations",
    )
    for name in named:
        (tmp_path / name).exists() and (tmp_path / name).rename(tmp_path / f"away-{name}")
    with Node(settings):  # as instructed; the lock of the catalogue was given back
        pass


def test_a_damaged_result_fails_alone(tmp_path: Path) -> None:
    filled(tmp_path)
    [path] = tmp_path.glob("invocations/*.result")
    whole = path.read_bytes()
    for damaged in (whole[:-1], whole[:-1] + b"x", b""):
        path.write_bytes(damaged)
        with Node(Settings(backends=("null",), catalog=f"sqlite:{tmp_path}")) as node:
            with pytest.raises(CatalogCorrupt):
                node.submitted(id_of(1), "acme").result(20)
            assert node.submitted(id_of(1), "acme").state() is KeptState.SUCCEEDED
    path.unlink()
    with (
        Node(Settings(backends=("null",), catalog=f"sqlite:{tmp_path}")) as node,
        pytest.raises(CatalogCorrupt),
    ):
        node.submitted(id_of(1), "acme").result(20)


def test_files_that_nothing_refers_to_are_deleted(tmp_path: Path) -> None:
    filled(tmp_path)
    lost = tmp_path / "invocations" / f"{id_of(9)}.result"
    lost.write_bytes(b"of a write that was never committed")
    (tmp_path / "invocations" / "lost+found").mkdir()  # of a disk that is mounted there
    open_kept_store(f"sqlite:{tmp_path}").close()
    assert not lost.exists()
    assert len(list(tmp_path.glob("invocations/*"))) == 2


def test_only_the_owner_reads_the_files(tmp_path: Path) -> None:
    path = filled(tmp_path)
    for found in (path, path.with_name("invocations"), *tmp_path.glob("invocations/*")):
        assert found.stat().st_mode & 0o077 == 0, found


# --- a full disk ----------------------------------------------------------------------------------


def no_space(*arguments: object) -> int:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_full_disk_leaves_the_store_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_kept_store(f"sqlite:{tmp_path}")
    store.write([Put(record(1), Part.INPUTS, (b"in",))])
    with monkeypatch.context() as patched:
        patched.setattr(os, "write", no_space)
        with pytest.raises(DiskFull):
            store.write([Put(record(2), Part.INPUTS, (LARGE,))])
        with pytest.raises(DiskFull):
            store.prepare(Put(record(2), Part.INPUTS, (LARGE,)))
    assert not list(tmp_path.glob("invocations/*"))
    ready = store.prepare(Put(record(300), Part.INPUTS, (LARGE,)))
    store._db.execute("PRAGMA max_page_count = 1")  # type: ignore[attr-defined]  # of sqlite
    with pytest.raises(DiskFull):
        for number in range(2, 100):
            store.write([ready, Put(record(number), Part.INPUTS, (bytes(30_000),))])
    store._db.execute("PRAGMA max_page_count = 1000000")  # type: ignore[attr-defined]
    store.write([Put(record(200), Part.INPUTS, (LARGE,))])
    store.write([ready])  # its data is still there
    store.close()
    again = open_kept_store(f"sqlite:{tmp_path}")
    found = {one.id for one in again.load()}
    assert {id_of(1), id_of(200), id_of(300)} <= found
    for id_ in found:
        again.read(id_, Part.INPUTS)
    again.close()


@pytest.mark.parametrize("ahead", [False, True], ids=["", "ahead"])
def test_data_is_flushed_before_a_record_refers_to_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ahead: bool
) -> None:
    store = open_kept_store(f"sqlite:{tmp_path}")
    flushed: list[str] = []
    flush = os.fsync

    def note(fd: int) -> None:
        assert not stored(store), "the record was stored first"
        flushed.append(Path(os.readlink(f"/proc/self/fd/{fd}")).name)
        flush(fd)

    monkeypatch.setattr(os, "fsync", note)
    steps = [Put(record(1), Part.INPUTS, (LARGE,))]
    store.write(prepared(store, steps) if ahead else steps)
    assert flushed == [f"{id_of(1)}.inputs", "invocations"]
    [mode] = store._db.execute("PRAGMA synchronous").fetchone()  # type: ignore[attr-defined]
    assert mode == 2  # FULL: each commit flushes the log
    store.close()


# --- kills ----------------------------------------------------------------------------------------

_CHANGES = frozenset(
    {
        "mkdir",
        "write",
        "fsync",
        "fdatasync",
        "unlink",
        "execute",
        "executescript",
        "open",
        "ftruncate",
    }
)


class KillAt:
    """Kills this process before its n-th call that changes the disk."""

    def __init__(self, step: int) -> None:
        self._left = step

    def __call__(self, frame: FrameType, event: str, argument: object) -> None:
        if event == "c_call" and getattr(argument, "__name__", "") in _CHANGES:
            self._left -= 1
            if self._left == 0:
                os.kill(os.getpid(), signal.SIGKILL)


BATCHES: list[list[Put | Drop]] = [
    [Put(record(1), Part.INPUTS, (b"in",)), Put(record(2), Part.INPUTS, (LARGE,))],
    [Put(done(2), Part.RESULT, (LARGE,)), Put(record(1, attempts=1))],
    [Put(done(1), Part.RESULT, (b"out",)), Drop(id_of(2)), Put(record(3), Part.INPUTS, (LARGE,))],
]


def model(count: int) -> tuple[dict[str, KeptRecord], dict[tuple[str, Part], bytes]]:
    """What is stored after so many batches."""
    memory = MemoryKeptStore()
    for batch in BATCHES[:count]:
        memory.write(batch)
    return memory._records, {place: bytes(data) for place, data in memory._data.items()}


def whole(folder: Path, count: int) -> None:
    """Check that a store has so many batches, or one more, and nothing else."""
    opened = open_kept_store(f"sqlite:{folder}")
    found = {one.id: one for one in opened.load()}
    after = [number for number in (count, count + 1) if model(number)[0] == found]
    assert after, (count, found)
    data = model(after[0])[1]
    for (id_, part), wanted in data.items():
        assert bytes(opened.read(id_, part)) == wanted
    files = {path.name for path in folder.glob("invocations/*")}
    assert files == {f"{i}.{p.value}" for (i, p), d in data.items() if d is LARGE or d == LARGE}
    opened.close()


def rounds(root: Path, ahead: bool) -> int:
    """Kill a child at its first step, its second, and so on; return how many steps there are."""
    for step in range(1, 1000):
        folder = root / str(step)
        folder.mkdir()
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            sys.setprofile(KillAt(step))
            store = open_kept_store(f"sqlite:{folder}")
            for batch in BATCHES:
                store.write(prepared(store, batch) if ahead else batch)
                os.write(writing, b"d")
            os._exit(0)
        os.close(writing)
        _, status = os.waitpid(child, 0)
        acknowledged = len(os.read(reading, 100)) if os.WIFSIGNALED(status) else len(BATCHES)
        os.close(reading)
        whole(folder, acknowledged)
        if not os.WIFSIGNALED(status):
            return step - 1
    raise AssertionError("it never ended")


@pytest.mark.parametrize("ahead", [False, True], ids=["", "ahead"])
def test_a_kill_at_every_step_loses_nothing(tmp_path: Path, ahead: bool) -> None:
    program = f"""
import sys; sys.path[:0] = [{str(ROOT)!r}, {str(Path(__file__).parent)!r}]
from pathlib import Path
import test_stores
print(test_stores.rounds(Path({str(tmp_path)!r}), {ahead}))
"""
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=ROOT)
    assert ran.returncode == 0, ran.stderr
    assert int(ran.stdout) > 30


def test_one_folder_has_one_owner(tmp_path: Path) -> None:
    catalog = open_catalog(f"sqlite:{tmp_path}")
    with pytest.raises(DandelionError):
        Node(Settings(backends=("null",), catalog=f"sqlite:{tmp_path}"))
    catalog.close()
