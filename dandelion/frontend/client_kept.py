"""How handles of asynchronous invocations reach a node over HTTP, for both clients."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from dandelion.asynchronous.handle import AsyncKeptAccess, KeptAccess
from dandelion.asynchronous.records import KeptView, Watched
from dandelion.data import Sets
from dandelion.errors import DandelionError
from dandelion.frontend import client_protocol
from dandelion.frontend.client_requests import Steps
from dandelion.frontend.outage import Outage
from dandelion.frontend.wait_places import AsyncWaitPlaces, WaitPlaces


class ClientKept(KeptAccess):
    """How a blocking handle reaches the node.

    Args:
        run: carries out requests.
        places: of all handles of the client.
        outage: whether the node answers.
    """

    def __init__(
        self, run: Callable[[Steps[Any]], Any], places: WaitPlaces, outage: Outage
    ) -> None:
        self._run = run
        self._places = places
        self._outage = outage

    def watch(self, id_: str, after: str, wait_s: float, *, end: bool) -> Watched:
        with self._places.taken(wait_s) as wait_s, self._outage.noted(wait_s) as wait_s:
            watched: Watched = self._run(client_protocol.watch(id_, after, wait_s, end=end))
        return watched

    def result(self, id_: str, wait_s: float) -> Sets:
        with self._places.taken(wait_s) as wait_s, self._outage.noted(wait_s) as wait_s:
            sets: Sets = self._run(client_protocol.kept_result(id_, wait_s))
        return sets

    def cancel(self, id_: str) -> KeptView:
        view: KeptView = self._run(client_protocol.cancel_kept(id_))
        return view

    def pause_s(self, error: DandelionError) -> float | None:
        return self._outage.pause_s(error)


class AsyncClientKept(AsyncKeptAccess):
    """How an awaited handle reaches the node.

    Args:
        run: carries out requests.
        places: of all handles of the client.
        outage: whether the node answers.
    """

    def __init__(
        self, run: Callable[[Steps[Any]], Awaitable[Any]], places: AsyncWaitPlaces, outage: Outage
    ) -> None:
        self._run = run
        self._places = places
        self._outage = outage

    async def watch(self, id_: str, after: str, wait_s: float, *, end: bool) -> Watched:
        async with self._places.taken(wait_s) as wait_s:
            with self._outage.noted(wait_s) as wait_s:
                steps = client_protocol.watch(id_, after, wait_s, end=end)
                watched: Watched = await self._run(steps)
        return watched

    async def result(self, id_: str, wait_s: float) -> Sets:
        async with self._places.taken(wait_s) as wait_s:
            with self._outage.noted(wait_s) as wait_s:
                sets: Sets = await self._run(client_protocol.kept_result(id_, wait_s))
        return sets

    async def cancel(self, id_: str) -> KeptView:
        view: KeptView = await self._run(client_protocol.cancel_kept(id_))
        return view

    def pause_s(self, error: DandelionError) -> float | None:
        return self._outage.pause_s(error)
