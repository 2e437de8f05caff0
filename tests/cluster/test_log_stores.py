"""The log of the catalogue in a shared folder or an S3 service, instead of by voters."""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from dandelion.cluster import Cluster, log_tail, shared_folder, store_driver
from dandelion.cluster.log_parts import opened_store
from dandelion.cluster.log_store import Outdated
from dandelion.cluster.stored_log import StoredLog
from dandelion.errors import (
    Unknown,
)
from dandelion.function import FunctionSpec
from dandelion.node import Node
from dandelion.testing import wait_until
from tests.cluster.clusters import alive, function, text_of
from tests.cluster.log_store_nodes import Place, echo, given_bucket, member, registered, s3_options
from tests.store_servers import s3_server

bucket = pytest.fixture()(given_bucket)


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with s3_server() as url:
        yield url


@pytest.fixture(params=["folder", "s3"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    if request.param == "s3":
        url = request.getfixturevalue("server")
        return "s3:log", s3_options(url, request.getfixturevalue("bucket"))
    folder = tmp_path / "shared"
    folder.mkdir()
    return f"folder:{folder}", {}


def name_of(node: Node) -> str:
    cluster = node._parts.cluster
    assert isinstance(cluster, Cluster)
    return cluster.name


def test_a_head_is_replaced_by_one_of_many(place: Place) -> None:
    store = opened_store(*place)
    assert store.head() is None
    first = store.swap(b"first", "")
    with pytest.raises(Outdated):
        store.swap(b"other", "")
    found = store.head()
    assert found is not None
    assert (found.content, found.tag) == (b"first", first)

    def replace(number: int) -> bool:
        try:
            opened_store(*place).swap(b"by %d" % number, first)
        except Outdated:
            return False
        return True

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(replace, range(8))) == 1
    tag = store.head().tag  # type: ignore[union-attr]
    for number in range(20):
        tag = store.swap(b"%d" % number, tag)
    assert store.head().content == b"19"  # type: ignore[union-attr]
    with pytest.raises(Outdated):
        store.swap(b"late", first)


def test_nodes_that_start_at_the_same_time_find_one_first_head(place: Place) -> None:
    """Each tests what the service does with conditions; they do not disturb each other."""

    def begin(number: int) -> bool:
        try:
            opened_store(*place).swap(b"by %d" % number, "")
        except Outdated:
            return False
        return True

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(begin, range(24))) == 1


def test_objects(place: Place) -> None:
    store = opened_store(*place)
    large = os.urandom(6 << 20)
    assert store.get("blobs/none") is None
    assert not store.has("blobs/none")
    store.delete("blobs/none")
    for data in (b"", b"small", memoryview(large)):
        store.put("blobs/one", data)
        assert bytes(store.get("blobs/one") or b"") == bytes(data)
        assert store.has("blobs/one")
    store.delete("blobs/one")
    assert store.get("blobs/one") is None


def test_old_heads_are_deleted(tmp_path: Path) -> None:
    store = shared_folder.FolderStore(str(tmp_path))
    tag = ""
    for number in range(30):
        tag = store.swap(b"%d" % number, tag)
    assert len(list(tmp_path.glob("head.*"))) == shared_folder._KEPT_HEADS
    assert not list(tmp_path.glob("new.*"))


def test_files_of_killed_nodes_are_deleted(tmp_path: Path) -> None:
    """Not those that another node may be writing; the clock is that of the folder."""
    store = shared_folder.FolderStore(str(tmp_path))
    tag = store.swap(b"first", "")
    now_s = (tmp_path / "head.1").stat().st_mtime
    for name, age_s in (("new.killed", 3700), ("new.slow", 3500), ("new.now", 0)):
        (tmp_path / name).write_bytes(b"part")
        os.utime(tmp_path / name, (now_s - age_s, now_s - age_s))
    (tmp_path / "new.folder").mkdir()
    os.utime(tmp_path / "new.folder", (0, 0))
    store.swap(b"second", tag)
    left = {path.name for path in tmp_path.glob("new.*")}
    assert left == {"new.slow", "new.now", "new.folder"}


def test_nodes_make_the_same_changes_in_the_same_order(place: Place) -> None:
    with member(place) as one, member(place, peers=(name_of(one),)) as two:
        wait_until(lambda: alive(one) == alive(two) == 1)
        nodes = [one, two]
        with ThreadPoolExecutor(6) as pool:
            futures = [
                pool.submit(registered, nodes[n % 2], echo(f"f{n % 3}", f"x{n}")) for n in range(12)
            ]
            versions = [future.result() for future in futures]
        for number in range(3):
            assert sorted(v for n, v in enumerate(versions) if n % 3 == number) == [1, 2, 3, 4]
        assert registered(two, function("code")) == 1
        wait_until(lambda: one.records() == two.records())
        assert text_of(one.invoke("code", x=b"a")["y"]) == "a"
        generation = one.catalog.generation
        two.remove(FunctionSpec, "f0")
        wait_until(lambda: one.catalog.generation > generation)
        with pytest.raises(Unknown):
            one.invoke("f0", x1=b"a")
        wait_until(lambda: one.cluster().registered == 14)  # type: ignore[union-attr]
        info = one.cluster()
        assert info is not None
        assert info.majority
        assert not any(m.voter for m in info.members)


def test_asynchronous_invocations_stay_with_their_node(place: Place) -> None:
    with member(place) as one, member(place, peers=(name_of(one),)) as two:
        wait_until(lambda: alive(one) == alive(two) == 1)
        one.register(function("f"))
        wait_until(lambda: len(two.records()) == 1)
        accepted = one.submit("f", x=b"a")
        assert text_of(two.submitted(accepted.id).result(20)["y"]) == "a"
        assert text_of(two.submit("f", x=b"b").result(20)["y"]) == "b"


def test_nodes_follow_without_links(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """By reading the head now and then."""
    monkeypatch.setattr(store_driver, "POLL_S", 0.02)
    with member(place) as one, member(place) as two:
        one.register(function("f"))
        wait_until(lambda: len(two.records()) == 1)
        assert alive(one) == alive(two) == 0
        assert text_of(two.invoke("f", x=b"a")["y"]) == "a"


@pytest.mark.parametrize("durable", [True, False])
def test_the_log_is_compacted_and_nodes_start_from_a_snapshot(
    place: Place, durable: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_tail, "KEPT", 2)
    urls = [f"sqlite:{tmp_path / str(n)}" if durable else "memory:" for n in range(2)]
    with member(place, urls[0]) as one:
        with member(place, urls[1]) as two:
            two.register(function("old"))
            two.register(function("again"))
        one.remove(FunctionSpec, "old")
        one.remove(FunctionSpec, "again")
        for number in range(9):
            one.register(echo("f", f"x{number}"))
        one.register(function("again"))
        log = StoredLog(opened_store(*place))
        wait_until(lambda: len(log.read().commands) <= 4)  # after it is acknowledged
        assert log.read().length == 14
        with member(place, urls[1]) as two:
            wait_until(lambda: two.records() == one.records())
            assert {r.name: r.version for r in two.records()} == {"f": 9, "again": 2}
            assert text_of(two.invoke("again", x=b"a")["y"]) == "a"
            assert registered(two, function("old")) == 2
    with member(place, urls[0]) as one:
        wait_until(lambda: len(one.records()) == 3)
    if place[0].startswith("folder:"):
        folder = Path(place[0].partition(":")[2])
        assert len(list((folder / "commands").iterdir())) == len(
            StoredLog(opened_store(*place)).read().commands
        )
        assert len(list((folder / "snapshots").iterdir())) == 1
