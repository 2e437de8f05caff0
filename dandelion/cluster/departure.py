"""Leaving a cluster: calls of other nodes may end, then all links are ended."""

from __future__ import annotations

import asyncio
import logging
import socket
import time
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as Late
from functools import partial

from dandelion.cluster.control_end import ControlEnd
from dandelion.cluster.discovery import Discovery
from dandelion.cluster.doors import Door
from dandelion.cluster.link import OutLink
from dandelion.cluster.placement import Placement
from dandelion.cluster.serving import InLink

DRAIN_S = 5.0
"""How long calls of other nodes may take when this one leaves."""

log = logging.getLogger("dandelion.cluster")


class ClusterShutdown:
    """The end of a `Cluster`, which has the attributes."""

    thread: int
    _socket: socket.socket
    _discovery: Discovery | None
    _post: Callable[[Callable[[], None]], None]
    _door: Door
    _placement: Placement
    _links: dict[str, OutLink]
    _in_links: dict[str, InLink]
    _tasks: set[asyncio.Task[None]]
    _ticker: asyncio.TimerHandle | None
    _draining: bool
    _to_close: list[Callable[[], None]]
    _listens: bool
    _left: bool

    def close(self) -> None:
        """See `ClusterPart.close`."""
        try:
            if self._discovery is not None and self.thread:
                self._discovery.close()
            if self.thread:
                self._leave_in_time()
        finally:
            if not self._listens:
                self._socket.close()
            for close in self._to_close:
                close()

    def _leave_in_time(self) -> None:
        """End all links, if the node's loop works; else they end when it goes on."""
        self._post(self._drain)
        deadline = time.monotonic() + DRAIN_S
        while (left_s := deadline - time.monotonic()) > 0:
            idle: Future[bool] = Future()
            self._post(lambda idle=idle: idle.set_result(self._is_idle()))  # type: ignore[misc]
            try:
                if idle.result(left_s):
                    break
            except Late:
                break
            time.sleep(0.02)  # not on the loop; calls of others end meanwhile
        ended: Future[None] = Future()
        self._post(partial(self._leave, ended))
        try:
            ended.result(DRAIN_S)
        except Late:
            log.error("the cluster was not left in time: the node's loop does not go on")

    def _drain(self) -> None:
        self._draining = True
        for name in list(self._placement.views):
            self._placement.views[name].open = False

    def _is_idle(self) -> bool:
        links: list[ControlEnd] = [*self._links.values(), *self._in_links.values()]
        return not any(link.under_way for link in links)

    def _leave(self, ended: Future[None]) -> None:
        self._left = True
        if self._ticker is not None:
            self._ticker.cancel()
        if self._listens:
            self._door.close()
        for task in list(self._tasks):
            task.cancel()
        self._ending = asyncio.get_running_loop().create_task(self._end(ended))

    async def _end(self, ended: Future[None]) -> None:
        """End all connections."""
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for link in self._links.values():
            link.leave()
        for in_link in self._in_links.values():
            if not in_link.under_way:
                in_link.leave()
        for end in [*self._links.values(), *self._in_links.values()]:
            end.close("this node shuts down", politely=True)
        if self._listens:
            await self._door.wait_closed()
        ended.set_result(None)
