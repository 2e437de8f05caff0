"""The part of one node in a log store that does not answer for a while; the time is virtual."""

from __future__ import annotations

import contextlib
import fcntl
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from dandelion.catalog import Batch, MemoryCatalog
from dandelion.cluster import catalog as cluster_catalog
from dandelion.cluster import shared_folder, store_driver
from dandelion.cluster.ballots import Command
from dandelion.cluster.blob_source import BlobSource
from dandelion.cluster.catalog import REGISTER, ClusterCatalog
from dandelion.cluster.log_store import StoredHead
from dandelion.cluster.shared_folder import FolderStore
from dandelion.cluster.store_driver import StoreDriver
from dandelion.cluster.stored_place import StoredPlace
from dandelion.cluster.timed_store import SLOW_S, TimedStore
from dandelion.data import Bytes, SetSpec
from dandelion.errors import CatalogUnavailable
from dandelion.function import CodeObject, FunctionSpec, digest_of
from dandelion.testing import wait_until


class StalledFolder(FolderStore):
    """Reads no head while `answers` is not set."""

    def __init__(self, path: str) -> None:
        super().__init__(path)
        self.answers = threading.Event()
        self.answers.set()
        self.stalled = threading.Event()

    def head(self) -> StoredHead | None:
        if not self.answers.is_set():
            self.stalled.set()
            assert self.answers.wait(30)
        return super().head()

    def stall(self) -> None:
        """Return when the next head is being read."""
        self.stalled.clear()
        self.answers.clear()
        assert self.stalled.wait(10)


class OneNode:
    """A catalogue with its log in a folder.

    Attributes:
        now_s: the driver's time.
    """

    def __init__(self, folder: Path) -> None:
        self.now_s = 0.0
        self.store = StalledFolder(str(folder))
        source = BlobSource(lambda event: event())
        self.catalog = ClusterCatalog(MemoryCatalog(), "one", source, store=self.store.name)
        place = StoredPlace(None, has_records=False)
        self.driver = StoreDriver(
            self.store, place, self.catalog, source, lambda: int(self.now_s * 1e9)
        )
        self.catalog.propose = self.driver.propose
        wait_until(lambda: self.driver.problem is None)

    def waiting(self) -> int:
        return len(self.driver._proposals)

    def names(self) -> list[str]:
        return sorted(record.name for record in self.catalog.records())


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[OneNode]:
    monkeypatch.setattr(store_driver, "POLL_S", 0.01)
    made = OneNode(tmp_path)
    yield made
    made.store.answers.set()
    made.driver.close()
    assert not made.driver._thread.is_alive()


def registration(name: str) -> Batch:
    code = name.encode()
    spec = FunctionSpec(
        name, (SetSpec("x"),), (SetSpec("y"),), code=(CodeObject("null", digest_of(code)),)
    )
    return Batch([spec], blobs={digest_of(code): code})


def test_a_change_that_was_given_up_disturbs_no_later_one(
    node: OneNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    node.store.stall()
    with monkeypatch.context() as hurried:
        hurried.setattr(cluster_catalog, "GIVE_UP_NS", 0)
        hurried.setattr(cluster_catalog, "_MARGIN_S", 0.01)
        with pytest.raises(CatalogUnavailable) as caught:
            node.catalog.register(registration("late"))
        assert node.store.name in str(caught.value)
        assert "majority" not in str(caught.value)
    node.now_s += 31
    with ThreadPoolExecutor(1) as pool:
        later = pool.submit(node.catalog.register, registration("later"))
        wait_until(lambda: node.waiting() == 2)
        node.store.answers.set()
        assert later.result(20)[0].version == 1
    assert node.names() == ["later"]


def test_a_change_whose_code_is_missing_fails_alone(node: OneNode) -> None:
    node.store.stall()
    node.driver.propose(Command("one 1", REGISTER, b"", {digest_of(b"nowhere"): 7}, "one"))
    with ThreadPoolExecutor(1) as pool:
        other = pool.submit(node.catalog.register, registration("other"))
        wait_until(lambda: node.waiting() == 2)
        node.store.answers.set()
        assert other.result(20)[0].version == 1
    assert node.names() == ["other"]
    assert node.driver.problem is None


def test_a_store_that_does_not_answer_is_a_problem_meanwhile(node: OneNode) -> None:
    node.store.stall()
    assert node.driver.problem is None
    node.now_s += SLOW_S + 0.1
    assert node.store.name in str(node.driver.problem)
    with pytest.raises(CatalogUnavailable):
        node.driver.check()
    node.store.answers.set()
    wait_until(lambda: node.driver.problem is None)


def test_a_large_object_may_take_longer(tmp_path: Path) -> None:
    now_s = 0.0

    class Slow(FolderStore):
        def put(self, name: str, data: Bytes) -> None:
            nonlocal now_s
            now_s += 4.0
            found.append(store.problem() is None)

    found: list[bool] = []
    store = TimedStore(Slow(str(tmp_path)), lambda: int(now_s * 1e9))
    store.put("blobs/small", b"")
    store.put("blobs/large", bytes(16 << 20))
    assert found == [False, True]
    assert store.problem() is None


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold the lock of a folder, as a process that hangs."""
    with (folder / "lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def test_a_lock_that_is_held_for_long_is_an_error_that_names_the_store(
    node: OneNode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared_folder, "LOCK_S", 0.05)
    with locked(tmp_path), pytest.raises(CatalogUnavailable, match="lock") as caught:
        node.catalog.register(registration("f"))
    assert str(caught.value).count(node.store.name) == 1
    assert "majority" not in str(caught.value)
    assert node.catalog.register(registration("f"))[0].version == 1


def test_a_node_stops_while_it_waits_for_the_lock(
    node: OneNode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared_folder, "LOCK_S", 60.0)
    monkeypatch.setattr(store_driver, "CLOSE_S", 5.0)
    with locked(tmp_path), ThreadPoolExecutor(1) as pool:
        change = pool.submit(node.catalog.register, registration("f"))
        wait_until(lambda: list((tmp_path / "commands").glob("*")))
        node.driver.close()
        assert not node.driver._thread.is_alive()
        with pytest.raises(CatalogUnavailable, match="stopping"):
            change.result(20)
