"""The scheduler's turns on the node's loop are short, whatever it works on."""

from __future__ import annotations

import asyncio

import pytest

from dandelion.data import Item, ItemSet
from dandelion.documents import CodeDocument, FunctionDocument, RegistrationDocument
from dandelion.node import Node, Settings, runtime

COUNT = 4096
TEXT = "composition Each(s) => (t) { F(x = each s) => (t = y); }"


async def iterations_during_calls() -> int:
    """Count iterations of the loop while an engine answers many calls at once."""
    null = FunctionDocument("F", ("x",), ("y",), code=(CodeDocument("null"),))
    counted, ended = 0, False

    async def count() -> None:
        nonlocal counted
        while not ended:
            await asyncio.sleep(0)
            counted += 1

    async with Node(Settings(backends=("null",), arena_bytes=1 << 20)) as node:
        document = RegistrationDocument(functions=(null,), compositions=(TEXT,))
        await asyncio.to_thread(node.register, document)
        counting = asyncio.create_task(count())
        items = tuple(Item(str(number), data=b"x") for number in range(COUNT))
        result = await node.invoke_sets_async("Each", {"s": ItemSet("s", items)})
        ended = True
        await counting
        assert len(result.sets["t"] or ()) == COUNT
    return counted


def test_calls_that_answer_at_once_leave_the_loop_to_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(runtime, "TURN_NS", 0)  # a turn ends when it looks at the clock
    assert asyncio.run(iterations_during_calls()) >= COUNT / (4 * runtime.LOOK_EVERY)
