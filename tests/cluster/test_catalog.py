"""The catalogue of a cluster: the same on all nodes, also after a start."""

from __future__ import annotations

import errno
import os
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import pytest

from dandelion.asynchronous.records import KeptRequest
from dandelion.cluster import Cluster, ClusterSettings
from dandelion.cluster.ballots import Command, SavedCommand, SavedVote
from dandelion.cluster.catalog import Registration
from dandelion.cluster.log_file import LogFile
from dandelion.data import SetSpec
from dandelion.documents import CodeDocument, FunctionDocument
from dandelion.errors import (
    CatalogCorrupt,
    CatalogUnavailable,
    Conflict,
    InvalidInput,
    Unknown,
)
from dandelion.function import CodeObject, FunctionSpec
from dandelion.node import Node
from dandelion.testing import wait_until
from tests.cluster.clusters import (
    SECRET,
    free_addresses,
    function,
    nodes,
    scripted,
    settings,
    text_of,
)


def echo(name: str, *inputs: SetSpec | str) -> FunctionDocument:
    return function(name, *inputs, code="null")


def test_all_nodes_have_the_same_records_and_versions() -> None:
    with nodes([[], [], []]) as made:
        with ThreadPoolExecutor(6) as pool:
            futures = [
                pool.submit(made[n % 3].register, echo(f"f{n % 4}", f"x{n}")) for n in range(12)
            ]
            versions = [future.result()[0].version for future in futures]
        for number in range(4):
            mine = [v for n, v in enumerate(versions) if n % 4 == number]
            assert sorted(mine) == [1, 2, 3]
        made[1].register(echo("own"), tenant="t")
        registered = made[2].register(echo("own"), tenant="t")
        assert registered[0].version == 1  # equal, so it is not a new version
        for node in made:
            wait_until(lambda node=node: len(node.records("t")) == 1)  # type: ignore[misc]
            assert {r.name: r.version for r in node.records()} == {f"f{n}": 3 for n in range(4)}
            assert node.records() == made[0].records()
            assert text_of(node.invoke("own", x=b"a", tenant="t")["y"]) == "a"
        removed = made[2].remove(FunctionSpec, "f0")
        assert [r.version for r in removed] == [1, 2, 3]
        for node in made:
            wait_until(lambda node=node: len(node.records()) == 3)  # type: ignore[misc]
            with pytest.raises(Unknown):
                node.invoke("f0", x=b"a")
        with pytest.raises(Unknown):
            made[1].remove(FunctionSpec, "f0")
        with pytest.raises(InvalidInput, match="to_thread"):
            made[0]._parts.loop.call(lambda: made[0].register(echo("g")))


def test_code_is_there_when_it_is_called_first() -> None:
    ran: list[bytes] = []

    def run(engine, call):  # type: ignore[no-untyped-def]
        ran.append(bytes(call.function.main))
        return (call.inputs[0],)

    code = "x" * 300_000
    document = FunctionDocument("f", ("x",), ("y",), code=(CodeDocument("work", code),))
    with nodes([[scripted(run)], [], [scripted(run)]]) as made:
        made[0].register(document)
        for node in made:
            wait_until(lambda node=node: len(node.records()) == 1)  # type: ignore[misc]
            assert text_of(node.invoke("f", x=b"a")["y"]) == "a"
    assert ran == [code.encode()] * 3


def test_a_durable_catalogue_survives_the_end_of_all_nodes(tmp_path: Path) -> None:
    folders = [f"sqlite:{tmp_path / str(n)}" for n in range(3)]
    with nodes([[], [], []], catalogs=folders) as made:
        made[0].register(echo("a"))
        made[1].register(echo("b"))
        made[1].remove(FunctionSpec, "a")
        for node in made:
            wait_until(lambda node=node: [r.name for r in node.records()] == ["b"])  # type: ignore[misc]
    with nodes([[], [], []], catalogs=folders) as made:
        for node in made:
            assert [r.name for r in node.records()] == ["b"]
            info = node.cluster()
            assert info is not None
            assert info.registered >= 3  # the log came from the disk
        assert made[2].register(echo("a"))[0].version == 2
        for node in made:
            wait_until(lambda node=node: len(node.records()) == 2)  # type: ignore[misc]


def test_what_was_chosen_and_not_carried_out_is_carried_out_at_the_start(tmp_path: Path) -> None:
    spec = FunctionSpec("late", (SetSpec("x"),), (SetSpec("y"),), code=(CodeObject("null"),))
    content = msgspec.msgpack.encode(Registration((spec,), (), ()))
    commands = [Command(f"a {n}", "register", content) for n in range(2)]
    address = free_addresses(1)[0]
    folder = tmp_path / "catalog"
    folder.mkdir()
    file = LogFile(folder, False)
    file.append([SavedCommand(n, command) for n, command in enumerate(commands)])
    file.close()
    cluster = Cluster(ClusterSettings(address, SECRET))
    with Node(settings(catalog=f"sqlite:{folder}"), cluster=cluster) as node:
        wait_until(lambda: [(r.name, r.version) for r in node.records()] == [("late", 1)])
        assert node.register(echo("more"))[0].version == 1
    stored = LogFile(folder, True)
    stored.close()
    assert stored.applied == 3


def test_code_that_is_missing_at_the_start_is_fetched_from_other_nodes(tmp_path: Path) -> None:
    """A node was killed after a registration was chosen, and before it was carried out there."""
    folders = [tmp_path / str(n) for n in range(2)]
    urls = [f"sqlite:{folder}" for folder in folders]
    with nodes([[], []], catalogs=urls) as made:
        made[0].register(echo("late"))
        wait_until(lambda: len(made[1].records()) == 1)
    for path in folders[1].iterdir():
        if path.name != "cluster.log":
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    with nodes([[], []], catalogs=urls) as made:
        wait_until(lambda: made[1].records() == made[0].records())
        assert text_of(made[1].invoke("late", x=b"a")["y"]) == "a"


def test_a_minority_acknowledges_neither_registrations_nor_invocations() -> None:
    addresses = free_addresses(3)
    cluster = Cluster(ClusterSettings(addresses[0], SECRET, peers=tuple(addresses)))
    with Node(settings(), cluster=cluster) as node:
        with pytest.raises(CatalogUnavailable, match="majority"):
            node.register(echo("f"))
        with pytest.raises(CatalogUnavailable, match="minority"):
            request = KeptRequest(name="f")
            node.kept.blocking(node.kept.submit(request, {}, tenant="default"))


def test_a_catalogue_from_before_is_refused(tmp_path: Path) -> None:
    url = f"sqlite:{tmp_path / 'catalog'}"
    with Node(settings(catalog=url)) as node:
        node.register(echo("old"))
    address = free_addresses(1)[0]
    with pytest.raises(Conflict, match="before it was in a cluster"):
        Node(settings(catalog=url), cluster=Cluster(ClusterSettings(address, SECRET)))
    with Node(settings(catalog=url)) as node:  # nothing was changed, and nothing stays locked
        assert [r.name for r in node.records()] == ["old"]


VOTE = SavedVote(0, (1, "a"), (0, ""), None)
COMMAND = SavedCommand(0, Command("a 1", "register", b"content"))


def test_what_a_voter_stored_comes_back(tmp_path: Path) -> None:
    file = LogFile(tmp_path, False)
    file.append([VOTE, COMMAND])
    file.carried_out(1)
    file.close()
    again = LogFile(tmp_path, True)
    assert again.saved == [VOTE, COMMAND]
    assert again.pending == []
    assert again.applied == 1
    again.close()


@pytest.mark.parametrize("cut", [1, 9, 30])
def test_a_record_that_was_not_written_whole_is_cut_off(tmp_path: Path, cut: int) -> None:
    file = LogFile(tmp_path, False)
    file.append([VOTE])
    whole = (tmp_path / "cluster.log").stat().st_size
    file.append([COMMAND])
    file.close()
    path = tmp_path / "cluster.log"
    path.write_bytes(path.read_bytes()[: whole + cut])
    again = LogFile(tmp_path, False)
    assert again.saved == [VOTE]
    again.append([COMMAND])
    again.close()
    last = LogFile(tmp_path, False)
    assert last.saved == [VOTE, COMMAND]
    last.close()


def test_records_that_a_full_disk_takes_in_part_are_written_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = LogFile(tmp_path, False)
    file.append([VOTE])
    write = os.pwrite
    room = [12, 3, 0]

    def full(fd: int, data: bytes, offset: int) -> int:
        if not room:
            return write(fd, data, offset)
        size = room.pop(0)
        if not size:
            raise OSError(errno.ENOSPC, "the disk is full")
        return write(fd, data[:size], offset)

    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(OSError, match="full"):
        file.append([COMMAND])
    file.append([COMMAND])
    file.close()
    again = LogFile(tmp_path, False)
    assert again.saved == [VOTE, COMMAND]
    again.close()


def test_zeros_at_the_end_of_the_log_are_cut_off(tmp_path: Path) -> None:
    """After a loss of power a file may have its size, and not yet its content."""
    file = LogFile(tmp_path, False)
    file.append([VOTE])
    file.close()
    path = tmp_path / "cluster.log"
    path.write_bytes(path.read_bytes() + bytes(100))
    again = LogFile(tmp_path, False)
    assert again.saved == [VOTE]
    again.close()


def test_a_damaged_record_is_an_error(tmp_path: Path) -> None:
    file = LogFile(tmp_path, False)
    file.append([VOTE, COMMAND])
    file.close()
    path = tmp_path / "cluster.log"
    data = bytearray(path.read_bytes())
    data[10] ^= 255
    path.write_bytes(data)
    with pytest.raises(CatalogCorrupt):
        LogFile(tmp_path, False)
