"""Nodes that were away, commands that cannot be read, and nodes that end while they start."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from dandelion.asynchronous.records import KeptRequest
from dandelion.catalog import Batch, MemoryCatalog, open_catalog
from dandelion.cluster import Cluster, ClusterSettings, log_tail
from dandelion.cluster.ballots import Command, SavedCommand, SavedVote
from dandelion.cluster.catching_up import LIMIT_NS, CatchingUp
from dandelion.cluster.log_file import LogFile
from dandelion.data import SetSpec
from dandelion.documents import CodeDocument, FunctionDocument
from dandelion.errors import CatalogUnavailable, Unknown
from dandelion.function import CodeObject, Digest, FunctionSpec, digest_of
from dandelion.node import Node
from dandelion.testing import wait_until
from tests.cluster.clusters import (
    SECRET,
    alive,
    free_addresses,
    function,
    scripted,
    settings,
    text_of,
)


def echo(name: str, *inputs: str) -> FunctionDocument:
    return function(name, *inputs, code="null")


def member(address: str, peers: list[str], catalog: str = "memory:") -> Node:
    cluster = Cluster(ClusterSettings(address, SECRET, peers=tuple(peers)))
    work = scripted(lambda engine, call: (call.inputs[0],))
    return Node(settings(catalog=catalog), [work], cluster=cluster)


@pytest.mark.parametrize("durable", [True, False])
def test_a_node_that_was_away_takes_over_the_catalogue(
    durable: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Versions, removals and code are as on the others, and the log is short on all nodes."""
    monkeypatch.setattr(log_tail, "KEPT", 2)
    addresses = free_addresses(3)
    urls = [f"sqlite:{tmp_path / str(n)}" if durable else "memory:" for n in range(3)]
    first, second = (member(addresses[n], addresses, urls[n]) for n in range(2))
    with first as one, second as two:
        with member(addresses[2], addresses, urls[2]) as away:
            for node in (one, two, away):
                wait_until(lambda node=node: alive(node) == 2)  # type: ignore[misc]
            one.register(function("old"))
            one.register(function("again"))
            wait_until(lambda: len(away.records()) == 2)
        wait_until(lambda: alive(one) == 1)
        one.remove(FunctionSpec, "old")
        one.remove(FunctionSpec, "again")
        for number in range(8):
            two.register(echo("f", f"x{number}"))
        one.register(function("again"), tenant="t")
        one.register(function("again"))
        with member(addresses[2], addresses, urls[2]) as away:
            wait_until(lambda: away.records() == one.records())
            wait_until(lambda: away.records("t") == one.records("t"))
            assert {r.name: r.version for r in away.records()} == {"f": 8, "again": 2}
            assert text_of(away.invoke("again", x=b"a")["y"]) == "a"
            assert away.register(function("old"))[0].version == 2  # versions are not used twice
            for node in (one, two, away):
                wait_until(lambda node=node: tail_of(node) <= 6)  # type: ignore[misc]
    if durable:
        assert not (tmp_path / "2" / "cluster.snapshot").exists()
        with stored_log(tmp_path / "2") as file:
            assert file.applied > 12


def test_a_node_is_ready_when_it_has_what_others_registered() -> None:
    peers = free_addresses(2)
    with member(peers[0], peers) as first:
        assert first.wait_ready(60), "the other one cannot be reached"
        with member(peers[1], peers):
            wait_until(lambda: alive(first) == 1)
            first.register(echo("early"))
        wait_until(lambda: alive(first) == 0)
        guest = member("127.0.0.1:0", peers)
        for late in (guest, member(peers[1], peers)):
            with late:
                assert late.wait_ready(60)
                assert late.describe("early").version == 1


def test_catching_up() -> None:
    assert CatchingUp(()).is_done
    waiting = CatchingUp(("a", "b"))
    waiting.tick(0, 0)
    waiting.heard("a", 3)
    waiting.tick(3, 1)
    assert not waiting.is_done, "b may have more"
    waiting.failed("b")
    waiting.tick(2, 2)
    assert not waiting.is_done
    waiting.heard("a", 9)  # that was registered since
    waiting.tick(3, 3)
    assert waiting.is_done
    silent = CatchingUp(("a",))
    silent.tick(0, 5)
    assert not silent.is_done
    silent.tick(0, 5 + LIMIT_NS)
    assert silent.is_done


def tail_of(node: Node) -> int:
    cluster = node._parts.cluster
    assert isinstance(cluster, Cluster)
    return len(cluster._log.replica.tail.commands)


@contextlib.contextmanager
def stored_log(folder: Path) -> Iterator[LogFile]:
    """The stored log of a node that has ended."""
    file = LogFile(folder, True)
    try:
        yield file
    finally:
        file.close()


def test_code_is_on_the_disk_before_the_vote_for_it(tmp_path: Path) -> None:
    """So it is there if all voters are killed after the vote."""
    code = b"the code of a function"
    digest = digest_of(code)
    spec = FunctionSpec("f", (SetSpec("x"),), (SetSpec("y"),), code=(CodeObject("work", digest),))
    address = free_addresses(1)[0]
    url = f"sqlite:{tmp_path / 'catalog'}"
    seen: list[bool] = []
    append = LogFile.append

    def noticed(file: LogFile, records: list[object]) -> None:
        accepted = [r for r in records if isinstance(r, SavedVote) and r.command is not None]
        seen.extend((tmp_path / "catalog" / "cluster.blobs" / digest).exists() for _ in accepted)
        append(file, records)  # type: ignore[arg-type]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LogFile, "append", noticed)
        with member(address, [address], url) as node:
            document = FunctionDocument(
                spec.name, ("x",), ("y",), code=(CodeDocument("work", code.decode()),)
            )
            node.register(document)
            staged = tmp_path / "catalog" / "cluster.blobs"
            wait_until(lambda: not list(staged.iterdir()))  # it is in the catalogue now
    assert seen == [True]


@pytest.mark.parametrize(
    "command",
    [
        Command("b 1", "rename", b"of a newer version", origin="b:1"),
        Command("b 1", "register", b"\xc1", origin="b:1"),
        Command("b 1", "remove", b"\x93\xa3new\xa1a\xc0", origin="b:1"),
    ],
)
def test_a_command_that_cannot_be_read_stops_changes_and_says_why(
    command: Command, tmp_path: Path
) -> None:
    folder = tmp_path / "catalog"
    url = f"sqlite:{folder}"
    address = free_addresses(1)[0]
    with member(address, [address], url) as node:
        node.register(echo("f"))
    with stored_log(folder) as file:
        first = file.applied
        file.append([SavedCommand(first, command)])
    for _ in range(2):  # it is the same after each start
        with member(address, [address], url) as node:
            cluster = node._parts.cluster
            assert isinstance(cluster, Cluster)
            wait_until(lambda cluster=cluster: cluster.catalog.blocked is not None)  # type: ignore[misc]
            for change in (
                lambda node=node: node.register(echo("g")),
                lambda node=node: node.remove(FunctionSpec, "f"),
                lambda node=node: node.kept.blocking(
                    node.kept.submit(KeptRequest(name="f"), {}, tenant="default")
                ),
            ):
                with pytest.raises(CatalogUnavailable, match=r"b:1.*newest version"):
                    change()
            info = node.cluster()
            assert info is not None
            assert "cannot be read" in info.problem
            assert text_of(node.invoke("f", x=b"a")["y"]) == "a"  # as when it is cut off
    with stored_log(folder) as file:
        assert file.applied == first


def test_a_catalogue_is_replaced_whole_or_not_at_all(tmp_path: Path) -> None:
    source = MemoryCatalog()
    code = b"code"
    spec = FunctionSpec("f", code=(CodeObject("null", digest_of(code)),))
    source.register(Batch([spec], blobs={digest_of(code): code}))
    source.remove(FunctionSpec, "f")
    source.register(Batch([spec], blobs={digest_of(code): code}))
    for url in ("memory:", f"sqlite:{tmp_path / 'c'}"):
        target = open_catalog(url)
        old = FunctionSpec("old", code=(CodeObject("null", digest_of(b"old")),))
        target.register(Batch([old], blobs={digest_of(b"old"): b"old"}))
        generation = target.generation
        with pytest.raises(Unknown):
            target.restore(source.state(), {})
        assert [r.name for r in target.records()] == ["old"]
        assert target.blob(digest_of(b"old")) == b"old"
        gone = target.restore(source.state(), {Digest(digest_of(code)): code})
        assert [r.name for r in gone] == ["old"]
        assert target.generation > generation
        assert target.state() == source.state()
        assert not target.has_blob(digest_of(b"old"))
        target.close()
    again = open_catalog(f"sqlite:{tmp_path / 'c'}")
    assert again.state() == source.state()
    assert bytes(again.blob(digest_of(code))) == code
    again.close()
