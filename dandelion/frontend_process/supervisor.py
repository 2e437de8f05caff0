"""Starts, watches, restarts and ends the frontend processes of a node.

A process that dies is started again: at once if it had served for `STEADY_S`, else after a pause
that begins with `FIRST_PAUSE_S` and doubles each time. Its listening socket stays open meanwhile,
see `listeners`, but not after `START_TRIES` failures in a row. A process whose link ends otherwise,
for example after a message that cannot be read, is killed.

The end of a process is seen in three steps, in any order: its link ends, its pidfd becomes
readable, its lifeline ends. Its invocations are cancelled at the first of them, a new process is
started after the second, its memory is freed at the third.

Processes are started by the loop's thread, since the kernel kills them when the thread that started
them ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import logging
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from dandelion.errors import BackendUnavailable, DandelionError, InternalError
from dandelion.frontend.access_log import access_log_of
from dandelion.frontend.listener import reserve
from dandelion.frontend.server import reload_node, tokens_of
from dandelion.frontend.tls import certificate_of
from dandelion.frontend_process.listeners import bind_another, bind_several
from dandelion.frontend_process.messages import Open, Reload
from dandelion.frontend_process.node_link import NodeLink
from dandelion.frontend_process.status import StatusWriter
from dandelion.node import Node
from dandelion.search_path import environment, one_blas_thread
from dandelion.settings import Settings
from dandelion.tokens import TokenRecord

log = logging.getLogger("dandelion.frontend")

HTTP = "dandelion.frontend_process"
GRPC = "dandelion.frontend_process.grpc_frontend"
START_LIMIT_S = 60.0
START_TRIES = 3
STEADY_S = 10.0
FIRST_PAUSE_S = 0.1
LONGEST_PAUSE_S = 5.0
_DRAIN_GRACE_S = 5.0
_FREE_LIMIT_S = 5.0


@dataclass(slots=True, eq=False)
class _Place:
    """The place of one frontend, and the process that fills it.

    Attributes:
        program: the module that the process runs.
        listener: its listening socket; that of gRPC only reserves the port. It is closed if no
            process can be started for long.
        process: None between two processes.
        link: to the process.
        begun: when the process was started, on the loop's clock.
        is_ready: whether the process takes connections.
        failures: how many processes in a row did not serve for long.
        start: the timer of the next start.
    """

    program: str
    listener: socket.socket
    process: subprocess.Popen[bytes] | None = None
    link: NodeLink | None = None
    begun: float = 0.0
    is_ready: bool = False
    failures: int = 0
    start: asyncio.TimerHandle | None = None


class Supervisor:
    """Serves a node by frontend processes. For the node's loop alone.

    Args:
        node: a started node; it is not closed here.
        host: address to bind.
        port: TCP port; 0 takes a free one.
        count: how many processes.
        drain_s: how long requests under way may take when it drains, in seconds.

    Attributes:
        address: of HTTP.
        grpc_address: of gRPC; None if it is off.

    Raises:
        InvalidInput: the address cannot be bound or is public; a file of tokens, of TLS or of the
            access log cannot be used.
        BackendUnavailable: gRPC is not installed.
    """

    def __init__(self, node: Node, host: str, port: int, count: int, drain_s: int) -> None:
        self._node = node
        self._drain_s = drain_s
        self._loop = asyncio.get_running_loop()
        self._tokens = tokens_of(node.settings)
        self._watching: asyncio.Task[None] | None = None
        certificate_of(node.settings)  # an error is reported here, not by each process
        access_log = access_log_of(node.settings.access_log)
        if access_log is not None:
            access_log.close()
        listeners = bind_several(host, port, count, node.settings)
        self._places = [_Place(HTTP, listener) for listener in listeners]
        self.address: tuple[str, int] = listeners[0].getsockname()[:2]
        self.grpc_address: tuple[str, int] | None = None
        if node.settings.grpc_port >= 0:
            self._add_grpc(host, node.settings)
        self._status = StatusWriter(node)
        self._open = Open(
            _share(node.settings, count),
            host,
            drain_s,
            logging.getLogger().getEffectiveLevel(),
            self._status.offset_bytes,
            None if self._tokens is None else self._tokens.records,
        )
        self._with_memory: set[NodeLink] = set()
        self._is_ending = False
        self._changed = asyncio.Event()

    def _add_grpc(self, host: str, settings: Settings) -> None:
        try:
            if importlib.util.find_spec("grpc") is None:
                remedy = "pip install 'dandelion-engine[grpc]', or leave out grpc_port"
                raise BackendUnavailable("grpc", "no module 'grpc'", remedy)
            listener = reserve(host, settings.grpc_port, settings)
        except DandelionError:
            for place in self._places:
                place.listener.close()
            raise
        self._places.append(_Place(GRPC, listener))
        self.grpc_address = listener.getsockname()[:2]

    async def start(self) -> None:
        """Start all processes, and wait until they take connections.

        Raises:
            InternalError: they do not start.
        """
        if self._tokens is not None:
            self._watching = self._loop.create_task(self._tokens.watch(self._send_tokens))
        for place in self._places:
            self._start(place)
        await self._wait(lambda: self._are_ready() or self._do_not_start(), START_LIMIT_S)
        if self._do_not_start():
            raise InternalError(f"a frontend process ended {START_TRIES} times as it started")
        if not self._are_ready():
            raise InternalError(f"the frontends were not ready within {START_LIMIT_S:g} s")

    @property
    def can_reload(self) -> bool:
        """Whether there are files that can be read again."""
        settings = self._node.settings
        files = settings.tls_cert or settings.secrets or settings.access_log
        return self._tokens is not None or bool(files)

    def reload(self) -> None:
        """Have certificate, tokens and secrets read again, and the access log opened again."""
        reload_node(self._node)
        if self._tokens is not None:
            self._tokens.read_now()
        self._send(Reload(self._open.tokens, files=True))

    def _send_tokens(self, records: tuple[TokenRecord, ...]) -> None:
        self._open = msgspec.structs.replace(self._open, tokens=records)
        self._send(Reload(records, files=False))

    def _send(self, order: Reload) -> None:
        for place in self._places:
            if place.link is not None:
                place.link.reload(order)

    def _are_ready(self) -> bool:
        return all(place.is_ready for place in self._places)

    def _do_not_start(self) -> bool:
        return any(place.failures >= START_TRIES for place in self._places)

    def tick(self) -> tuple[int, int]:
        """Bring the status up to date; to be called several times a second.

        The catalogue may be changed by others than the frontends, and engines come up.

        Returns:
            How many invocations were submitted, and how many are under way.
        """
        self._status.update()
        links = [place.link for place in self._places if place.link is not None]
        return sum(link.invocations for link in links), sum(link.running for link in links)

    @property
    def pids(self) -> list[int]:
        """Process ids of the frontends that are there."""
        return [place.process.pid for place in self._places if place.process is not None]

    async def drain(self) -> None:
        """Have all processes end their requests and leave, and wait as long as that may take."""
        self._stop_starting()
        for place in self._places:
            if place.link is not None:
                place.link.drain()
        await self._wait(self._are_gone, self._drain_s + _DRAIN_GRACE_S)

    async def close(self) -> None:
        """Kill all processes, and wait until their memory is free."""
        self._stop_starting()
        self.kill()
        if not await self._wait(self._are_gone, _FREE_LIMIT_S):
            log.error("frontend processes do not end", extra={"processes": self.pids})

    def kill(self) -> None:
        """Kill all processes."""
        for place in self._places:
            if place.process is not None:
                place.process.kill()

    def _stop_starting(self) -> None:
        self._is_ending = True
        if self._watching is not None:
            self._watching.cancel()
        for place in self._places:
            place.listener.close()
            if place.start is not None:
                place.start.cancel()

    def _are_gone(self) -> bool:
        return not self._with_memory and all(place.process is None for place in self._places)

    async def _wait(self, condition: Callable[[], bool], limit_s: float) -> bool:
        """Wait until a condition holds; False if that takes too long."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(limit_s):
                while not condition():
                    self._changed.clear()
                    await self._changed.wait()
        return condition()

    # --- one process ----------------------------------------------------------------------------

    def _start(self, place: _Place) -> None:
        place.start = None
        try:
            if place.listener.fileno() < 0:  # the process listens when it is ready
                place.listener = bind_another(place.listener.family, self.address)
            place.process, pidfd, ours, lifeline = self._spawned(place)
        except OSError as error:
            log.error("a frontend cannot be started", extra={"why": str(error)})
            place.failures += 1
            self._changed.set()
            self._start_later(place)
            return
        place.begun = self._loop.time()
        place.link = link = NodeLink(
            self._node,
            self._status,
            ours,
            lambda: self._is_up(place),
            lambda reason: self._lost(place, reason),
        )
        self._with_memory.add(link)
        self._loop.add_reader(pidfd, self._ended, place, pidfd)
        self._loop.add_reader(lifeline, self._freed, link, lifeline)
        link.open(self._open)

    def _spawned(self, place: _Place) -> tuple[subprocess.Popen[bytes], int, socket.socket, int]:
        """Start a process.

        Returns:
            The process, its pidfd, and our ends of its link and of its lifeline.

        Raises:
            OSError: it cannot be started; nothing of it is left.
        """
        arena = self._node.arena
        with contextlib.ExitStack() as undo, contextlib.ExitStack() as passed:
            ours, theirs = socket.socketpair()
            undo.callback(ours.close)
            passed.callback(theirs.close)
            lifeline, their_lifeline = os.pipe()
            undo.callback(os.close, lifeline)
            passed.callback(os.close, their_lifeline)
            files = (theirs.fileno(), place.listener.fileno(), their_lifeline, arena.fd)
            process = subprocess.Popen(
                [
                    sys.executable,
                    "-P",
                    "-m",
                    place.program,
                    *map(str, (*files, arena.size_bytes, os.getpid())),
                ],
                pass_fds=files,
                stdin=subprocess.DEVNULL,
                env=environment(one_blas_thread()),
            )
            undo.callback(process.wait)
            undo.callback(process.kill)
            pidfd = os.pidfd_open(process.pid)
            undo.pop_all()
        return process, pidfd, ours, lifeline

    def _is_up(self, place: _Place) -> None:
        place.is_ready = True
        self._changed.set()

    def _lost(self, place: _Place, reason: str) -> None:
        """The link ended by itself: the process is ending, or must."""
        if place.process is not None:
            place.process.kill()
        if not self._is_ending:
            log.error("a frontend was lost", extra={"why": reason})

    def _ended(self, place: _Place, pidfd: int) -> None:
        """The process is gone."""
        self._loop.remove_reader(pidfd)
        os.close(pidfd)
        assert place.process is not None
        assert place.link is not None
        code = place.process.wait()
        served_s = self._loop.time() - place.begun
        place.link.close()
        place.process = place.link = None
        place.is_ready = False
        self._changed.set()
        if self._is_ending:
            return
        log.error("a frontend ended, starting it again", extra={"code": code})
        place.failures = 0 if served_s >= STEADY_S else place.failures + 1
        self._start_later(place)

    def _start_later(self, place: _Place) -> None:
        if place.failures >= START_TRIES and place.program == HTTP:
            place.listener.close()
        if not self._is_ending:
            pause_s = min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2 ** (place.failures - 1))
            delay_s = pause_s if place.failures else 0.0
            place.start = self._loop.call_later(delay_s, self._start, place)

    def _freed(self, link: NodeLink, lifeline: int) -> None:
        """No process maps the arena for a frontend any more."""
        self._loop.remove_reader(lifeline)
        os.close(lifeline)
        link.close()
        link.free()
        self._with_memory.discard(link)
        self._changed.set()


def _share(settings: Settings, count: int) -> Settings:
    """Give the settings with one frontend's share of the connections."""
    return msgspec.structs.replace(
        settings,
        max_connections=-(-settings.max_connections // count),
        max_connections_per_peer=-(-settings.max_connections_per_peer // count),
    )
