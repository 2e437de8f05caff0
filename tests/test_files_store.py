"""Functions of files: paths that try to leave the folder, atomic writes, limits, listings."""

from __future__ import annotations

import asyncio
import errno
import importlib
import os
import socket
import threading
from pathlib import Path
from typing import Any

import pytest

from dandelion.data import Item
from dandelion.errors import (
    BackendUnavailable,
    ContextFull,
    RequestFailed,
    RequestInterrupted,
    RequestRefused,
    TimedOut,
    TooLarge,
)
from dandelion.function import Limits
from dandelion.memory import HeapDomain, SharedDomain

from .store_calls import MIB, contexts, descriptors, run, store_call, store_engine, texts

folder = importlib.import_module("dandelion.backends.files.folder")
OUTSIDE = b"what no function may read"


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A folder with all that could lead out of it; the secret is beside it."""
    (tmp_path / "secret").write_bytes(OUTSIDE)
    (tmp_path / "beside").mkdir()
    (tmp_path / "beside" / "f").write_bytes(OUTSIDE)
    inside = tmp_path / "inside"
    (inside / "sub" / "deep").mkdir(parents=True)
    (inside / "ok").write_bytes(b"fine")
    (inside / "sub" / "ok").write_bytes(b"fine too")
    (inside / "link").symlink_to(tmp_path / "secret")
    (inside / "up").symlink_to("..")
    (inside / "out").symlink_to(tmp_path / "beside")
    (inside / "self").symlink_to("self")
    (inside / "within").symlink_to("ok")
    (inside / "dangling").symlink_to(tmp_path / "new")
    (inside / "proc").symlink_to("/proc/self/root")
    (inside / "sub" / "back").symlink_to("../..")
    os.mkfifo(inside / "fifo")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(inside / "sock"))
    return inside


ATTACKS = [
    "../secret", "..", ".", "./ok", "sub/..", "sub/../ok", "sub/../../secret", "/etc/passwd",
    "//etc/passwd", "/", "sub//ok", "sub/", "ok/", "ok/x", "link", "up/secret", "up", "out/f",
    "out", "self", "within", "dangling", "proc/etc/passwd", "sub/back/secret", "fifo", "sock",
    "sub", "a\0b", "\0", "sub/\0/../../secret", "...//ok", "sub/./ok", "./../secret",
    "x" * 256, "/".join("d" * 40), "y/" * 600 + "z", ".dandelion-x", "sub/.dandelion-1",
    "sub/deep/../../../secret", "up/../secret", "a\x7fb", "ok\t", "..\t/secret",
]  # fmt: skip


@pytest.mark.parametrize("path", ATTACKS, ids=lambda path: ascii(path)[:24])
def test_no_path_leads_out(place: Path, path: str) -> None:
    before = {p: p.lstat().st_mtime_ns for p in place.parent.rglob("*")}

    async def scenario() -> None:
        async with store_engine("files", s_folder=str(place)) as e:
            with pytest.raises(RequestFailed) as caught:
                read = await e.run(store_call("files", "FileRead", {"r": f"s {path}"}))
                raise AssertionError(f"it gave {read}")
            assert caught.value.item == "r"
            assert str(place.parent) not in str(caught.value)
            named = [Item(path, 0, b"written")] if len(path) < 250 and "\0" not in path else []
            with pytest.raises(RequestFailed):
                await e.run(store_call("files", "FileWrite", {"w": b"x"}, {"t": f"s {path}"}))
            for item in named:
                with pytest.raises(RequestFailed):
                    await e.run(store_call("files", "FileWrite", [item], {"t": "s {name}"}))

    run(scenario())
    after = {p: p.lstat().st_mtime_ns for p in place.parent.rglob("*")}
    assert after == before


@pytest.mark.parametrize("path", ["../", "up", "out", "/", "sub/../..", "proc", "fifo", "ok"])
def test_no_listing_leads_out(place: Path, path: str) -> None:
    async def scenario() -> None:
        async with store_engine("files", s_folder=str(place)) as e:
            try:
                done = await e.run(store_call("files", "FileList", {"r": f"s {path}"}))
            except RequestFailed:
                return
            assert texts(done) == {}

    run(scenario())


def test_a_listing_has_regular_files_only_and_in_order(place: Path) -> None:
    (place / "sub" / "deep" / "x").touch()
    (place / os.fsdecode(b"bad\xff")).touch()
    (place / ".dandelion-left").touch()

    async def scenario() -> None:
        async with store_engine("files", s_folder=str(place)) as e:
            done = await e.run(store_call("files", "FileList", {"r": "s"}))
            assert list(texts(done)) == ["ok", "sub/deep/x", "sub/ok"]
            assert b"size:4\n" in texts(done, 1)["ok"]
            again = b"s\nlimit: 1"
            names: list[str] = []
            while again:
                done = await e.run(store_call("files", "FileList", {"r": again}))
                names += texts(done)
                again = texts(done, 2).get("r", b"")
            assert names == ["ok", "sub/deep/x", "sub/ok"]
            done = await e.run(store_call("files", "FileList", {"a": "s sub", "b": "s no/such"}))
            assert list(texts(done)) == ["sub/deep/x", "sub/ok"]

    run(scenario())


@pytest.mark.parametrize(
    ("modified_s", "shown"),
    [(10**12, b"9999-12-31T23:59:59Z"), (-(10**12), b"0001-01-01T00:00:00Z")],
)
def test_a_listing_has_files_of_all_years(
    place: Path, monkeypatch: pytest.MonkeyPatch, modified_s: int, shown: bytes
) -> None:
    """Some file systems have years that dates in Python cannot have."""
    real = os.stat

    def stat(path: str, **options: Any) -> os.stat_result:
        facts = real(path, **options)
        return os.stat_result((*facts[:8], modified_s, facts[9])) if path == "ok" else facts

    async def scenario() -> None:
        async with store_engine("files", s_folder=str(place)) as e:
            monkeypatch.setattr(os, "stat", stat)
            done = await e.run(store_call("files", "FileList", {"r": "s"}))
            assert list(texts(done)) == ["ok", "sub/ok"]
            assert b"modified:" + shown in texts(done, 1)["ok"].splitlines()

    run(scenario())


def test_a_listing_looks_at_a_bounded_number_of_entries(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        importlib.import_module("dandelion.backends.files.tree"), "ENTRIES_LIMIT", 3
    )

    async def scenario() -> None:
        async with store_engine("files", s_folder=str(place)) as e:
            with pytest.raises(RequestFailed, match="more than 3 entries"):
                await e.run(store_call("files", "FileList", {"r": "s"}))

    run(scenario())


def test_a_folder_that_becomes_a_link_meanwhile_is_not_followed(place: Path) -> None:
    """Between any two steps of the lookup, `sub` is a folder or a link to the outside."""
    stop = threading.Event()
    aside = place / "aside"
    aside.symlink_to(place.parent / "beside")
    (place / "sub" / "f").write_bytes(b"inside")

    def swap() -> None:
        while not stop.is_set():
            (place / "sub").rename(place / "spare")
            aside.rename(place / "sub")
            (place / "sub").rename(aside)
            (place / "spare").rename(place / "sub")

    swapping = threading.Thread(target=swap)
    swapping.start()
    seen: set[bytes] = set()

    async def scenario() -> None:
        async with store_engine("files", s_folder=str(place)) as e:
            for _ in range(1500):
                try:
                    done = await e.run(store_call("files", "FileRead", {"r": "s sub/f"}))
                    seen.update(texts(done).values())
                except RequestFailed as error:
                    seen.add(b"a link" if "link" in str(error) else str(error).encode())

    try:
        run(scenario())
    finally:
        stop.set()
        swapping.join()
    assert OUTSIDE not in seen
    assert b"inside" in seen


def test_reading_and_writing(tmp_path: Path) -> None:
    large = os.urandom(3 * MIB + 17)

    async def scenario() -> None:
        async with store_engine("files", s_folder=str(tmp_path)) as e:
            given = {"small": b"abcdef", "none": b"", "large": large}
            done = await e.run(store_call("files", "FileWrite", given, {"t": "s new/{name}"}))
            requests = texts(done)
            assert requests["large"] == b"s new/large"
            domain = SharedDomain(8 * MIB)
            done = await e.run(store_call("files", "FileRead", requests, domain=domain))
            assert texts(done) == given
            assert done[0] is not None
            assert domain.locate(done[0][2].data) is not None
            wanted = {"r": "s new/small\nrange: 2-3", "no": "s new/no", "deep": "s no/no"}
            done = await e.run(store_call("files", "FileRead", wanted))
            assert texts(done) == {"r": b"cd"}
            assert texts(done, 1) == {"no": b"s new/no", "deep": b"s no/no"}
            with pytest.raises(RequestFailed, match="6 bytes") as outside:
                await e.run(store_call("files", "FileRead", {"r": "s new/small\nrange: 6-"}))
            assert type(outside.value) is RequestFailed  # as of objects
            domain.close()
        assert sorted(p.name for p in (tmp_path / "new").iterdir()) == ["large", "none", "small"]

    run(scenario())


def test_a_reader_sees_the_old_file_or_the_new_one(tmp_path: Path) -> None:
    sizes = [200_000, 300_000]

    async def scenario() -> None:
        async with store_engine("files", s_folder=str(tmp_path), s_sync="no") as e:

            async def write() -> None:
                for number in range(40):
                    content = bytes([number]) * sizes[number % 2]
                    await e.run(store_call("files", "FileWrite", {"w": content}, {"t": "s f"}))

            writing = asyncio.create_task(write())
            seen = 0
            while not writing.done():
                done = await e.run(store_call("files", "FileRead", {"r": "s f"}))
                for data in texts(done).values():
                    seen += 1
                    assert len(set(data)) == 1
                    assert len(data) in sizes
            await writing
            assert seen

    run(scenario())
    assert [p.name for p in tmp_path.iterdir()] == ["f"]


@pytest.mark.parametrize(
    ("number", "transient"), [(errno.EIO, True), (errno.EMFILE, True), (errno.EROFS, False)]
)
def test_failures_of_the_system(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, transient: bool
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise OSError(number, os.strerror(number), str(tmp_path))

    monkeypatch.setattr(os, "rename", fail)

    async def scenario() -> None:
        async with store_engine("files", s_folder=str(tmp_path)) as e:
            with pytest.raises(RequestFailed, match=os.strerror(number)) as caught:
                await e.run(store_call("files", "FileWrite", {"w": b"new"}, {"t": "s f"}))
            assert caught.value.transient == transient
            assert str(tmp_path) not in str(caught.value)
        assert list(tmp_path.iterdir()) == []

    run(scenario())


def test_a_write_that_fails_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "f").write_bytes(b"old")
    (tmp_path / "folder").mkdir()

    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", fail)

    async def scenario() -> None:
        async with store_engine("files", s_folder=str(tmp_path)) as e:
            with pytest.raises(RequestInterrupted, match="No space left"):
                await e.run(store_call("files", "FileWrite", {"w": b"new"}, {"t": "s f"}))
            with pytest.raises(RequestFailed, match="a folder"):
                await e.run(store_call("files", "FileWrite", {"w": b"new"}, {"t": "s folder"}))

    run(scenario())
    assert (tmp_path / "f").read_bytes() == b"old"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["f", "folder"]


def test_limits(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(bytes(5000))

    def read(limits: Limits | None = None, domain: HeapDomain | None = None) -> object:
        given = {"a": "s f", "b": "s f"}
        return store_call("files", "FileRead", given, limits=limits, domain=domain)

    async def scenario() -> None:
        options = {"s_folder": str(tmp_path), "s_file_bytes": "5000"}
        async with store_engine("files", **options) as e:
            await e.run(read(Limits(output_bytes=10_000)))
            with pytest.raises(TooLarge):
                await e.run(read(Limits(output_bytes=9_999)))
            with pytest.raises(ContextFull):
                await e.run(read(domain=HeapDomain(9_000)))
            write = store_call("files", "FileWrite", {"w": bytes(5001)}, {"t": "s g"})
            with pytest.raises(RequestRefused, match="5001"):
                await e.run(write)
            (tmp_path / "f").write_bytes(bytes(5001))
            with pytest.raises(RequestFailed, match="5001"):
                await e.run(read())
        async with store_engine(
            "files", s_folder=str(tmp_path), s_keep_free_bytes=str(1 << 50)
        ) as e:
            write = store_call("files", "FileWrite", {"w": b"x"}, {"t": "s g"})
            with pytest.raises(RequestInterrupted, match="too full"):
                await e.run(write)
        async with store_engine("files", s_folder=str(tmp_path), s_read_only="yes") as e:
            with pytest.raises(RequestRefused, match="read-only"):
                await e.run(write)
        assert [p.name for p in tmp_path.iterdir()] == ["f"]

    run(scenario())


def test_a_file_that_shrinks_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "f").write_bytes(bytes(3 * MIB))
    monkeypatch.setattr(os, "preadv", lambda *_: 0)

    async def scenario() -> None:
        async with store_engine("files", s_folder=str(tmp_path)) as e:
            domain = HeapDomain(8 * MIB)
            with pytest.raises(RequestInterrupted, match="shorter"):
                await e.run(store_call("files", "FileRead", {"r": "s f"}, domain=domain))
            assert await contexts(domain) == 0

    run(scenario())


def test_deadlines_and_cancelling_stop_the_threads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "f").write_bytes(bytes(3 * MIB))
    reading, free, pieces = threading.Event(), threading.Event(), [0]
    original = os.preadv

    def slow(*arguments: object) -> int:
        pieces[0] += 1
        reading.set()
        assert free.wait(20)
        return original(*arguments)  # type: ignore[call-overload,no-any-return]

    monkeypatch.setattr(os, "preadv", slow)

    async def scenario() -> None:
        before = descriptors()
        domain = HeapDomain(8 * MIB)
        async with store_engine("files", s_folder=str(tmp_path)) as e:
            late = store_call("files", "FileRead", {"r": "s f"}, domain=domain, seconds=0.05)
            with pytest.raises(TimedOut):
                await e.run(late)
            call = store_call("files", "FileRead", {"r": "s f"}, domain=domain)
            task = asyncio.create_task(e.run(call))
            reading.clear()
            await asyncio.to_thread(reading.wait, 20)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            free.set()
        assert pieces[0] == 2  # each thread stopped after the piece that it was in
        assert descriptors() == before
        del late, call, task
        assert await contexts(domain) == 0

    run(scenario())


def test_many_files_at_once_leave_no_descriptor(tmp_path: Path) -> None:
    async def scenario() -> None:
        before = descriptors()
        async with store_engine("files", s_folder=str(tmp_path), s_sync="no") as e:
            given = {str(n): b"%d" % n for n in range(1000)}
            done = await e.run(store_call("files", "FileWrite", given, {"t": "s a/b/{name}"}))
            done = await e.run(store_call("files", "FileRead", texts(done)))
            assert texts(done) == given
        assert descriptors() == before

    run(scenario())


def test_a_folder_that_is_removed_is_opened_again(tmp_path: Path) -> None:
    place = tmp_path / "store"
    place.mkdir()

    async def scenario() -> None:
        async with store_engine("files", s_folder=str(place)) as e:
            place.rmdir()
            for function in ("FileRead", "FileList"):
                with pytest.raises(RequestInterrupted, match="folder of the store was removed"):
                    await e.run(store_call("files", function, {"r": "s a"}))
            place.mkdir()
            (place / "a").write_bytes(b"new")
            assert texts(await e.run(store_call("files", "FileRead", {"r": "s a"}))) == {
                "r": b"new"
            }
            await e.run(store_call("files", "FileWrite", {"i": b"written"}, {"i": "s b"}))
            assert (place / "b").read_bytes() == b"written"

    before = descriptors()
    run(scenario())
    assert descriptors() == before


def test_a_folder_that_is_missing_is_named(tmp_path: Path) -> None:
    async def scenario() -> None:
        with pytest.raises(BackendUnavailable, match="store 's'"):
            async with store_engine("files", s_folder=str(tmp_path / "no")):
                pass

    before = descriptors()
    run(scenario())
    assert descriptors() == before
