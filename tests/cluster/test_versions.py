"""Nodes of different versions refuse each other, and nothing is taken for what it is not."""

from __future__ import annotations

import asyncio
import enum
import hashlib
from typing import Any

import msgspec
import pytest
from msgspec import inspect

from dandelion.asynchronous.failures import KeyReused
from dandelion.cluster.ballots import BallotMessage
from dandelion.cluster.handshake import BadPeer
from dandelion.cluster.kept_messages import (
    FindKey,
    KeptAnswer,
    KeptQuestion,
    Keyed,
    Life,
    Refusal,
    Wanted,
    Written,
    decode_answer,
    encode_kept,
)
from dandelion.cluster.messages import VERSION, Join, Message, Refuse
from dandelion.errors import CatalogUnavailable
from tests.cluster.clusters import function, nodes, scripted
from tests.cluster.keepers import VOTERS, PlayedNode, put
from tests.cluster.test_hostile import Peer

SHAPES = {
    3: "24191658f98e8071",
    4: "2f1393d979835d18",
}
"""A digest of the shapes of all messages, for each version; earlier lines do not change."""
FIRST = "c3877241c7a63e02"
"""The same of what is read before the version is known."""


class Color(enum.Enum):
    RED = "red"


class Inner(msgspec.Struct):
    color: Color


class More(msgspec.Struct):
    color: Color
    size: int = 0


def shape(info: Any, seen: set[type]) -> list[object]:
    """Describe a type: everything that decides how it is written."""
    found: list[object] = [type(info).__name__]
    if isinstance(info, inspect.StructType):
        found += [info.cls.__name__, info.tag, info.array_like]
        if info.cls not in seen:
            seen.add(info.cls)
            for one in info.fields:
                found.append([one.encode_name, one.required, shape(one.type, seen)])
    elif isinstance(info, inspect.EnumType):
        members: Any = info.cls
        found += [member.value for member in members]
    elif isinstance(info, inspect.LiteralType):
        found += sorted(map(str, info.values))
    else:
        for name in ("types", "item_types"):
            found += [shape(one, seen) for one in getattr(info, name, ())]
        for name in ("item_type", "key_type", "value_type", "type"):
            if hasattr(info, name):
                found.append(shape(getattr(info, name), seen))
    return found


def digest(*kinds: Any) -> str:
    seen: set[type] = set()
    shapes = [shape(inspect.type_info(kind), seen) for kind in kinds]
    return hashlib.sha256(repr(shapes).encode()).hexdigest()[:16]


def test_messages_change_with_the_version_only() -> None:
    """If this fails, a message or a record in it was changed: raise `messages.VERSION`.

    Then add a line to `SHAPES`.
    """
    assert SHAPES.get(VERSION) == digest(Message, BallotMessage, KeptQuestion, KeptAnswer)
    assert max(SHAPES) == VERSION


def test_the_first_messages_never_change() -> None:
    assert digest(Join, Refuse) == FIRST


def test_the_digest_sees_what_is_written() -> None:
    def of(kind: Any) -> str:
        return digest(msgspec.defstruct("Outer", [("inner", dict[str, tuple[kind, ...]])]))

    assert of(Inner) == of(Inner) != of(More)
    assert digest(Color) != digest(str)


@pytest.mark.parametrize("version", [VERSION - 1, VERSION + 1])
def test_a_node_of_another_version_is_told_why_it_is_refused(version: int) -> None:
    with nodes([[scripted(lambda engine, call: (call.inputs[0],))]]) as (node,):
        node.register(function("work"))
        with Peer(node) as peer:
            peer.shake()
            refused = peer.join(version=version)
            assert isinstance(refused, Refuse)
            assert f"version {VERSION}" in refused.reason
            assert f"not {version}" in refused.reason
        assert node.invoke("work", x=b"a")["y"] is not None


def test_an_answer_of_another_kind_is_none() -> None:
    """As `Written`, an answer of which nothing is known would say that all is stored."""
    for answer in (Wanted(), Refusal("the disk is full"), Life("x")):
        with pytest.raises(BadPeer):
            decode_answer(encode_kept(answer), Written)
    for content in (b"", b"\x80", msgspec.msgpack.encode({"id": "", "digest": ""})):
        with pytest.raises(BadPeer):  # version 2 wrote answers without a tag
            decode_answer(content, Keyed)
    assert decode_answer(encode_kept(Keyed("x")), Keyed) == Keyed("x")


def test_a_question_of_another_version_is_refused_with_words() -> None:
    async def run() -> None:
        node = PlayedNode("a:1")
        for question in ({"type": "keys", "tenant": "t"}, {"type": "key", "key": "k"}, "key"):
            answer = await node.answer("b:1", msgspec.msgpack.encode(question), b"")
            with pytest.raises(BadPeer, match="cannot be read"):
                decode_answer(answer.content, Keyed)
        await node.close()

    asyncio.run(run())


class _Older(PlayedNode):
    """A node that does not know `FindKey`."""

    async def answer(self, peer: str, content: bytes, data: Any) -> Any:
        if msgspec.msgpack.decode(content).get("type") == "key":
            content = msgspec.msgpack.encode({"type": "unknown"})
        return await super().answer(peer, content, data)


def test_a_key_is_unknown_only_if_enough_voters_say_so() -> None:
    """Else an invocation would be begun twice while nodes are lost or have other versions."""

    async def run() -> None:
        asker, a, b, c = (
            PlayedNode("d:1"),
            PlayedNode("a:1"),
            PlayedNode("b:1"),
            _Older("c:1"),
        )
        asker.link(b, c)
        find = asker.elsewhere.earlier
        with pytest.raises(CatalogUnavailable, match="idempotency key"):
            await find("t", "key", "digest")
        asker.link(a)
        assert await find("t", "key", "digest") is None
        a.link(b, c)
        await a.write(put(1, key="key"))
        while not b.ids:
            await asyncio.sleep(0)
        assert await find("t", "key", "") == a.ids[0]
        with pytest.raises(KeyReused):
            await find("t", "key", "other")
        assert await find("other", "key", "") is None
        late = PlayedNode(VOTERS[2])  # a voter that was started again has no copies yet
        with pytest.raises(CatalogUnavailable):
            await late.elsewhere.earlier("t", "key", "")
        late.link(b)
        assert await late.elsewhere.earlier("t", "key", "") == a.ids[0]
        for node in (asker, a, b, c, late):
            await node.close()

    asyncio.run(run())


def test_the_only_voter_asks_no_other_node() -> None:
    async def run() -> None:
        alone = PlayedNode("a:1", voters=("a:1",))
        assert await alone.elsewhere.earlier("t", "key", "") is None
        answer = await alone.answer("b:1", encode_kept(FindKey("t", "key")), b"")
        assert decode_answer(answer.content, Keyed) == Keyed()
        await alone.close()

    asyncio.run(run())
