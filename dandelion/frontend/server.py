"""The HTTP server: uvicorn with uvloop and httptools.

`serve` runs on the caller's event loop until a signal. Then it drains: it accepts no connections,
and running requests have `drain_s` to complete. `BackgroundServer` does the same in a thread, for
notebooks, tests and other programs.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import socket
import threading
from collections.abc import Callable, Generator
from types import TracebackType

import uvicorn
import uvloop

from dandelion.errors import InvalidInput
from dandelion.frontend.acceptor import Acceptor, Newcomer
from dandelion.frontend.admission import ConnectionTable, Limits
from dandelion.frontend.app import App
from dandelion.frontend.collector import Collector
from dandelion.frontend.descriptors import connection_limit, reserve_descriptors
from dandelion.frontend.protocol import Protocol
from dandelion.frontend.service import Service
from dandelion.settings import Settings

log = logging.getLogger("dandelion.frontend")

DRAIN_S = 10
BACKLOG = 65535
"""The kernel reduces it to its own limit."""

OnReady = Callable[[str, int], None]
"""Called with host and port when the server accepts connections."""


class Server(uvicorn.Server):
    """uvicorn without its signal handlers, with our acceptors."""

    def __init__(
        self,
        app: App,
        config: uvicorn.Config,
        table: ConnectionTable,
        ready: Callable[[], None],
    ) -> None:
        super().__init__(config)
        self._app = app
        self._table = table
        self._ready = ready
        self.collector: Collector | None = None

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await self.lifespan.startup()
        loop = asyncio.get_running_loop()

        def protocol(newcomer: Newcomer) -> Protocol:
            state = self.lifespan.state
            return Protocol(self.config, self.server_state, state, newcomer=newcomer)

        # uvicorn only calls close() and wait_closed() of its servers
        self.servers = [
            Acceptor(loop, listener, self._table, protocol)  # type: ignore[misc]
            for listener in sockets or ()
        ]
        self.started = True
        self._ready()

    async def on_tick(self, counter: int) -> bool:
        now = asyncio.get_running_loop().time()
        self._table.sweep(now)
        if self.collector is not None:
            self.collector.tick(now, self.server_state.total_requests)
        return await super().on_tick(counter)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        try:
            await super().shutdown(sockets)
        finally:
            await asyncio.to_thread(self._app.close)  # its threads may wait for this loop

    def stop(self) -> None:
        """Drain and stop; if called again, stop at once."""
        self.force_exit = self.should_exit
        self.should_exit = True


async def serve(
    node: Service,
    host: str,
    port: int,
    ready_callback: OnReady | None = None,
    *,
    drain_s: int = DRAIN_S,
) -> None:
    """Serve a node on the running loop until SIGINT or SIGTERM, then drain and return.

    A second signal stops it at once. Call it in the main thread.

    Args:
        node: a started node, preferably on the same loop; it is not closed here.
        host: address to bind.
        port: TCP port; 0 takes a free one.
        ready_callback: is called with host and port when the server accepts connections.
        drain_s: how long running requests may take after the signal, in seconds.

    Raises:
        InvalidInput: the address cannot be bound.
    """
    reserve_descriptors(node.settings.max_connections)
    bound = bind(host, port)
    try:
        server = make_server(node, host, bound, ready_callback, drain_s)
    except BaseException:
        bound.close()
        raise
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, server.stop)
    server.collector = Collector()
    try:
        await server.serve([bound])
    finally:
        server.collector.close()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(number)
        bound.close()


class BackgroundServer:
    """Serves a node in a thread with its own event loop. Use it as a context manager.

    Args:
        node: a started node; it is not closed here.
        host: address to bind.
        port: TCP port; 0 takes a free one.
        drain_s: how long running requests may take when it is closed, in seconds.

    Attributes:
        url: of the server.
    """

    def __init__(
        self, node: Service, host: str = "127.0.0.1", port: int = 0, *, drain_s: int = DRAIN_S
    ) -> None:
        self._socket = bind(host, port)
        self.url = url_of(*self._socket.getsockname()[:2])
        ready = threading.Event()
        try:
            self._server = make_server(
                node, host, self._socket, lambda _host, _port: ready.set(), drain_s
            )
        except BaseException:
            self._socket.close()
            raise
        self._thread = threading.Thread(target=self._run, name="dandelion-http", daemon=True)
        self._thread.start()
        ready.wait()

    def _run(self) -> None:
        uvloop.run(self._server.serve([self._socket]))

    def close(self) -> None:
        """Drain, stop and join the thread. May be called twice."""
        self._server.should_exit = True
        self._thread.join()
        self._socket.close()

    def __enter__(self) -> BackgroundServer:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


def bind(host: str, port: int) -> socket.socket:
    """Open the listening socket.

    Raises:
        InvalidInput: the address does not belong to this machine, is in use or not permitted.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        bound = socket.socket(family, kind, protocol)
    except (OSError, OverflowError) as error:
        raise InvalidInput("host", f"{host}:{port}: {error}") from None
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(address)
        bound.listen(BACKLOG)
    except OSError as error:
        bound.close()
        raise InvalidInput("host", f"cannot listen on {host}:{port}: {error.strerror}") from None
    return bound


def url_of(host: str, port: int) -> str:
    """Return the URL of an address."""
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def make_server(
    node: Service, name: str, bound: socket.socket, on_ready: OnReady | None, drain_s: int
) -> Server:
    """Make the server of one listening socket; `name` is what it was asked to listen on."""
    host, port = bound.getsockname()[:2]
    table = ConnectionTable(_limits(node.settings))
    app = App(node, (name, host))
    config = uvicorn.Config(
        app,
        http=Protocol,
        ws="none",
        lifespan="off",
        access_log=False,
        log_config=None,
        server_header=False,
        date_header=False,
        proxy_headers=False,
        timeout_graceful_shutdown=drain_s,
    )

    def ready() -> None:
        log.info("listening", extra={"host": host, "port": port})
        if on_ready is not None:
            on_ready(host, port)

    return Server(app, config, table, ready)


def _limits(settings: Settings) -> Limits:
    connections = connection_limit(settings.max_connections)
    return Limits(
        connections=connections,
        per_peer=min(settings.max_connections_per_peer, connections),
        head_s=settings.head_timeout_s,
        idle_s=settings.idle_timeout_s,
        moving_s=settings.body_timeout_s,
        rate_bytes=settings.body_rate_bytes,
    )
