"""The asynchronous invocations of a node at the other end of a link."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol, TypeVar

import msgspec

from dandelion.asynchronous.records import KeptPage, KeptRequest, KeptState, KeptView, Watched
from dandelion.data import Bytes, ItemSet
from dandelion.frontend.service import ServedResult
from dandelion.frontend_process.messages import (
    AskKept,
    CancelKept,
    FetchKept,
    KeptQuery,
    ListKept,
    WatchKept,
)

_T = TypeVar("_T")
_view = msgspec.msgpack.Decoder(KeptView)
_watched = msgspec.msgpack.Decoder(Watched)
_page = msgspec.msgpack.Decoder(KeptPage)


class KeptLinkEnd(Protocol):
    """What sends the requests: `RemoteNode`."""

    async def keep(
        self, request: KeptRequest, sets: Mapping[str, ItemSet | None], tenant: str
    ) -> Bytes:
        """Send an asynchronous invocation."""

    async def asked_kept(self, make: Callable[[int], AskKept | FetchKept]) -> Any:
        """Send a request, made with its number, and wait for its answer."""


class RemoteKept:
    """Implements `dandelion.frontend.service.KeptInvocations`.

    Args:
        node: sends the requests.
    """

    def __init__(self, node: KeptLinkEnd) -> None:
        self._node = node

    async def submit(
        self, request: KeptRequest, sets: Mapping[str, ItemSet | None], *, tenant: str
    ) -> KeptView:
        """See `KeptInvocations`."""
        return _view.decode(await self._node.keep(request, sets, tenant))

    async def watch(
        self, id_: str, *, tenant: str, after: str = "", wait_s: float = 0.0, end: bool = False
    ) -> Watched:
        """See `KeptInvocations`."""
        return await self._ask(WatchKept(id_, after, wait_s, end), tenant, _watched)

    async def result(self, id_: str, *, tenant: str) -> ServedResult:
        """See `KeptInvocations`."""
        outcome: ServedResult = await self._node.asked_kept(
            lambda number: FetchKept(number, id_, tenant)
        )
        return outcome

    async def cancel(self, id_: str, *, tenant: str) -> KeptView:
        """See `KeptInvocations`."""
        return await self._ask(CancelKept(id_), tenant, _view)

    async def list(
        self, *, tenant: str, state: KeptState | None = None, after: str = "", limit: int = 100
    ) -> KeptPage:
        """See `KeptInvocations`."""
        return await self._ask(ListKept(state, after, limit), tenant, _page)

    async def _ask(self, query: KeptQuery, tenant: str, decoder: msgspec.msgpack.Decoder[_T]) -> _T:
        return decoder.decode(
            await self._node.asked_kept(lambda number: AskKept(number, query, tenant))
        )
