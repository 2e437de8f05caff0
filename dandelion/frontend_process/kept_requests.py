"""The node's answers to what a frontend asks about asynchronous invocations.

Each request is a task on the node's loop until it is answered or cancelled; a frontend may have as
many as it has connections, and the node limits those of a tenant that wait.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from functools import partial
from typing import Any, TypeAlias

import msgspec

from dandelion.data import ItemSet
from dandelion.errors import DandelionError, InternalError
from dandelion.frontend_process.messages import (
    Answered,
    AskKept,
    CancelKept,
    Failed,
    FetchKept,
    Keep,
    ListKept,
)
from dandelion.frontend_process.wire import Blob
from dandelion.node import Node

log = logging.getLogger("dandelion.frontend")

SendResult: TypeAlias = Callable[[int, str, Mapping[str, ItemSet | None]], None]
"""Sends the outputs of an invocation: number, id, sets."""


class KeptRequests:
    """Answers the requests of one frontend. For the loop's thread alone.

    Args:
        node: that is asked.
        post: sends an answer.
        send_result: sends a result.
    """

    def __init__(
        self,
        node: Node,
        post: Callable[[Answered | Failed], None],
        send_result: SendResult,
    ) -> None:
        self._kept = node.kept
        self._post = post
        self._send_result = send_result
        self._tasks: dict[int, asyncio.Task[None]] = {}

    def keep(self, message: Keep, sets: Mapping[str, ItemSet | None]) -> None:
        """Accept an invocation."""
        submit = partial(self._kept.submit, message.request, sets, tenant=message.tenant)
        self._task(message.number, self._answer(message.number, submit))

    def ask(self, message: AskKept) -> None:
        """Answer a query."""
        query, tenant = message.query, message.tenant
        ask: Callable[[], Awaitable[object]]
        if isinstance(query, CancelKept):
            ask = partial(self._kept.cancel, query.id, tenant=tenant)
        elif isinstance(query, ListKept):
            ask = partial(
                self._kept.list,
                tenant=tenant, state=query.state, after=query.after, limit=query.limit,
            )  # fmt: skip
        else:
            ask = partial(
                self._kept.watch, query.id,
                tenant=tenant, after=query.after, wait_s=query.wait_s, end=query.end,
            )  # fmt: skip
        self._task(message.number, self._answer(message.number, ask))

    def fetch(self, message: FetchKept) -> None:
        """Send a result."""
        self._task(message.number, self._fetch(message))

    def cancel(self, number: int) -> None:
        """End a request whose answer is not read any more."""
        task = self._tasks.get(number)
        if task is not None:
            task.cancel()

    def close(self) -> None:
        """End all requests."""
        for task in self._tasks.values():
            task.cancel()

    async def _answer(self, number: int, ask: Callable[[], Awaitable[object]]) -> None:
        """Answer a request; `ask` is not called if the request is ended first."""
        try:
            encoded = msgspec.msgpack.encode(await ask())
        except DandelionError as error:
            self._post(Failed(number, error.invocation, error.record()))
        else:
            self._post(Answered(number, Blob(encoded)))

    async def _fetch(self, message: FetchKept) -> None:
        try:
            outcome = await self._kept.result(message.id, tenant=message.tenant)
        except DandelionError as error:
            self._post(Failed(message.number, error.invocation, error.record()))
        else:
            self._send_result(message.number, outcome.id, outcome.sets)

    def _task(self, number: int, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks[number] = task
        task.add_done_callback(lambda task: self._over(number, task))

    def _over(self, number: int, task: asyncio.Task[None]) -> None:
        del self._tasks[number]
        error = None if task.cancelled() else task.exception()
        if error is not None:
            log.error("a frontend's request failed", exc_info=error)
            failure = InternalError(f"{type(error).__name__}: {error}")
            self._post(Failed(number, "", failure.record()))
