"""Peers that are broken or hostile: their connection ends, and the node goes on."""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Iterator

import pytest

from dandelion.cluster import Cluster
from dandelion.cluster.call_messages import Define, Failed, RegionSize, Run, WireItem, WireSet
from dandelion.cluster.handshake import Handshake
from dandelion.cluster.messages import (
    VERSION,
    BlobAt,
    Join,
    Message,
    Piece,
    Ping,
    Pong,
    Refuse,
    Welcome,
    decode,
    encode,
)
from dandelion.data import SetSpec
from dandelion.driver import Call, Engine, InstanceSets
from dandelion.errors import BackendUnavailable, ContextFull, from_record
from dandelion.function import CodeObject, FunctionSpec
from dandelion.node import Node
from dandelion.testing import wait_until
from tests.cluster.clusters import SECRET, alive, function, nodes, scripted, text_of

SPEC = FunctionSpec("work", (SetSpec("x"),), (SetSpec("y"),), version=9)


@pytest.fixture(scope="module")
def node() -> Iterator[Node]:
    with nodes([[scripted(lambda engine, call: (call.inputs[0],))]]) as made:
        made[0].register(function("work"))
        yield made[0]


class Peer:
    """A connection that says what a test wants."""

    def __init__(self, node: Node, secret: bytes = SECRET) -> None:
        cluster = node._parts.cluster
        assert isinstance(cluster, Cluster)
        self.name = cluster.name
        host, port = self.name.split(":")
        self.socket = socket.create_connection((host, int(port)), 5)
        self.socket.settimeout(5)
        self.handshake = Handshake(secret, opener=True)

    def shake(self) -> None:
        self.socket.sendall(self.handshake.begin())
        while self.handshake.wanted:
            self.socket.sendall(self.handshake.received(self.exactly(self.handshake.wanted)))

    def exactly(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            part = self.socket.recv(size - len(data))
            if not part:
                raise ConnectionError("it ended")
            data += part
        return data

    def send(self, message: Message, data: bytes = b"") -> None:
        body = encode(message)
        self.socket.sendall(struct.pack("<II", len(body), len(data)) + body + data)

    def read(self) -> Message:
        length, size = struct.unpack("<II", self.exactly(8))
        message = decode(memoryview(self.exactly(length)))
        self.exactly(size)
        return message

    def join(self, name: str = "127.0.0.1:1", **given: object) -> Message:
        fields = {
            "version": VERSION,
            "node": name,
            "incarnation": 1,
            "expected": self.name,
            "link": time.monotonic_ns(),
            "data": False,
            "voters": (self.name,),
        }
        self.send(Join(**{**fields, **given}))  # type: ignore[arg-type]
        return self.read()

    def is_ended(self) -> bool:
        try:
            while self.socket.recv(65536):
                pass
        except ConnectionError:
            return True
        return True

    def __enter__(self) -> Peer:
        return self

    def __exit__(self, *error: object) -> None:
        self.socket.close()


def still_works(node: Node) -> None:
    assert text_of(node.invoke("work", x=b"text")["y"]) == "text"


@pytest.mark.parametrize(
    "data", [b"GET / HTTP/1.1\r\nHost: a\r\n\r\n".ljust(64), b"\x00" * 64, b"\x16\x03\x01" * 30]
)
def test_other_protocols_end_at_once(node: Node, data: bytes) -> None:
    with Peer(node) as peer:
        peer.socket.sendall(data)
        assert peer.is_ended()
    still_works(node)


def test_without_the_secret_nothing_is_read(node: Node) -> None:
    with Peer(node, b"another secret of the cluster") as peer:
        peer.socket.sendall(peer.handshake.begin())
        hello = peer.exactly(37)
        peer.socket.sendall(peer.handshake.received(hello))
        peer.send(Ping(1))
        assert peer.is_ended()
    still_works(node)


def test_who_says_nothing_is_ended(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dandelion.cluster.doors.JOIN_S", 0.05)
    with Peer(node) as peer:
        assert peer.is_ended()
    with Peer(node) as peer:
        peer.shake()
        assert peer.is_ended()


def test_many_that_say_nothing_do_not_keep_others_out(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dandelion.cluster.doors.PENDING_LIMIT", 4)
    silent = [Peer(node) for _ in range(8)]
    with Peer(node) as peer:
        peer.shake()
        assert isinstance(peer.join("127.0.0.1:2"), Welcome)
    for one in silent:
        one.socket.close()


@pytest.mark.parametrize(
    "given",
    [{"version": 99}, {"expected": "other:1"}, {"data": True}, {"name": ""}, {"voters": ("a:1",)}],
    ids=["version", "expected", "data without control", "name", "voters"],
)
def test_joins_that_do_not_fit_are_refused(node: Node, given: dict[str, object]) -> None:
    with Peer(node) as peer:
        peer.shake()
        try:
            answer = peer.join(**given)  # type: ignore[arg-type]
        except ConnectionError:
            return
        assert isinstance(answer, Refuse)
        assert peer.is_ended()
    still_works(node)


def test_a_refusal_names_the_peers_or_the_store_of_both(node: Node) -> None:
    with Peer(node) as peer:
        peer.shake()
        answer = peer.join(voters=("store folder:/shared",))
        assert isinstance(answer, Refuse)
        info = node.cluster()
        assert info is not None
        own = f"{info.node} has the peers {info.node}"
        assert answer.reason.startswith(f"{own}, the other node the store folder:/shared;")


def test_a_link_has_one_connection_for_data(node: Node) -> None:
    with Peer(node) as control, Peer(node) as data, Peer(node) as other:
        for peer in (control, data, other):
            peer.shake()
        assert isinstance(control.join("127.0.0.1:7", link=1), Welcome)
        assert isinstance(data.join("127.0.0.1:7", link=1, data=True), Welcome)
        assert isinstance(other.join("127.0.0.1:7", link=1, data=True), Refuse)
        assert other.is_ended()
    still_works(node)


@pytest.mark.parametrize("name", ["no address", "a..b:1"])
def test_names_that_are_no_addresses_are_given_up(node: Node, name: str) -> None:
    cluster = node._parts.cluster
    assert isinstance(cluster, Cluster)
    cluster._found(name)
    members = cluster._membership.members
    wait_until(lambda: name in members and members[name].failures > 0)


def run(number: int, function: int = 1, **given: object) -> Run:
    sets = (WireSet("x", (WireItem("a", 0, 0, 0, 4),)),)
    fields = {"inputs": sets, "regions": (), "deadline_s": 5.0}
    return Run(number, function, **{**fields, **given})  # type: ignore[arg-type]


RUN = run(1)
DEFINE = Define(1, "default", SPEC, None, {})
UNLIKE = (WireSet("x", (WireItem("a", 0, 0, 0, 4, "float32", (1000,)),)),)
OUTSIDE = (WireSet("x", (WireItem("a", 0, 0, 2, 4),)),)
NOWHERE = (WireSet("x", (WireItem("a", 0, 77, 0, 4),)),)


@pytest.mark.parametrize(
    "messages",
    [
        [(run(1), b"data")],
        [(DEFINE, b""), (DEFINE, b"")],
        [(DEFINE, b""), (run(1, inputs=OUTSIDE), b"data")],
        [(DEFINE, b""), (run(1, inputs=NOWHERE), b"data")],
        [(DEFINE, b""), (run(1, inputs=UNLIKE), b"data")],
        [(DEFINE, b""), (run(1, inputs=()), b"")],
        [(Define(1, "default", None, None, {}), b"")],
        [(Welcome("a", 1, Pong(1, None).load), b"")],  # type: ignore[arg-type]
        [(Pong(1, None), b"")],  # type: ignore[arg-type]
        [(BlobAt(1, 1, 5), b"")],
        [(Piece(1, 0), b"data")],
    ],
)
def test_messages_that_do_not_fit_end_the_connection(
    node: Node, messages: list[tuple[Message, bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dandelion.cluster.cluster.SILENT_NS", 1 << 60)  # it sends no heartbeat
    with Peer(node) as peer:
        peer.shake()
        assert isinstance(peer.join("127.0.0.1:3"), Welcome)
        for message, data in messages:
            peer.send(message, data)
        assert peer.is_ended()
    still_works(node)


def test_regions_that_never_come_end_with_the_connection(node: Node) -> None:
    used = node.info().arena.used_bytes
    with Peer(node) as peer:
        peer.shake()
        assert isinstance(peer.join("127.0.0.1:4"), Welcome)
        peer.send(DEFINE)
        sets = (WireSet("x", (WireItem("a", 0, 5, 0, 4),)),)
        for number in range(10):
            region = RegionSize(number + 1, 1 << 20)
            peer.send(run(number, inputs=sets, regions=(region,)))
        wait_until(lambda: node.info().arena.used_bytes > used)
        peer.send(Ping(1))
        assert isinstance(peer.read(), Pong)
    wait_until(lambda: node.info().arena.used_bytes == used)
    still_works(node)


def test_a_node_that_goes_silent_has_no_calls_here(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dandelion.cluster.cluster.SILENT_NS", 200_000_000)
    with Peer(node) as peer:
        peer.shake()
        assert isinstance(peer.join("127.0.0.1:6"), Welcome)
        peer.send(Ping(1))
        assert isinstance(peer.read(), Pong)
        assert peer.is_ended()


def test_a_call_that_is_larger_than_the_arena_is_not_sent_again(node: Node) -> None:
    with Peer(node) as peer:
        peer.shake()
        assert isinstance(peer.join("127.0.0.1:5"), Welcome)
        peer.send(DEFINE)
        sets = (WireSet("x", (WireItem("a", 0, 5, 0, 4),)),)
        peer.send(run(1, inputs=sets, regions=(RegionSize(5, 1 << 45),)))
        answer = peer.read()
        assert isinstance(answer, Failed)
        assert not answer.refused
        assert isinstance(from_record(answer.error), ContextFull)
    still_works(node)


def test_a_node_with_another_secret_is_no_member() -> None:
    drivers = [[scripted(lambda engine, call: (call.inputs[0],))] for _ in range(2)]
    with nodes(drivers, [SECRET, b"another secret of the cluster"], joined=False) as made:
        first = made[0].cluster()
        assert first is not None
        assert not first.majority
        assert alive(made[0]) == alive(made[1]) == 0


@pytest.mark.parametrize(("kind", "refused"), [("io", False), ("compute", True)])
def test_io_that_has_begun_is_not_given_back(kind: str, refused: bool) -> None:
    def run(engine: Engine, call: Call) -> InstanceSets:
        raise BackendUnavailable("store", "its credentials are gone")

    code = (CodeObject("work"),)
    spec = FunctionSpec("f", SPEC.inputs, SPEC.outputs, code=code, kind=kind)
    with nodes([[scripted(run)]]) as made, Peer(made[0]) as peer:
        peer.shake()
        assert isinstance(peer.join("127.0.0.1:8"), Welcome)
        peer.send(Define(1, "default", spec, None, {}))
        peer.send(RUN, b"data")
        answer = peer.read()
    assert isinstance(answer, Failed)
    assert answer.refused is refused
