"""Handshake, frames and regions, without a network."""

from __future__ import annotations

import asyncio
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dandelion.cluster import frames
from dandelion.cluster.ballots import Accept, Command, encode_ballot
from dandelion.cluster.call_messages import Define, RegionSize, Run, WireItem, WireSet
from dandelion.cluster.frames import Frames
from dandelion.cluster.handshake import BadPeer, Handshake, check_secret
from dandelion.cluster.messages import (
    CONTROL_LIMIT_BYTES,
    DATA_LIMIT_BYTES,
    Ballot,
    Join,
    Message,
    Piece,
    Ping,
    Pull,
    encode,
)
from dandelion.cluster.regions import Regions
from dandelion.cluster.settings import ClusterSettings, parsed_address
from dandelion.errors import InvalidInput
from dandelion.function import FunctionSpec, digest_of

SECRET = b"sixteen bytes or more"


def shake(opener: Handshake, acceptor: Handshake) -> None:
    hello = opener.begin()
    answer = acceptor.received(hello)
    proof = opener.received(answer)
    opener.received(acceptor.received(proof))


def test_two_that_know_the_secret_agree() -> None:
    opener, acceptor = Handshake(SECRET, True), Handshake(SECRET, False)
    shake(opener, acceptor)
    assert (opener.wanted, acceptor.wanted) == (0, 0)


def test_who_does_not_know_it_is_refused_on_either_side() -> None:
    with pytest.raises(BadPeer, match="secret"):
        shake(Handshake(b"another secret!!", True), Handshake(SECRET, False))
    opener = Handshake(SECRET, True)
    false = Handshake(b"another secret!!", False)
    opener.received(false.received(opener.begin()))
    with pytest.raises(BadPeer, match="secret"):
        opener.received(bytes(32))


def test_what_was_sent_cannot_be_sent_back() -> None:
    opener = Handshake(SECRET, True)
    with pytest.raises(BadPeer, match="nonce"):
        opener.received(opener.begin())
    opener, acceptor = Handshake(SECRET, True), Handshake(SECRET, False)
    proof = opener.received(acceptor.received(opener.begin()))
    with pytest.raises(BadPeer, match="secret"):
        opener.received(proof)  # the acceptor's proof has another label
    again = Handshake(SECRET, False)
    again.received(Handshake(SECRET, True).begin())
    with pytest.raises(BadPeer, match="secret"):
        again.received(proof)  # and the nonces are others each time


def test_other_protocols_and_short_secrets_are_refused() -> None:
    with pytest.raises(BadPeer, match="version"):
        Handshake(SECRET, False).received(b"GET / HTTP/1.1\r\n".ljust(37))
    with pytest.raises(InvalidInput):
        check_secret(b"too short")


class Wire(asyncio.Transport):
    """Takes what is written, and gives it to the other end in parts of random sizes."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.random = random.Random(seed)
        self.waiting = b""
        self.aborted = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.waiting += bytes(data)

    def abort(self) -> None:
        self.aborted = True

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def get_write_buffer_size(self) -> int:
        return 0

    def deliver(self, end: Frames) -> None:
        while self.waiting:
            buffer = end.get_buffer(-1)
            size = min(len(self.waiting), buffer.nbytes, self.random.randrange(1, 5000))
            buffer[:size] = self.waiting[:size]
            self.waiting = self.waiting[size:]
            end.buffer_updated(size)


def connected(seed: int = 0) -> tuple[Frames, Wire, Frames, Wire]:
    """Two ends that have proved their membership, and what each of them writes to."""
    opener, acceptor = Frames(SECRET, True), Frames(SECRET, False)
    out, back = Wire(seed), Wire(seed + 1)
    acceptor.connection_made(back)
    opener.connection_made(out)
    for _ in range(3):
        out.deliver(acceptor)
        back.deliver(opener)
    assert opener.is_open
    assert acceptor.is_open
    return opener, out, acceptor, back


@pytest.mark.parametrize("seed", range(10))
def test_frames_arrive_as_they_were_sent(seed: int) -> None:
    opener, out, acceptor, _ = connected(seed)
    dice = random.Random(seed)
    target = memoryview(bytearray(DATA_LIMIT_BYTES))
    got: list[tuple[Message, bytes]] = []
    acceptor.sink = lambda message, size: target[:size]
    acceptor.received = lambda m, data: got.append((m, b"" if data is None else bytes(data)))
    sent: list[tuple[Message, bytes]] = []
    for number in range(20):
        size = dice.choice([0, 1, 100, 5000, 70_000, DATA_LIMIT_BYTES])
        data = dice.randbytes(size)
        half = size // 2
        opener.send(Piece(number, 7), [data[:half], memoryview(data)[half:]] if size else None)
        sent.append((Piece(number, 7), data))
        out.deliver(acceptor)
    assert got == sent
    assert acceptor.received_bytes > sum(len(data) for _, data in sent)


@pytest.mark.parametrize(
    "broken",
    [
        b"\xff" * 64,
        (1 << 30).to_bytes(4, "little") + bytes(4),
        (1).to_bytes(4, "little") + (1 << 30).to_bytes(4, "little"),
        (4).to_bytes(4, "little") + bytes(4) + b"\xc1\xc1\xc1\xc1",
        len(encode(Ping(1))).to_bytes(4, "little") + bytes(4) + encode(Ping(1))[:-1] + b"\xff",
    ],
)
def test_a_peer_that_breaks_the_rules_loses_its_connection_only(broken: bytes) -> None:
    _, out, acceptor, back = connected()
    reasons: list[str] = []
    acceptor.lost = reasons.append
    out.waiting += broken
    out.deliver(acceptor)
    assert back.aborted
    acceptor.connection_lost(None)
    assert reasons
    assert reasons[0]


SAMPLES: list[Message] = [
    Ping(1),
    Join(1, "a:1", 1, "b:1", 1, False, ("a:1",)),
    Run(1, 1, (WireSet("x", (WireItem("a", 0, 5, 0, 4, "float32", (1,)),)),), (), 5.0),
    Define(1, "t", FunctionSpec("work", version=9), None, {digest_of(b""): 5}),
    Ballot(encode_ballot(Accept(1, (1, "a"), Command("i", "register", b"content", {"a": 1})))),
    Pull(1, 1, 0, 10),
]


@settings(max_examples=300, deadline=None)
@given(
    st.sampled_from(SAMPLES),
    st.integers(0, 5000),
    st.lists(st.tuples(st.integers(0, 300), st.integers(0, 4), st.binary(max_size=9)), max_size=6),
    st.integers(0, 1000),
)
def test_changed_frames_end_a_connection_or_are_messages(
    message: Message, size: int, changes: list[tuple[int, int, bytes]], seed: int
) -> None:
    """Nothing else happens: no exception is a bug that the connection has to survive."""
    _, out, acceptor, back = connected(seed)
    acceptor.received = lambda message, data: None
    body = bytearray(encode(message))
    data = len(body).to_bytes(4, "little") + size.to_bytes(4, "little") + body + bytes(size)
    changed = bytearray(data)
    for at, count, put in changes:
        changed[at % len(changed) : at % len(changed) + count] = put or b"\xc1"
    out.waiting = bytes(changed)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(frames.log, "exception", pytest.fail)
        while out.waiting and not back.aborted:
            out.deliver(acceptor)
    assert len(acceptor._buffer) <= CONTROL_LIMIT_BYTES + 8


def test_a_bug_in_a_receiver_ends_one_connection_only() -> None:
    opener, out, acceptor, back = connected()

    def bug(message: Message, data: memoryview | None) -> None:
        raise KeyError("a bug")

    acceptor.received = bug
    opener.send(Ping(1))
    out.deliver(acceptor)
    assert back.aborted


def test_parts_of_regions() -> None:
    regions = Regions(100)
    made = regions.hold([b"abc", b"", memoryview(b"defgh")])
    assert made == RegionSize(1, 8)
    parts = regions.part(1, 1, 6)
    assert parts is not None
    assert b"".join(bytes(p) for p in parts) == b"bcdefg"
    assert regions.part(1, 3, 6) is None
    assert regions.part(2, 0, 1) is None
    assert regions.whole(1) is None
    regions.released([1], copied=False)
    assert len(regions) == 0


def test_equal_memory_is_one_region_until_the_last_call_has_ended() -> None:
    regions = Regions(100)
    data = bytes(50)
    first, second = regions.export(data), regions.export(memoryview(data))
    assert first == second
    assert regions.withdraw([first.region]) == []
    assert regions.withdraw([first.region]) == [first.region]
    assert len(regions) == 0


def test_originals_of_copies_are_dropped_when_they_are_too_many() -> None:
    regions = Regions(100)
    numbers = [regions.export(bytes([n]) * 40).region for n in range(3)]
    for number in numbers[:2]:
        regions.released([number], copied=True)
    assert regions.whole(numbers[0]) is not None  # it was used last
    regions.released([numbers[2]], copied=True)
    assert [regions.whole(number) is None for number in numbers] == [False, True, False]


def test_messages_are_checked() -> None:
    for text in ("", "host", "host:", "host:70000", "a b:1", "[::1:1"):
        with pytest.raises(InvalidInput):
            parsed_address("peers", text)
    assert parsed_address("peers", "[::1]:80") == ("::1", 80)
    with pytest.raises(InvalidInput, match="port"):
        ClusterSettings("127.0.0.1:0", SECRET, peers=("127.0.0.1:0",))
    with pytest.raises(InvalidInput, match="TLS"):
        ClusterSettings("127.0.0.1:0", SECRET, tls_cert="a.pem")
