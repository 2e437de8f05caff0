"""Links between a node and its frontends: frames, references to memory, invalid messages."""

from __future__ import annotations

import asyncio
import os
import socket
import struct
from collections.abc import Awaitable, Callable, Iterator

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dandelion.documents import CodeDocument, FunctionDocument
from dandelion.errors import InvalidInput
from dandelion.frontend_process import status
from dandelion.frontend_process.leases import SLAB_BYTES, Leases, Slabs
from dandelion.frontend_process.link import FRAME_LIMIT_BYTES, Link
from dandelion.frontend_process.messages import (
    Answered,
    Ask,
    AskKept,
    Cancel,
    Ended,
    Failed,
    FetchKept,
    FromFrontend,
    FromNode,
    Keep,
    Lease,
    Leased,
    LinesDropped,
    Part,
    Ready,
    Release,
    Submit,
    from_frontend,
    from_node,
)
from dandelion.frontend_process.node_link import NodeLink
from dandelion.frontend_process.query_messages import GetTrace
from dandelion.frontend_process.status import StatusReader, StatusWriter
from dandelion.frontend_process.wire import (
    INLINE_BYTES,
    PART_ITEMS,
    Blob,
    WireItem,
    WireSet,
    joined,
)
from dandelion.memory import ArenaMap, SharedDomain
from dandelion.node import Node, Settings

LIMIT_S = 20.0


class Peer:
    """Both ends of a link: one is read and written by the test as plain bytes."""

    def __init__(self) -> None:
        ours, theirs = socket.socketpair()
        self.socket = theirs
        self.socket.setblocking(False)
        self.got: list[FromFrontend] = []
        self.lost: list[str] = []
        loop = asyncio.get_running_loop()
        self.link = Link(loop, ours, from_frontend, self.got.extend, self.lost.append)

    async def send(self, data: bytes) -> None:
        await asyncio.get_running_loop().sock_sendall(self.socket, data)

    async def until(self, condition: Callable[[], object]) -> None:
        async with asyncio.timeout(LIMIT_S):
            while not condition():
                await asyncio.sleep(0.001)

    def close(self) -> None:
        self.link.close()
        self.socket.close()


def frame(*messages: msgspec.Struct) -> bytes:
    body = msgspec.msgpack.encode(messages)
    return struct.pack("<I", len(body)) + body


def sent_frame(*messages: msgspec.Struct) -> bytes:
    """As a link writes it: the length of the list has four bytes, however short it is."""
    parts = b"".join(msgspec.msgpack.encode(message) for message in messages)
    body = b"\xdd" + struct.pack(">I", len(messages)) + parts
    return struct.pack("<I", len(body)) + body


def run(test: Callable[[Peer], Awaitable[None]]) -> None:
    async def main() -> None:
        peer = Peer()
        try:
            await test(peer)
        finally:
            peer.close()

    asyncio.run(main())


# --- frames -------------------------------------------------------------------------------------


@settings(deadline=None, max_examples=40)
@given(
    sizes=st.lists(st.integers(0, 600_000), min_size=1, max_size=5),
    cuts=st.lists(st.integers(1, 300_000), max_size=6),
)
def test_messages_arrive_whole_however_they_are_cut(sizes: list[int], cuts: list[int]) -> None:
    sent = [Part(n, WireSet("s", (WireItem("i", 0, bytes(size)),))) for n, size in enumerate(sizes)]
    data = b"".join(frame(message, Cancel(n)) for n, message in enumerate(sent))

    async def test(peer: Peer) -> None:
        start = 0
        for cut in [*cuts, len(data)]:
            await peer.send(data[start : start + cut])
            await asyncio.sleep(0)
            start += cut
        await peer.until(lambda: len(peer.got) == 2 * len(sizes))
        assert peer.got[::2] == sent
        assert not peer.lost

    run(test)


def test_what_is_posted_in_one_turn_is_one_frame() -> None:
    async def test(peer: Peer) -> None:
        messages = [Release((n,)) for n in range(5)]
        for message in messages:
            peer.link.post(message)
        await asyncio.sleep(0.01)
        data = peer.socket.recv(100_000)
        assert data == sent_frame(*messages)

    run(test)


def test_a_message_that_cannot_be_sent_takes_no_other_with_it() -> None:
    async def test(peer: Peer) -> None:
        peer.link.post(Release((1,)))
        for number in (1 << 64, -(1 << 63) - 1):
            with pytest.raises(InvalidInput, match="cannot be sent"):
                peer.link.post(Release((2, number)))
        peer.link.post(Release((3,)))
        await asyncio.sleep(0.01)
        assert peer.socket.recv(100_000) == sent_frame(Release((1,)), Release((3,)))
        with pytest.raises(InvalidInput):
            peer.link.post(Release((1 << 64,)))
        await asyncio.sleep(0.01)
        peer.link.post(Release((4,)))
        await asyncio.sleep(0.01)
        assert peer.socket.recv(100_000) == sent_frame(Release((4,))), "nothing was sent before"

    run(test)


def test_many_messages_of_one_turn_leave_in_several_frames() -> None:
    async def test(peer: Peer) -> None:
        messages = [Release((n,)) for n in range(1025)]
        for message in messages:
            peer.link.post(message)
        await asyncio.sleep(0.01)
        frames = (messages[:512], messages[512:1024], messages[1024:])
        assert peer.socket.recv(100_000) == b"".join(sent_frame(*some) for some in frames)

    run(test)


def test_a_peer_that_does_not_read_gets_everything_later() -> None:
    async def test(peer: Peer) -> None:
        sent = [Part(n, WireSet("s", (WireItem("i", n, bytes(100_000)),))) for n in range(50)]
        for message in sent:
            peer.link.post(message)
            await asyncio.sleep(0)
        expected = b"".join(sent_frame(message) for message in sent)
        got = b""
        while len(got) < len(expected):
            got += await asyncio.get_running_loop().sock_recv(peer.socket, 1 << 20)
        assert got == expected

    run(test)


@pytest.mark.parametrize(
    "data",
    [
        struct.pack("<I", FRAME_LIMIT_BYTES + 1),
        frame(Ended(1, "not for a node", ())),
        struct.pack("<I", 3) + b"\xff\xff\xff",
        struct.pack("<I", 2) + b"\x91\x01",
        b"",
    ],
)
def test_what_cannot_be_read_is_the_end(data: bytes) -> None:
    async def test(peer: Peer) -> None:
        await peer.send(data)
        if not data:
            peer.socket.close()
        await peer.until(lambda: peer.lost)
        assert len(peer.lost) == 1
        assert not peer.link.is_open
        peer.link.post(Cancel(1))  # has no effect
        await asyncio.sleep(0)

    run(test)


@given(st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 3)), max_size=6))
def test_parts_are_joined_in_their_order(cuts: list[tuple[str, int]]) -> None:
    parts = []
    expected: dict[str, list[int]] = {"a": [], "b": []}
    for number, (name, count) in enumerate(cuts):
        keys = [10 * number + i for i in range(count)]
        expected[name] += keys
        parts.append(WireSet(name, tuple(WireItem("i", key, b"") for key in keys)))
    last = (WireSet("a", (WireItem("i", 99, b""),), "int8", (-1,)), WireSet("b"))
    whole = joined(parts, last)
    assert [(one.name, one.dtype, one.shape) for one in whole] == [
        ("a", "int8", (-1,)),
        ("b", None, None),
    ]
    assert [[item.key for item in one.items] for one in whole] == [
        [*expected["a"], 99],
        expected["b"],
    ]


# --- the node's end -----------------------------------------------------------------------------


class Frontend:
    """A frontend that a test plays, and the node's end of its link."""

    def __init__(self, node: Node) -> None:
        ours, theirs = socket.socketpair()
        self.lost: list[str] = []
        self.status = StatusWriter(node)
        self.node_link = NodeLink(node, self.status, ours, lambda: None, self.lost.append)
        self.answers: asyncio.Queue[FromNode] = asyncio.Queue()
        loop = asyncio.get_running_loop()
        self.link = Link(loop, theirs, from_node, self._received, lambda reason: None)

    def _received(self, messages: list[FromNode]) -> None:
        for message in messages:
            self.answers.put_nowait(message)

    async def ask(self, *messages: msgspec.Struct) -> FromNode:
        for message in messages:
            self.link.post(message)
        return await asyncio.wait_for(self.answers.get(), LIMIT_S)

    def close(self) -> None:
        self.link.close()
        self.node_link.close()
        self.node_link.free()


def with_node(test: Callable[[Node, Frontend], Awaitable[None]]) -> None:
    async def main() -> None:
        async with Node(Settings(backends=("null",), arena_bytes=4 << 20)) as node:
            node.register(FunctionDocument("echo", ("a",), ("b",), code=(CodeDocument("null"),)))
            frontend = Frontend(node)
            try:
                await test(node, frontend)
            finally:
                frontend.close()
            assert node.info().arena.contexts == 1  # the status
            del frontend

    asyncio.run(main())


def submit(number: int, item: WireItem, name: str = "echo") -> Submit:
    return Submit(number, name, None, None, 0, (WireSet("a", (item,)),))


def test_a_lease_lives_as_long_as_what_was_made_of_it() -> None:
    async def test(node: Node, frontend: Frontend) -> None:
        lease = await frontend.ask(Lease(1, 100_000))
        assert isinstance(lease, Leased)
        node.arena.view[lease.offset : lease.offset + 100_000] = b"x" * 100_000
        item = WireItem("i", 7, None, None, None, 10, 90_000, 1)
        ended = await frontend.ask(submit(2, item), Release((1,)))
        assert isinstance(ended, Ended)
        ((result,),) = (one.items for one in ended.sets)
        assert (result.name, result.key, result.data) == ("i", 7, None)
        assert (result.offset, result.size) == (lease.offset + 10, 90_000)
        assert node.info().arena.contexts == 2  # the status, and the result
        assert bytes(node.arena.view[result.offset : result.offset + 4]) == b"xxxx"
        ready = await frontend.ask(Release((2,)), Ask(3, GetTrace("none")))
        assert ready == Answered(3, Blob(msgspec.msgpack.encode(None)))
        assert node.info().arena.contexts == 1

    with_node(test)


@pytest.mark.parametrize("large", [0, 1, PART_ITEMS + 2])
def test_a_result_in_parts_stays_until_it_is_returned(large: int) -> None:
    count, size = PART_ITEMS + 2, INLINE_BYTES + 1

    async def test(node: Node, frontend: Frontend) -> None:
        lease = await frontend.ask(Lease(1, size))
        assert isinstance(lease, Leased)
        node.arena.view[lease.offset : lease.offset + size] = b"x" * size
        items = [WireItem("i", key, b"small") for key in range(count)]
        for key in range(count - large, count):
            items[key] = WireItem("i", key, None, None, None, 0, size, 1)
        for item in items[:-1]:
            frontend.link.post(Part(2, WireSet("a", (item,))))
        answer = await frontend.ask(submit(2, items[-1]), Release((1,)))
        found: list[WireItem] = []
        while isinstance(answer, Part):
            found += answer.set.items
            answer = await asyncio.wait_for(frontend.answers.get(), LIMIT_S)
        assert isinstance(answer, Ended)
        assert [item.key for item in found] == list(range(count))
        for item in found[count - large :]:
            assert bytes(node.arena.view[item.offset : item.offset + item.size]) == b"x" * size
        assert node.info().arena.contexts == (2 if large else 1)  # the status, and the result
        assert list(frontend.node_link._kept) == ([2] if large else [])
        await frontend.ask(Release((2,)), Ask(3, GetTrace("none")))
        assert node.info().arena.contexts == 1

    with_node(test)


@pytest.mark.parametrize(
    ("lease", "offset", "size"),
    [(1, 1, 100_000), (1, -1, 10), (1, 0, 100_001), (1, 99_999, -5), (2, 0, 10), (0, 0, 10)],
)
def test_memory_outside_of_a_lease_is_the_end(lease: int, offset: int, size: int) -> None:
    async def test(node: Node, frontend: Frontend) -> None:
        assert isinstance(await frontend.ask(Lease(1, 100_000)), Leased)
        frontend.link.post(submit(5, WireItem("i", 0, None, None, None, offset, size, lease)))
        async with asyncio.timeout(LIMIT_S):
            while not frontend.lost:
                await asyncio.sleep(0.001)
        assert "outside" in frontend.lost[0]

    with_node(test)


def test_errors_come_back_as_records() -> None:
    async def test(node: Node, frontend: Frontend) -> None:
        failed = await frontend.ask(submit(1, WireItem("i", 0, b"x"), "ecko"))
        assert isinstance(failed, Failed)
        assert (failed.number, failed.error.type) == (1, "Unknown")
        assert failed.error.fields["nearest"] == "echo"
        failed = await frontend.ask(Lease(2, 1 << 30))
        assert isinstance(failed, Failed)
        assert (failed.number, failed.error.type) == (2, "ContextFull")
        failed = await frontend.ask(Lease(3, 0))
        assert isinstance(failed, Failed)
        assert failed.error.type == "InvalidInput"

    with_node(test)


def test_the_status_follows_the_catalogue() -> None:
    async def test(node: Node, frontend: Frontend) -> None:
        reader = StatusReader(node.arena, frontend.status.offset_bytes)
        before = reader.generation
        node.register(FunctionDocument("other", ("a",), ("b",), code=(CodeDocument("null"),)))
        await frontend.ask(Ask(1, GetTrace("none")))
        assert reader.generation == node.generation > before
        assert reader.ready() == node.ready()

    with_node(test)


def test_a_node_that_stands_still_is_not_alive(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(node: Node, frontend: Frontend) -> None:
        await asyncio.to_thread(node.wait_ready)
        frontend.status.update()
        reader = StatusReader(node.arena, frontend.status.offset_bytes)
        assert reader.alive()
        assert reader.ready()
        monkeypatch.setattr(status, "STALLED_NS", 0)
        assert not reader.alive()
        assert not reader.ready()

    with_node(test)


def test_handlers_know_every_message() -> None:
    async def test(node: Node, frontend: Frontend) -> None:
        sent = {Ready, Part, Submit, Cancel, Lease, Release, LinesDropped, Ask}
        sent |= {Keep, AskKept, FetchKept}
        assert frontend.node_link._handlers.keys() == sent

    with_node(test)


# --- a frontend's memory ------------------------------------------------------------------------


@pytest.fixture
def arena() -> Iterator[ArenaMap]:
    domain = SharedDomain(1 << 20)
    yield domain.map
    domain.close()


def test_leases_are_found_by_their_bytes(arena: ArenaMap) -> None:
    leases = Leases(arena, lambda size: pytest.fail("nothing is asked for"))
    first = leases.leased(1, 4096, 8192)
    second = leases.leased(2, 16384, 100)
    assert leases.find(first.view[5:10]) == (1, 5)
    assert leases.find(second.view) == (2, 0)
    assert leases.find(arena.view[12288:12300]) is None
    assert leases.find(arena.view[16384:16485]) is None  # it ends after the lease
    assert leases.find(b"elsewhere") is None
    part = first.view[:1]
    del first
    assert leases.gone() == ()
    del part
    assert leases.gone() == (1,)
    assert leases.find(arena.view[4096:4100]) is None
    assert len(leases) == 1
    result = leases.result(3, 0, 4096)
    assert result.readonly
    del result, second
    assert sorted(leases.gone()) == [2, 3]
    assert not leases.has_gone


def test_slabs_are_filled_and_given_back(arena: ArenaMap) -> None:
    requested: list[int] = []
    slabs = Slabs(lambda: requested.append(1))
    leases = Leases(arena, lambda size: pytest.fail("nothing is asked for"))
    assert slabs.place(b"x") is None  # there is none yet
    assert len(requested) == 2
    for number in (1, 2):
        slabs.add(number, leases.leased(number, number * SLAB_BYTES, SLAB_BYTES))
    data = os.urandom(SLAB_BYTES // 4)
    places = [slabs.place(data) for _ in range(5)]
    assert places[:4] == [(1, i * len(data)) for i in range(4)]
    assert places[4] == (2, 0)
    assert len(requested) == 3
    assert bytes(arena.view[2 * SLAB_BYTES : 2 * SLAB_BYTES + len(data)]) == data
    assert leases.gone() == (1,)
    slabs.add(3, None)  # no room
    assert [slabs.place(data) for _ in range(3)] == [(2, i * len(data)) for i in (1, 2, 3)]
    assert slabs.place(b"x") is None
