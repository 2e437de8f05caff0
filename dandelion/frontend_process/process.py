"""The program of a frontend process.

Run by the node as ``python -m dandelion.frontend_process LINK_FD LISTENER_FD LIFELINE_FD ARENA_FD
ARENA_BYTES PARENT``. It serves until the node says `Drain`, or is gone. Signals of a terminal or a
service manager go to the node as well, which decides, so they are ignored here.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import sys
from collections.abc import Callable
from typing import Any, Protocol

import uvloop

from dandelion.confinement import libc
from dandelion.errors import DandelionError
from dandelion.frontend.collector import Collector
from dandelion.frontend.descriptors import reserve_descriptors
from dandelion.frontend.guard import Guard
from dandelion.frontend.listener import BACKLOG
from dandelion.frontend.logs import log_to_stderr
from dandelion.frontend.server import make_server
from dandelion.frontend_process.link import Link
from dandelion.frontend_process.messages import FromNode, Open, Ready, Reload, from_node
from dandelion.frontend_process.remote_node import RemoteNode
from dandelion.memory import ArenaMap

log = logging.getLogger("dandelion.frontend")

_PR_SET_PDEATHSIG = 1


def main(make: type[Frontend] | None = None) -> int:
    """Serve; the arguments are those of the module's text. `make` is another kind of frontend."""
    link, listener, lifeline, arena, arena_bytes, parent = map(int, sys.argv[1:7])
    libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    libc.prctl(libc.PR_SET_NO_NEW_PRIVS, 1)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    if os.getppid() != parent:
        return 1
    frontend = (make or Frontend)(
        socket.socket(fileno=link),
        socket.socket(fileno=listener),
        ArenaMap(arena, arena_bytes),
        (lifeline,),
    )
    uvloop.run(frontend.serve())
    os._exit(0)  # threads that wait for the node do not end


class Stoppable(Protocol):
    """A server that `Frontend` runs."""

    def stop(self) -> None:
        """End the requests under way, and then the server."""

    def reload(self) -> None:
        """Read the certificate again."""


class Frontend:
    """Serves HTTP for the node at the other end of a link.

    Args:
        peer: the socket to the node.
        listener: a socket that is bound; it may listen already.
        arena: of the node.
        arena_descriptors: what processes that are given the arena inherit.
    """

    def __init__(
        self,
        peer: socket.socket,
        listener: socket.socket,
        arena: ArenaMap,
        arena_descriptors: tuple[int, ...],
    ) -> None:
        self._peer = peer
        self.listener = listener
        self._arena = arena
        self._arena_descriptors = arena_descriptors
        self._node: RemoteNode | None = None
        self._early: list[FromNode] = []
        self._opened = asyncio.Event()

    async def serve(self) -> None:
        """Serve until the node says that it is enough."""
        loop = asyncio.get_running_loop()
        link = Link(loop, self._peer, from_node, self._received, self._lost)
        await self._opened.wait()
        opened, *rest = self._early
        assert isinstance(opened, Open)
        log_to_stderr(opened.log_level)
        reserve_descriptors(opened.settings.max_connections)
        node = RemoteNode(loop, link, opened, self._arena, self._arena_descriptors)
        guard = Guard(opened.tokens, node.buckets)
        try:
            server = self.make(node, opened, guard, lambda: link.post(Ready()))
        except DandelionError as error:  # of a file that was in order when the node started
            log.error("the frontend cannot start", extra={"why": str(error)})
            os._exit(1)

        def reload(order: Reload) -> None:
            if order.tokens is not None:
                guard.replace(order.tokens)
            if order.files:
                server.reload()

        node.on_drain = server.stop
        node.on_reload = reload
        self._node = node
        node.received(rest)
        await self.run(server)

    def make(
        self, node: RemoteNode, opened: Open, guard: Guard, ready: Callable[[], None]
    ) -> Stoppable:
        """Make the server.

        Args:
            node: the node at the other end.
            opened: what the node said first.
            guard: knows what callers may do.
            ready: to be called when connections are taken.
        """
        server = make_server(
            node, opened.host, self.listener, lambda _host, _port: ready(), opened.drain_s, guard
        )
        server.collector = Collector()
        return server

    async def run(self, server: Any) -> None:
        """Run what `make` made, until it was stopped and its requests have ended."""
        self.listener.listen(BACKLOG)  # one that was opened again does not listen before
        await server.serve([self.listener])

    def _received(self, messages: list[FromNode]) -> None:
        if self._node is not None:
            self._node.received(messages)
            return
        self._early += messages
        self._opened.set()

    def _lost(self, reason: str) -> None:
        """The node is gone, or has closed the link: nothing can be answered any more."""
        log.error("the node is gone", extra={"why": reason})
        os._exit(1)
