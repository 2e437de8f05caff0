"""Blobs of other nodes are checked, and asked for at the next node if one does not have them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from dandelion.catalog import MemoryCatalog
from dandelion.cluster.ballots import Command
from dandelion.cluster.blob_source import BlobSource
from dandelion.cluster.catalog import ClusterCatalog, Registration
from dandelion.cluster.staged_blobs import StagedBlobs
from dandelion.data import Bytes, SetSpec
from dandelion.errors import NodeLost, Unknown
from dandelion.function import CodeObject, Digest, FunctionSpec, digest_of

CODE = b"the code of a function"
DIGEST = digest_of(CODE)


class Peer:
    """A node that gives what it is told to."""

    def __init__(self, data: Bytes | None) -> None:
        self.data = data
        self.requested = 0

    def get_blob(self, digest: Digest, done: Callable[[Bytes | None], None]) -> None:
        self.requested += 1
        done(self.data)


def source(*peers: Peer) -> BlobSource:
    made = BlobSource(lambda event: event())
    for peer in peers:
        made.announced({DIGEST: len(CODE)}, peer)
    return made


def test_the_next_node_is_asked_and_the_blob_is_kept() -> None:
    good, absent, false = Peer(memoryview(CODE)), Peer(None), Peer(b"other bytes")
    made = source(good, absent, false)
    assert made.size(DIGEST) == len(CODE)
    assert made.blob(DIGEST) == made.blob(DIGEST) == CODE
    assert isinstance(made.blob(DIGEST), bytes)  # not a view of memory for data in flight
    assert [peer.requested for peer in (good, absent, false)] == [1, 1, 1]


def test_bytes_with_another_digest_are_never_used() -> None:
    with pytest.raises(NodeLost):
        source(Peer(b"other bytes"), Peer(CODE + b"!")).blob(DIGEST)


def test_a_node_that_is_gone_is_not_asked() -> None:
    peer = Peer(CODE)
    made = source(peer)
    made.lost(peer)
    with pytest.raises(NodeLost):
        made.blob(DIGEST)
    assert peer.requested == 0
    with pytest.raises(Unknown):
        made.blob(digest_of(b"never announced"))


def test_what_is_kept_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dandelion.cluster.blob_source.KEPT_BYTES", 10)
    peer = Peer(CODE)
    made = source(peer)
    assert made.blob(DIGEST) == made.blob(DIGEST) == CODE
    assert peer.requested == 2


@pytest.mark.parametrize("durable", [False, True])
def test_code_of_registrations_that_are_never_chosen_is_dropped(
    durable: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    codes = [bytes([n]) * 100 for n in range(3)]
    digests = [digest_of(code) for code in codes]
    made = BlobSource(lambda event: event())
    staging = StagedBlobs(tmp_path if durable else None)
    catalog = ClusterCatalog(MemoryCatalog(), "a", made, staging)

    def staged(place: int, id_: str, number: int) -> Command:
        made.announced({digests[number]: 100}, Peer(codes[number]))
        command = Command(id_, "register", b"", {digests[number]: 100})
        assert not catalog.keeps_blobs(place, command, True)
        catalog.stage(place, id_, command.blobs)
        assert catalog.keeps_blobs(place, command, True)
        return command

    spec = FunctionSpec(
        "f", (SetSpec("x"),), (SetSpec("y"),), code=(CodeObject("null", digests[0]),)
    )
    staged(0, "b 1", 1)  # another one is chosen
    command = staged(0, "b 2", 0)
    content = msgspec.msgpack.encode(Registration((spec,), (), ()))
    catalog.carry_out(0, msgspec.structs.replace(command, content=content))
    staging.carried_out(1)
    assert catalog.own.has_blob(digests[0])
    assert len(staging) == 0
    assert catalog.keeps_blobs(1, command, True)
    assert not catalog.keeps_blobs(1, command, False)  # a command before it may remove the blob

    monkeypatch.setattr("dandelion.cluster.staged_blobs.LIMIT_BYTES", 150)
    staged(1, "b 3", 1)
    staged(1, "b 4", 2)
    staging.make_room(1, ["b 4"])
    assert list(staging) == [digests[2]]
    if durable:
        assert [path.name for path in (tmp_path / "cluster.blobs").iterdir()] == [digests[2]]


def test_staged_blobs_are_there_after_a_start(tmp_path: Path) -> None:
    codes = [bytes([n]) * 100 for n in range(3)]
    digests = [digest_of(code) for code in codes]
    staging = StagedBlobs(tmp_path)
    staging.use(7, "a", digests)
    for digest, code in zip(digests, codes, strict=True):
        staging.add(digest, code)
    folder = tmp_path / "cluster.blobs"
    (folder / digests[1]).write_bytes(b"damaged")
    (folder / f"{digests[2]}.123").write_bytes(b"not who")
    again = StagedBlobs(tmp_path)
    again.use(7, "a", digests[:2])
    again.sweep()
    assert again[digests[0]] == codes[0]
    with pytest.raises(Unknown):
        again[digests[1]]
    assert digests[1] not in again  # it is fetched again
    assert sorted(path.name for path in folder.iterdir()) == sorted(digests[:2])
