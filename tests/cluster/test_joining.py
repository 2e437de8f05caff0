"""Nodes that join, drain and leave while others work, and what is refused."""

from __future__ import annotations

import contextlib
import re
import socket
import subprocess
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from dandelion.cluster import Cluster, ClusterSettings, cluster_settings, doors
from dandelion.cluster.call_messages import Run
from dandelion.cluster.frames import Frames
from dandelion.cluster.joining import joined
from dandelion.cluster.messages import Message
from dandelion.cluster.serving import InLink
from dandelion.driver import Call, Engine, InstanceSets
from dandelion.errors import InvalidInput
from dandelion.frontend.client import Client
from dandelion.frontend.server import BackgroundServer
from dandelion.node import Node
from dandelion.testing import wait_until
from tests.cluster.clusters import (
    SECRET,
    alive,
    free_addresses,
    function,
    nodes,
    scripted,
    settings,
    text_of,
)


def slow(engine: Engine, call: Call) -> InstanceSets:
    threading.Event().wait(0.03)  # engines in threads take shorter calls ahead, so none waits
    return (call.inputs[0],)


def sent_calls(node: Node) -> int:
    info = node.cluster()
    assert info is not None
    return info.sent_calls


def test_guests_join_and_leave_under_load() -> None:
    with nodes([[scripted(slow)]]) as made:
        owner = made[0]
        owner.register(function("work"))
        cluster = owner._parts.cluster
        assert isinstance(cluster, Cluster)
        stop = threading.Event()

        def load() -> int:
            count = 0
            while not stop.is_set():
                assert text_of(owner.invoke("work", x=b"a")["y"]) == "a"
                count += 1
            return count

        with ThreadPoolExecutor(4) as pool, contextlib.ExitStack() as end:
            end.callback(stop.set)
            callers = [pool.submit(load) for _ in range(4)]
            for _ in range(2):
                given = ClusterSettings("127.0.0.1:0", SECRET, peers=(cluster.name,))
                with Node(settings(), [scripted(slow)], Cluster(given)) as guest:
                    wait_until(lambda: alive(owner) == 1)
                    enough = sent_calls(owner) + 5
                    wait_until(lambda enough=enough: sent_calls(owner) > enough)  # type: ignore[misc]
                    wait_until(lambda guest=guest: guest.records() == owner.records())  # type: ignore[misc]
                    assert text_of(guest.invoke("work", x=b"b")["y"]) == "b"
                    guest.register(function("guests", code="null"))  # the owner votes for it
                wait_until(lambda: alive(owner) == 0)
            stop.set()
            assert sum(caller.result(20) for caller in callers) > 10
        info = owner.cluster()
        assert info is not None
        assert info.lost_calls == 0
        assert [member.state for member in info.members] == ["self"]


def test_calls_on_a_node_that_drains_may_end() -> None:
    begun, go = threading.Event(), threading.Event()
    runs: list[int] = []

    def run(engine: Engine, call: Call) -> InstanceSets:
        runs.append(call.id)
        begun.set()
        go.wait(20)
        return (call.inputs[0],)

    with nodes([[], [scripted(run)]]) as made, ThreadPoolExecutor(2) as pool:
        owner, other = made
        other.register(function("work"))
        wait_until(lambda: len(owner.records()) == 1)
        answer = pool.submit(owner.invoke, "work", x=b"a")
        assert begun.wait(20)
        closing = pool.submit(other.close)
        try:
            wait_until(lambda: "draining" in [m.state for m in owner.cluster().members])  # type: ignore[union-attr]
            owner._parts.loop.call(lambda: None)  # what follows from that has been done
        finally:
            go.set()
        assert text_of(answer.result(20)["y"]) == "a"
        closing.result(20)
    assert len(runs) == 1


def test_a_call_that_meets_the_end_of_a_node_is_not_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """It was sent before its sender knew of that end, and begins elsewhere."""
    sent, received = threading.Event(), InLink.received
    hosts: list[object] = []

    def delayed(link: InLink, message: Message, data: memoryview | None) -> None:
        if isinstance(message, Run) and not hosts:
            hosts.append(link._host)  # it comes after the end of the link
            sent.set()
        else:
            received(link, message, data)

    monkeypatch.setattr(InLink, "received", delayed)
    with nodes([[], [scripted(slow)], [scripted(slow)]]) as made, ThreadPoolExecutor(1) as pool:
        owner, *others = made
        others[0].register(function("work"))
        wait_until(lambda: all(len(node.records()) == 1 for node in made))
        answer = pool.submit(owner.invoke, "work", x=b"a")
        assert sent.wait(20)
        [leaving] = [node for node in others if node._parts.cluster is hosts[0]]
        leaving.close()
        assert text_of(answer.result(20)["y"]) == "a"
        info = owner.cluster()
    assert info is not None
    assert info.lost_calls == 0


def test_status_over_http_and_in_metrics() -> None:
    with nodes([[], [scripted(slow)]]) as made, BackgroundServer(made[0]) as server:
        with Client(server.url) as client:
            info = client.cluster()
            assert info is not None
            assert info.majority
            assert [member.voter for member in info.members] == [True, True]
            other = next(member for member in info.members if member.state == "alive")
            assert other.engines["work"] == 1
            metrics = client.metrics()
        assert 'dandelion_cluster_members{state="alive"} 1.0' in metrics
        assert "dandelion_cluster_majority 1.0" in metrics
    with Node(settings()) as alone:
        assert alone.cluster() is None
        assert b"cluster" not in alone.metrics()


def test_nothing_is_loaded_without_a_cluster() -> None:
    root = Path(__file__).resolve().parents[2] / "dandelion"
    for path in root.rglob("*.py"):
        if path.parent.name != "cluster":
            imports = re.findall(
                r"^\s*(?:from|import) (dandelion\.cluster\S*)", path.read_text(), re.M
            )
            assert not imports, path


def test_settings(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_bytes(SECRET + b"\n")
    assert cluster_settings(settings()) is None
    for given, where in (
        ({"peers": ("127.0.0.1:1",)}, "cluster_secret"),
        ({"peers": ("127.0.0.1:1",), "cluster_secret": str(tmp_path / "none")}, "cluster_secret"),
        ({"peers": ("nowhere",), "cluster_secret": str(secret)}, "peers"),
        ({"cluster_listen": "8.8.8.8:1", "cluster_secret": str(secret)}, "cluster_listen"),
    ):
        with pytest.raises(InvalidInput) as caught:
            joined(settings(**given))
        assert caught.value.where == where
    address = free_addresses(1)[0]
    made = joined(settings(cluster_listen=address, peers=(address,), cluster_secret=str(secret)))
    with Node(settings(), cluster=made) as node:
        assert made.name == address
        wait_until(lambda: node.cluster().majority)  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("listen", "address", "setting"),
    [
        ("0.0.0.0:7077", "", "cluster_listen"),
        ("[::]:7077", "", "cluster_listen"),
        ("127.0.0.1:0", "0.0.0.0:7077", "cluster_address"),
    ],
)
def test_a_name_that_others_cannot_reach_is_refused(
    listen: str, address: str, setting: str
) -> None:
    with pytest.raises(InvalidInput, match="no single node") as caught:
        ClusterSettings(listen, SECRET, address)
    assert caught.value.where == setting
    ClusterSettings(listen, SECRET, "node.example.org:7077")


def test_an_address_in_use_is_refused_with_advice() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        address = f"127.0.0.1:{other.getsockname()[1]}"
        with pytest.raises(InvalidInput, match=f"{address}: .* in use; another program") as caught:
            Cluster(ClusterSettings(address, SECRET))
    assert caught.value.where == "cluster_listen"


def test_nodes_with_other_voters_do_not_mix() -> None:
    first, second = free_addresses(2)
    one = Cluster(ClusterSettings(first, SECRET, peers=(first,)))
    other = Cluster(ClusterSettings(second, SECRET, peers=(first, second)))
    with Node(settings(), cluster=one) as a, Node(settings(), cluster=other) as b:
        refused = b._parts.loop.call(lambda: other._membership.members[first])
        wait_until(lambda: refused.failures)
        assert alive(a) == alive(b) == 0


def certificate(folder: Path, name: str) -> tuple[str, str]:
    """Make a certificate that signs itself, and its key."""
    cert, key = folder / f"{name}.pem", folder / f"{name}.key"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256",
         "-nodes", "-days", "2", "-subj", f"/CN={name}", "-keyout", str(key), "-out", str(cert)],
        check=True,
        capture_output=True,
    )  # fmt: skip
    return str(cert), str(key)


def test_connections_without_tls_leave_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doors, "JOIN_S", 0.05)
    accept = doors.Door._accept
    accepted: list[doors.Door] = []

    def counted(door: doors.Door) -> Frames:
        accepted.append(door)
        return accept(door)

    monkeypatch.setattr(doors.Door, "_accept", counted)
    cert, key = certificate(tmp_path, "node")
    address = free_addresses(1)[0]
    given = ClusterSettings(address, SECRET, "", (address,), cert, key, cert)
    with Node(settings(), cluster=Cluster(given)) as node:
        cluster = node._parts.cluster
        assert isinstance(cluster, Cluster)
        pending = cluster._door._pending
        host, port = address.split(":")
        texts = (b"", b"GET / HTTP/1.1", b"\x16\x03\x01")
        for text in texts:
            with socket.create_connection((host, int(port)), 5) as one:
                one.sendall(text)
        wait_until(lambda: len(accepted) == len(texts))
        wait_until(lambda: not pending)


def test_tls_between_nodes(tmp_path: Path) -> None:
    cert, key = certificate(tmp_path, "node")
    other_cert, other_key = certificate(tmp_path, "stranger")
    addresses = tuple(free_addresses(2))

    def cluster(address: str, *files: str) -> Cluster:
        return Cluster(ClusterSettings(address, SECRET, "", addresses, *files))

    data = bytes(range(256)) * 4000
    first = cluster(addresses[0], cert, key, cert)
    with Node(settings(), cluster=first) as one:
        second = cluster(addresses[1], cert, key, cert)
        echo = scripted(lambda engine, call: (call.inputs[0],))
        with Node(settings(), [echo], second) as other:
            wait_until(lambda: alive(one) == alive(other) == 1)
            other.wait_ready(20)
            other.register(function("work"))
            wait_until(lambda: len(one.records()) == 1)
            wait_until(lambda: any("work" in m.engines for m in one.cluster().members))  # type: ignore[union-attr]
            found = one.invoke("work", x=data)["y"]
            assert found is not None
            assert found.bytes() == data
        wait_until(lambda: alive(one) == 0)
        for files in ((other_cert, other_key, cert), ()):
            with Node(settings(), cluster=cluster(addresses[1], *files)) as stranger:
                refused = stranger._parts.cluster._membership.members[addresses[0]]  # type: ignore[union-attr]
                wait_until(lambda refused=refused: refused.failures > 1)  # type: ignore[misc]
                assert alive(one) == alive(stranger) == 0
    with pytest.raises(InvalidInput, match="cannot be used"):
        cluster(addresses[0], key, cert, cert)
