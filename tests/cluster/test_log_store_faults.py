"""Log stores that fail."""

from __future__ import annotations

import contextlib
import shutil
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import urlsplit

import msgspec
import pytest

from dandelion.asynchronous.records import KeptRequest
from dandelion.cluster import Cluster, log_tail, shared_folder, store_driver
from dandelion.cluster.ballots import Command
from dandelion.cluster.joining import joined
from dandelion.cluster.log_parts import opened_store
from dandelion.cluster.log_store import LogStore, Outdated
from dandelion.cluster.stored_log import VERSION, Head, StoredLog
from dandelion.errors import (
    BackendUnavailable,
    CatalogCorrupt,
    CatalogUnavailable,
    Conflict,
    DandelionError,
    InvalidInput,
)
from dandelion.function import FunctionSpec, digest_of
from dandelion.node import Node
from dandelion.testing import wait_until
from tests.cluster.clusters import SECRET, function, settings, text_of
from tests.cluster.log_store_nodes import Place, echo, given_bucket, member, registered, s3_options
from tests.store_servers import FaultProxy, fault_proxy, s3_server

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


@pytest.fixture
def proxy(server: str) -> Iterator[FaultProxy]:
    parts = urlsplit(server)
    assert parts.hostname is not None
    assert parts.port is not None
    with fault_proxy((parts.hostname, parts.port)) as made:
        yield made


@contextlib.contextmanager
def without_folder(place: Place) -> Iterator[None]:
    folder = Path(place[0].partition(":")[2])
    folder.rename(folder.with_suffix(".away"))
    try:
        yield
    finally:
        folder.with_suffix(".away").rename(folder)


@contextlib.contextmanager
def without_service(proxy: FaultProxy) -> Iterator[None]:
    proxy.faults.refuse = 1 << 30
    for one in list(proxy.open):
        with contextlib.suppress(OSError):
            one.shutdown(socket.SHUT_RDWR)
    try:
        yield
    finally:
        proxy.faults.refuse = 0


def check_outage(
    node: Node, name: str, outage: Callable[[], contextlib.AbstractContextManager[None]]
) -> None:
    node.register(function("f"))
    with outage():
        with pytest.raises(CatalogUnavailable) as caught:
            node.register(echo("g"))
        assert name in str(caught.value)
        with pytest.raises(CatalogUnavailable, match=name):
            node.remove(FunctionSpec, "f")
        info = node.cluster()
        assert info is not None
        assert not info.majority
        assert name in info.problem
        with pytest.raises(CatalogUnavailable, match=name):
            node.kept.blocking(node.kept.submit(KeptRequest(name="f"), {}, tenant="default"))
        assert text_of(node.invoke("f", x=b"a")["y"]) == "a"
    wait_until(lambda: node.cluster().majority)  # type: ignore[union-attr]
    assert registered(node, echo("g")) == 1  # also if it had taken effect
    assert {r.name: r.version for r in node.records()}["g"] == 1


def test_without_the_folder_changes_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_driver, "POLL_S", 0.02)
    folder = tmp_path / "shared"
    folder.mkdir()
    place: Place = (f"folder:{folder}", {})
    with member(place) as node:
        check_outage(node, str(folder), lambda: without_folder(place))


def test_without_the_service_changes_are_refused(
    proxy: FaultProxy, bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_driver, "POLL_S", 0.02)
    place = ("s3:log", s3_options(f"http://127.0.0.1:{proxy.port}", bucket))
    with member(place) as node:
        check_outage(node, "s3:log", lambda: without_service(proxy))


def test_a_node_starts_without_the_store_and_follows_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_driver, "POLL_S", 0.02)
    place: Place = (f"folder:{tmp_path / 'shared'}", {})
    (tmp_path / "shared").mkdir()
    url = f"sqlite:{tmp_path / 'catalog'}"
    with member(place, url) as node:
        node.register(function("f"))
    with without_folder(place), member(place, url) as node:
        assert text_of(node.invoke("f", x=b"a")["y"]) == "a"
        wait_until(lambda: "No such file" in node.cluster().problem)  # type: ignore[union-attr]
        with pytest.raises(CatalogUnavailable):
            node.register(echo("g"))
    with member(place, url) as node:
        assert registered(node, echo("g")) == 1


class Lossy(LogStore):
    """Does what it is told, and then says that it failed, at every other replaced head."""

    def __init__(self, store: LogStore) -> None:
        self.store, self.name, self.count = store, "lossy", 0

    def __getattribute__(self, name: str):  # type: ignore[no-untyped-def]
        if name in ("head", "put", "get", "has", "delete"):
            return getattr(self.store, name)
        return super().__getattribute__(name)

    def swap(self, content: bytes, tag: str) -> str:
        done = self.store.swap(content, tag)
        self.count += 1
        if self.count % 2 == 0:
            raise Outdated if self.count % 4 == 0 else CatalogUnavailable("lossy", "no answer")
        return done

    def head(self): ...  # type: ignore[no-untyped-def]
    def put(self, name, data): ...  # type: ignore[no-untyped-def]
    def get(self, name): ...  # type: ignore[no-untyped-def]
    def has(self, name): ...  # type: ignore[no-untyped-def]
    def delete(self, name): ...  # type: ignore[no-untyped-def]


def test_an_answer_that_is_lost_chooses_nothing_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_driver, "POLL_S", 0.01)
    monkeypatch.setattr(
        "dandelion.cluster.log_parts.opened_store",
        lambda url, options: Lossy(shared_folder.FolderStore(url.partition(":")[2])),
    )
    place: Place = (f"folder:{tmp_path}", {})
    acknowledged = 0
    with member(place) as node:
        for number in range(10):
            with contextlib.suppress(CatalogUnavailable):
                node.register(echo(f"f{number}"))
                acknowledged += 1
        wait_until(lambda: len(node.records()) == 10)
        assert {r.version for r in node.records()} == {1}
    head = StoredLog(shared_folder.FolderStore(str(tmp_path))).read()
    ids = [id_ for id_, _ in head.commands]
    assert len(set(ids)) == len(ids) == 10
    assert 0 < acknowledged < 10


def test_a_damaged_or_newer_log_is_an_error_that_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_driver, "POLL_S", 0.02)
    place: Place = (f"folder:{tmp_path}", {})
    store = shared_folder.FolderStore(str(tmp_path))
    digest = digest_of(b"command")
    newer = Head(VERSION + 1, "c")
    damaged = Head(VERSION, "c", 0, (("a", digest),))
    escape = Head(VERSION, "c", 0, (("a", "../../etc/passwd"),))  # type: ignore[arg-type]
    texts = (b"\xc1", *map(msgspec.msgpack.encode, (newer, escape, damaged)))
    tag = ""
    for content, reason in zip(texts, ("read", "version 2", "digest", "missing"), strict=True):
        tag = store.swap(content, tag)
        with member(place) as node:
            wait_until(lambda node=node, reason=reason: reason in node.cluster().problem)  # type: ignore[misc, union-attr]
            with pytest.raises(DandelionError, match=reason):
                node.register(echo("f"))
    store.put(f"commands/{digest}", b"other")
    with member(place) as node:
        wait_until(lambda: "damaged" in node.cluster().problem)  # type: ignore[union-attr]
        with pytest.raises(CatalogCorrupt, match="damaged"):
            node.register(echo("f"))


def test_files_that_are_no_heads_are_left_alone(tmp_path: Path) -> None:
    store = shared_folder.FolderStore(str(tmp_path))
    tag = store.swap(b"first", "")
    for name in ("head.007", "head.0", "head.+9", "head.9 ", "head.1e3"):
        (tmp_path / name).touch()
    found = store.head()
    assert found is not None
    assert (found.content, found.tag) == (b"first", tag)
    store.swap(b"second", tag)
    assert store.head().content == b"second"  # type: ignore[union-attr]


def test_a_head_that_cannot_be_opened_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_driver, "POLL_S", 0.02)
    odd = tmp_path / "head.50"
    with member((f"folder:{tmp_path}", {})) as node:
        node.register(echo("f"))
        odd.symlink_to("nowhere")
        with pytest.raises(CatalogUnavailable, match=r"head\.50"):
            node.register(echo("g"))
        odd.unlink()
        odd.mkdir()
        wait_until(lambda: "head.50: Is a directory" in node.cluster().problem)  # type: ignore[union-attr]
        odd.rmdir()
        wait_until(lambda: node.cluster().majority)  # type: ignore[union-attr]
        assert registered(node, echo("g")) == 1


def test_a_command_of_a_newer_version_stops_changes(tmp_path: Path) -> None:
    place: Place = (f"folder:{tmp_path}", {})
    log = StoredLog(shared_folder.FolderStore(str(tmp_path)))
    head = log.begin()
    digest = log.put_command(Command("b 1", "rename", b"", origin="b:1"))
    log.replace(msgspec.structs.replace(head, commands=(("b 1", digest),)))
    with member(place) as node:
        cluster = node._parts.cluster
        assert isinstance(cluster, Cluster)
        wait_until(lambda: cluster.catalog.blocked is not None)
        with pytest.raises(CatalogUnavailable, match="newest version"):
            node.register(echo("f"))


def test_catalogues_of_other_clusters_are_refused(tmp_path: Path) -> None:
    places: list[Place] = [(f"folder:{tmp_path / name}", {}) for name in ("a", "b")]
    for path, _ in places:
        Path(path.partition(":")[2]).mkdir()
    url = f"sqlite:{tmp_path / 'catalog'}"
    with Node(settings(catalog=f"sqlite:{tmp_path / 'alone'}")) as node:
        node.register(echo("old"))
    with pytest.raises(Conflict, match="log store"):
        member(places[0], f"sqlite:{tmp_path / 'alone'}")
    with member(places[0], url) as node:
        node.register(echo("f"))
    with member(places[1]) as node:
        node.register(echo("other"))
    with member(places[1], url) as node:
        wait_until(lambda: "another one" in node.cluster().problem)  # type: ignore[union-attr]
        with pytest.raises(Conflict, match="another one") as caught:
            node.register(echo("g"))
        assert places[1][0] in str(caught.value)
        assert text_of(node.invoke("f", x=b"a")["y"]) == "a"


@contextlib.contextmanager
def put_back_afterwards(folder: Path) -> Iterator[None]:
    """Put the folder back to what it is now."""
    copy = folder.with_suffix(".copy")
    shutil.copytree(folder, copy)
    yield
    shutil.rmtree(folder)
    copy.rename(folder)


def node_ahead_of_its_store(folder: Path, url: str, others: int) -> list[str]:
    """Have a node carry out three changes, put the store back to the first one, and add others.

    Returns:
        The names of what is registered in the store then.
    """
    folder.mkdir()
    place: Place = (f"folder:{folder}", {})
    with member(place, url) as node:
        node.register(echo("f"))
        with put_back_afterwards(folder):
            node.register(echo("g"))
            node.register(echo("h"))
    with member(place) as node:
        for number in range(others):
            node.register(echo(f"other{number}"))
        return sorted(record.name for record in node.records())


@pytest.mark.parametrize("others", [1, 2, 3])
def test_a_store_that_was_put_back_is_refused_by_a_node_that_was_ahead(
    others: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also when other nodes have made it as long as before, or longer."""
    monkeypatch.setattr(store_driver, "POLL_S", 0.02)
    folder = tmp_path / "shared"
    url = f"sqlite:{tmp_path / 'catalog'}"
    stored = node_ahead_of_its_store(folder, url, others)
    place: Place = (f"folder:{folder}", {})
    with member(place, url) as node:
        with pytest.raises(CatalogCorrupt, match="put back") as caught:
            node.register(echo("i"))
        assert place[0] in str(caught.value)
        assert "put back" in node.cluster().problem  # type: ignore[union-attr]
        assert sorted(record.name for record in node.records()) == ["f", "g", "h"]
        assert text_of(node.invoke("h", x=b"a")["y"]) == "a"
    with member(place, f"sqlite:{tmp_path / 'new'}") as node:
        wait_until(lambda: sorted(record.name for record in node.records()) == stored)
        assert registered(node, echo("g")) == 1


@pytest.mark.parametrize("others", [4, 7])
def test_a_node_whose_last_change_is_not_named_any_more_takes_over_all(
    others: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After these, three commands or more are in the snapshot alone."""
    monkeypatch.setattr(store_driver, "POLL_S", 0.02)
    monkeypatch.setattr(log_tail, "KEPT", 2)
    folder = tmp_path / "shared"
    url = f"sqlite:{tmp_path / 'catalog'}"
    stored = node_ahead_of_its_store(folder, url, others)
    with member((f"folder:{folder}", {}), url) as node:
        wait_until(lambda: sorted(record.name for record in node.records()) == stored)
        assert registered(node, echo("g")) == 1


def test_a_head_of_a_store_that_was_put_back_is_read_again(tmp_path: Path) -> None:
    """Its tag may be that of the head before."""
    folder = tmp_path / "shared"
    folder.mkdir()
    store = shared_folder.FolderStore(str(folder))
    ahead, other = StoredLog(store), StoredLog(store)
    first = ahead.begin()
    with put_back_afterwards(folder):
        ahead.replace(msgspec.structs.replace(first, commands=(("a", digest_of(b"a")),)))
    new = msgspec.structs.replace(other.read(), commands=(("b", digest_of(b"b")),))
    other.replace(new)
    assert ahead.read() == new


def test_a_place_of_an_earlier_version_is_read(tmp_path: Path) -> None:
    place: Place = (f"folder:{tmp_path / 'shared'}", {})
    (tmp_path / "shared").mkdir()
    file = tmp_path / "catalog" / "cluster.place"
    url = f"sqlite:{tmp_path / 'catalog'}"
    with member(place, url) as node:
        node.register(echo("f"))
    now = msgspec.json.decode(file.read_bytes())
    assert now.pop("last")
    file.write_bytes(msgspec.json.encode(now))
    with member(place, url) as node:
        assert registered(node, echo("g")) == 1
    assert msgspec.json.decode(file.read_bytes())["last"]


def heads(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.glob("head.*"))


@pytest.mark.parametrize("durable", [True, False])
def test_a_node_of_a_cluster_begins_no_log_in_an_empty_store(
    durable: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may be the place where the folder is to be mounted."""
    monkeypatch.setattr(store_driver, "POLL_S", 0.02)
    folder = tmp_path / "shared"
    folder.mkdir()
    place: Place = (f"folder:{folder}", {})
    url = f"sqlite:{tmp_path / 'catalog'}" if durable else "memory:"

    def check(node: Node) -> None:
        wait_until(lambda: "empty" in node.cluster().problem)  # type: ignore[union-attr]
        with pytest.raises(CatalogUnavailable, match="mounted") as caught:
            node.register(echo("g"))
        assert place[0] in str(caught.value)
        assert "None" not in str(caught.value)
        assert text_of(node.invoke("f", x=b"a")["y"]) == "a"
        assert not heads(folder)

    with contextlib.ExitStack() as mounted:
        with member(place, url) as node:
            node.register(echo("f"))
            before = heads(folder)
            mounted.enter_context(without_folder(place))
            folder.mkdir()
            mounted.callback(lambda: shutil.rmtree(folder))
            check(node)
            if not durable:
                mounted.close()
                wait_until(lambda: node.cluster().majority)  # type: ignore[union-attr]
                assert registered(node, echo("g")) == 1
                return
        with member(place, url) as node:
            check(node)
    assert heads(folder) == before
    with member(place, url) as node:
        assert registered(node, echo("g")) == 1


def test_settings_of_stores(tmp_path: Path, bucket: str, monkeypatch: pytest.MonkeyPatch) -> None:
    secret = tmp_path / "secret"
    secret.write_bytes(SECRET)
    nowhere = "http://127.0.0.1:1"
    options = s3_options(nowhere, bucket)
    for url, given, error, where in (
        ("nowhere", {}, InvalidInput, "folder:/PATH"),
        ("folder:relative", {}, InvalidInput, "absolute"),
        ("cuda:x", {}, InvalidInput, "no stores are of"),
        ("s3:other", options, InvalidInput, "there is no store 'other'"),
        ("s3:log", s3_options("http://127.0.0.1:1", bucket, tenants="*"), InvalidInput, "tenants"),
        (
            "s3:log",
            s3_options("http://127.0.0.1:1", bucket, key_id_env="NONE"),
            BackendUnavailable,
            "missing or empty",
        ),
    ):
        with pytest.raises(error, match=where):
            opened_store(url, given)
    made = joined(
        settings(
            cluster_listen="127.0.0.1:0",
            cluster_store=f"folder:{tmp_path}",
            cluster_secret=str(secret),
        )
    )
    with Node(settings(), cluster=made) as node:
        assert registered(node, echo("f")) == 1


def test_a_service_without_conditional_writes_is_refused(
    server: str, bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    import obstore

    put = obstore.put

    def ignoring(*given, mode=None, **named):  # type: ignore[no-untyped-def]
        return put(*given, **named)

    monkeypatch.setattr(obstore, "put", ignoring)
    store = opened_store("s3:log", s3_options(server, bucket))
    with pytest.raises(CatalogUnavailable, match="ignores conditions"):
        store.swap(b"first", "")


def test_a_bucket_that_is_missing_is_named(server: str, bucket: str) -> None:
    store = opened_store("s3:log", s3_options(server, "no-such-bucket"))
    with pytest.raises(CatalogUnavailable, match="no such bucket"):
        store.head()
