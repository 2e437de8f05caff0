"""Many and large messages between nodes, and connections on which nothing moves."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from dandelion.cluster import (
    Cluster,
    ClusterSettings,
    cluster,
    exchange,
    frames,
    regions,
    wire_sets,
)
from dandelion.cluster.call_messages import Define, Failed, Load, Run, StopRun, WireItem, WireSet
from dandelion.cluster.frames import Frames
from dandelion.cluster.messages import Message, Ping, Pong, Welcome, encode
from dandelion.cluster.regions import Regions
from dandelion.cluster.wire_sets import SHARED_BYTES, pack, unpack
from dandelion.data import Item, ItemSet
from dandelion.driver import Call, Engine, InstanceSets
from dandelion.errors import TooMany, from_record
from dandelion.node import Node
from dandelion.testing import wait_until
from tests.cluster.clusters import SECRET, free_addresses, function, nodes, scripted, settings
from tests.cluster.test_exchange import Pair
from tests.cluster.test_hostile import SPEC, Peer
from tests.cluster.test_wire import Wire, connected

MIB = 1 << 20


class Slow(Wire):
    """Tells the protocol to stop when it has more than a limit, as transports do."""

    end: Frames

    def write(self, data: bytes | bytearray | memoryview) -> None:
        super().write(data)
        if len(self.waiting) > frames.HIGH_WATER_BYTES:
            self.end.pause_writing()

    def get_write_buffer_size(self) -> int:
        return len(self.waiting)

    def deliver(self, end: Frames) -> None:
        while self.waiting:
            super().deliver(end)
            self.end.resume_writing()


@pytest.fixture(autouse=True)
def _small_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frames, "QUEUE_LIMIT_BYTES", MIB)
    monkeypatch.setattr(frames, "HIGH_WATER_BYTES", 65536)


def slow_pair() -> tuple[Frames, Slow, Frames]:
    opener, _, acceptor, _ = connected()
    line = Slow(1)
    line.end = opener
    opener._transport = line
    return opener, line, acceptor


def large_run(number: int, items: int = 4000) -> Run:
    one = WireSet("x", tuple(WireItem("a" * 60, 0, 0, 0, 0) for _ in range(items)))
    return Run(number, 1, (one,), (), 5.0)


def test_calls_of_any_size_may_follow_each_other() -> None:
    """Together they are more than what a peer may make this end queue."""
    opener, line, acceptor = slow_pair()
    got: list[Message] = []
    acceptor.received = lambda message, data: got.append(message)
    runs = [large_run(number) for number in range(6)]
    size = 0
    for run in runs:
        before = opener.sent_bytes
        opener.send(run, limited=False)
        size += opener.sent_bytes - before
    assert size > frames.QUEUE_LIMIT_BYTES
    assert len(line.waiting) < 2 * size / len(runs)  # the transport has one
    opener.send(StopRun(1))
    opener.send(Ping(1), urgent=True)
    assert not line.aborted
    line.deliver(acceptor)
    kinds = [type(message) for message in got]
    assert kinds == [Run, Ping, *[Run] * 5, StopRun]
    assert [m.call for m in got if isinstance(m, Run)] == list(range(6))
    assert got[0] == runs[0]


def test_a_peer_that_asks_and_does_not_read_is_given_up() -> None:
    opener, line, _ = slow_pair()
    for number in range(100):
        opener.send(Pong(number, Load()), [bytes(MIB)])
    assert line.aborted


def test_a_connection_on_which_something_waits_must_move() -> None:
    opener, line, _ = slow_pair()
    now_ns = 1
    assert not opener.is_moving(now_ns)  # nothing waits
    opener.send(large_run(1), limited=False)
    opener.send(StopRun(1))
    for _ in range(5):
        now_ns += frames.STALL_NS - 1
        line.waiting = line.waiting[100:]
        assert opener.is_moving(now_ns)
    now_ns += frames.STALL_NS - 1
    assert not opener.is_moving(now_ns)
    assert not line.aborted
    now_ns += 2
    opener.is_moving(now_ns)
    assert line.aborted


def test_what_waits_is_sent_before_a_polite_end() -> None:
    opener, line, acceptor = slow_pair()
    got: list[Message] = []
    acceptor.received = lambda message, data: got.append(message)
    line.close = lambda: None  # type: ignore[method-assign]
    opener.send(large_run(1), limited=False)
    opener.send(StopRun(1))
    opener.close("the end", politely=True)
    line.deliver(acceptor)
    assert [type(message) for message in got] == [Run, StopRun]


def test_a_part_of_a_message_is_a_sign_of_life(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster, "SILENT_NS", 600_000_000)
    with nodes([[]]) as made, Peer(made[0]) as peer:
        peer.shake()
        assert isinstance(peer.join("127.0.0.1:3"), Welcome)
        peer.send(Define(1, "default", SPEC, None, {}))
        body = encode(Ping(1))
        whole = len(body).to_bytes(4, "little") + bytes(4) + body
        end = time.monotonic() + 1.0
        for byte in whole[:-1]:  # longer than a silent peer may be
            peer.socket.sendall(bytes([byte]))
            time.sleep(max(0.0, (end - time.monotonic()) / len(whole)))
        peer.socket.sendall(whole[-1:])
        assert isinstance(peer.read(), Pong)


# --- regions --------------------------------------------------------------------------------------


@pytest.fixture
def pair() -> Iterator[Pair]:
    made = Pair()
    yield made
    made.here.close("the end")
    made.there.close("the end")
    for arena in made.arenas:
        arena.close()


def sets_of(count: int, size: int = SHARED_BYTES) -> tuple[InstanceSets, bytes]:
    block = bytes(range(256)) * (size // 256 + count // 256 + 1)
    view = memoryview(block)
    items = tuple(Item(f"i{k}", k, view[k : k + size]) for k in range(count))
    return (ItemSet("x", items),), block


def test_more_large_items_than_regions(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire_sets, "OWN_REGIONS", 4)
    sets, _ = sets_of(20)
    packed = pack(sets, pair.there)
    assert len(packed.regions) == 5
    found = pair.fetch(*packed.regions)
    pair.run()
    assert unpack(packed.sets, None, found[0])[0] == sets[0]
    pair.there.withdraw([region.region for region in packed.regions])
    assert len(pair.there.regions) == 0


def test_65537_large_items_are_sent(pair: Pair) -> None:
    sets, _ = sets_of(65_537)
    packed = pack(sets, pair.there)
    assert len(packed.regions) == wire_sets.OWN_REGIONS + 1
    assert sum(region.size for region in packed.regions) == 65_537 * SHARED_BYTES
    pair.there.withdraw([region.region for region in packed.regions])
    assert len(pair.there.regions) == 0


def test_an_item_that_is_there_twice_is_released_once(pair: Pair) -> None:
    (one,), _ = sets_of(1)
    assert one is not None
    packed = pack((one, one), pair.there)
    assert len(packed.regions) == 1
    pair.there.withdraw([region.region for region in packed.regions])
    assert len(pair.there.regions) == 0


def test_too_many_regions_are_an_error_and_hold_nothing(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(regions, "REGIONS_LIMIT", 6)
    held = pack(sets_of(4)[0], pair.there)
    with pytest.raises(TooMany):
        pack(sets_of(5, 2 * SHARED_BYTES)[0], pair.there)
    assert len(pair.there.regions) == 4
    pair.there.withdraw([region.region for region in held.regions])
    pack(sets_of(5, 2 * SHARED_BYTES)[0], pair.there)
    assert len(pair.there.regions) == 5


def test_originals_of_copies_make_room_for_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(regions, "REGIONS_LIMIT", 3)
    made = Regions(1000)
    blocks = [bytes([n]) * 40 for n in range(5)]
    kept = [made.export(block).region for block in blocks[:3]]
    made.released(kept, copied=True)
    made.export(blocks[3])
    made.export(blocks[4])
    assert [made.whole(number) is None for number in kept] == [True, True, False]


# --- a connection for data that does not move -----------------------------------------------------


class Still:
    """A connection that takes messages and gives nothing."""

    received_bytes = sent_bytes = 0

    def __init__(self) -> None:
        self.sink: Any = None
        self.received: Any = None

    def send(self, message: Message, pieces: object = None) -> None:
        pass

    def is_moving(self, now_ns: int) -> bool:
        return False

    def close(self, reason: str) -> None:
        pass


def test_data_that_does_not_come_ends_the_link(pair: Pair) -> None:
    still = Still()
    pair.here._frames = still  # type: ignore[assignment]
    now_ns = 10
    assert not pair.here.stalled(now_ns)
    now_ns += 2 * exchange.STALL_NS
    assert not pair.here.stalled(now_ns)  # nothing was asked for
    pair.fetch(pair.there.regions.hold([bytes(3 * MIB)]))
    for _ in range(3):
        now_ns += exchange.STALL_NS - 1
        still.received_bytes += 1  # slow, but it moves
        assert not pair.here.stalled(now_ns)
    assert not pair.here.stalled(now_ns + exchange.STALL_NS)
    assert "has not come" in pair.here.stalled(now_ns + exchange.STALL_NS + 1)


def test_a_link_whose_data_does_not_come_is_opened_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """The connection for control works all the time, and the call is run again."""
    monkeypatch.setattr(exchange, "STALL_NS", 200_000_000)
    silent = threading.Event()
    send = exchange.Exchange._send

    def lost(end: exchange.Exchange, pull: Any) -> None:
        if silent.is_set():
            send(end, pull)
        else:
            silent.set()  # the first piece is lost on the way

    monkeypatch.setattr(exchange.Exchange, "_send", lost)

    def run(engine: Engine, call: Call) -> InstanceSets:
        return (call.inputs[0],)

    with nodes([[], [scripted(run)]]) as made:
        made[1].register(function("echo"))
        wait_until(lambda: len(made[0].records()) == 1)
        data = bytes(range(256)) * 4096
        found = made[0].invoke("echo", x=data, deadline_s=20)["y"]
        assert found is not None
        assert found.bytes() == data
        assert silent.is_set()


# --- tenants --------------------------------------------------------------------------------------


def test_a_peer_makes_a_limited_number_of_tenants(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dandelion.node.spaces.TENANTS_LIMIT", 5)
    with nodes([[scripted(lambda engine, call: (call.inputs[0],))]]) as made:
        made[0].register(function("work"))
        with Peer(made[0]) as peer:
            peer.shake()
            assert isinstance(peer.join("127.0.0.1:9"), Welcome)
            refused = 0
            for number in range(20):
                peer.send(Define(number + 1, f"t{number}", SPEC, None, {}))
                sets = (WireSet("x", (WireItem("a", 0, 0, 0, 4),)),)
                peer.send(Run(number, number + 1, sets, (), 5.0), b"data")
                peer.send(Ping(number + 1))
                while True:
                    answer = peer.read()
                    if isinstance(answer, Failed):
                        refused += "tenants" in str(from_record(answer.error))
                        assert answer.refused
                    if isinstance(answer, Pong):
                        break
        assert refused >= 15
        assert len(made[0]._spaces.tenants()) <= 5
        made[0].register(function("work"), tenant="own")  # this node itself may
        assert made[0].invoke("work", x=b"a", tenant="own")["y"] is not None


# --- the end --------------------------------------------------------------------------------------


def lone() -> tuple[Node, Cluster]:
    address = free_addresses(1)[0]
    made = Cluster(ClusterSettings(address, SECRET, peers=(address,)))
    return Node(settings(), cluster=made), made


def test_a_cluster_is_left_while_the_loop_is_blocked(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("dandelion.cluster.departure.DRAIN_S", 0.1)
    node, made = lone()
    go_on = threading.Event()
    with node:
        entered = threading.Event()

        def block() -> None:
            entered.set()
            go_on.wait(20)

        node._runtime.post(block)
        assert entered.wait(20)
        made.close()
        go_on.set()
    assert "does not go on" in caplog.text
    again, _ = lone()
    with again:
        pass
    names = [thread.name for thread in threading.enumerate()]
    assert not [name for name in names if name.startswith(("dandelion-log", "dandelion-cata"))]


@pytest.mark.parametrize("fails", ["LogParts.driver", "Door", "RemoteEngines"])
def test_a_cluster_whose_start_failed_is_left(fails: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(*given: object, **named: object) -> None:
        raise OSError("it cannot be started")

    node, made = lone()
    address = made.name
    monkeypatch.setattr(f"dandelion.cluster.cluster.{fails}", failing)
    with pytest.raises(OSError, match="cannot be started"):
        node.start()
    node.close()
    monkeypatch.undo()
    again = Cluster(ClusterSettings(address, SECRET, peers=(address,)))  # the address is free
    with Node(settings(), cluster=again) as node:
        node.register(function("f", code="null"))
