"""The node's answers to one frontend that take long, so each is a task of its own.

Queries run in threads. Results are sent by a task if they have many items, or large data outside of
the arena, which is copied there.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Mapping
from functools import partial
from typing import Any, TypeAlias

from dandelion.data import Item, ItemSet
from dandelion.errors import DandelionError
from dandelion.executors import to_dandelion_error
from dandelion.frontend_process.link import BadMessage
from dandelion.frontend_process.messages import Answered, Ask, Ended, Failed, Part
from dandelion.frontend_process.queries import Queries, View
from dandelion.frontend_process.status import StatusWriter
from dandelion.frontend_process.wire import INLINE_BYTES, PART_ITEMS, Blob, WireSet
from dandelion.frontend_process.wired_sets import arena_item, names_places, wired
from dandelion.node import Node

log = logging.getLogger("dandelion.frontend")

_LOOP_BYTES = 64 * 1024
"""Copying more to the arena is left to a thread."""

Post: TypeAlias = Callable[[Answered | Ended | Failed | Part], None]
Hold: TypeAlias = Callable[[int, object], None]
"""Keeps memory until the frontend returns its number."""


class LongAnswers:
    """Answers in tasks. For the loop's thread alone.

    Args:
        node: that is asked.
        status: brought up to date before a change of the catalogue is answered.
        post: sends a message.
        hold: keeps what an answer names by its place.
        invalid: called with the reason when the frontend named memory that is not its own.
    """

    def __init__(
        self,
        node: Node,
        status: StatusWriter,
        post: Post,
        hold: Hold,
        invalid: Callable[[str], None],
    ) -> None:
        self._node = node
        self._queries = Queries(node)
        self._status = status
        self._post = post
        self._hold = hold
        self._invalid = invalid
        self._tasks: set[asyncio.Task[None]] = set()

    def send(self, number: int, id_: str, outputs: Mapping[str, ItemSet | None]) -> None:
        """Send the result of an invocation in parts."""
        self._task(self._send(number, id_, outputs))

    def ask(self, message: Ask, leased: View) -> None:
        """Answer a query.

        Args:
            message: has it.
            leased: views a part of one of the frontend's leases.
        """
        self._task(self._answer(message, leased))

    def close(self) -> None:
        """End all tasks."""
        for task in self._tasks:
            task.cancel()

    async def _send(self, number: int, id_: str, outputs: Mapping[str, ItemSet | None]) -> None:
        try:
            placed = {
                name: None if one is None else await self._placed(one)
                for name, one in outputs.items()
            }
            await self._send_placed(number, id_, placed)
        except DandelionError as error:
            self._post(Failed(number, id_, error.record()))

    async def _send_placed(self, number: int, id_: str, sets: Mapping[str, ItemSet | None]) -> None:
        heads = []
        for name, one in sets.items():
            if one is None:
                heads.append(WireSet(name))
                continue
            for start in range(0, len(one.items), PART_ITEMS):
                piece = ItemSet(name, one.items[start : start + PART_ITEMS])
                named = wired({name: piece}, partial(arena_item, self._node.arena))
                assert named is not None, "it is short, and placed"
                if names_places(named):
                    self._hold(number, sets)
                self._post(Part(number, named[0]))
                await asyncio.sleep(0)
            heads.append(WireSet(name, (), one.dtype, one.shape, one.form))
        self._post(Ended(number, id_, tuple(heads)))

    async def _placed(self, one: ItemSet) -> ItemSet:
        """Give a set of which all data that is not small lies in the arena."""
        items = []
        for item in one.items:
            size = item.size_bytes
            if size > INLINE_BYTES and self._node.arena.locate(item.data) is None:
                context = self._node.acquire_to_fill(size)
                if size > _LOOP_BYTES:
                    data = await asyncio.to_thread(context.write, 0, item.data)
                else:
                    data = context.write(0, item.data)
                item = Item(item.name, item.key, data, item.dtype, item.shape)
            items.append(item)
        return ItemSet(one.name, tuple(items), one.dtype, one.shape, one.form)

    async def _answer(self, message: Ask, leased: View) -> None:
        number = message.number
        try:
            query = self._queries.bound(message.query, leased)
            answer, context = await asyncio.to_thread(query)
        except DandelionError as error:
            self._post(Failed(number, error.invocation, error.record()))
            return
        except BadMessage:
            raise
        except Exception as error:  # a bug; its client is answered, and does not wait for ever
            log.exception("a query of a frontend failed")
            self._post(Failed(number, "", to_dandelion_error(error).record()))
            return
        self._status.update()  # before the client can know that the catalogue has changed
        if context is not None:
            self._hold(number, context)
            answer = Blob(None, context.offset_bytes, context.size_bytes)
        self._post(Answered(number, answer))

    def _task(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._over)

    def _over(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if isinstance(error, BadMessage):
            self._invalid(str(error))
        elif error is not None:
            log.error("a frontend's request failed", exc_info=error)
