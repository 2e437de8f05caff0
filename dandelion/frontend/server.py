"""The HTTP server: uvicorn with uvloop and httptools.

`serve` runs on the caller's event loop until a signal. Then it drains: it accepts no connections,
and running requests have `drain_s` to complete. `BackgroundServer` does the same in a thread, for
notebooks, tests and other programs.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
import threading
from collections.abc import Callable, Generator
from pathlib import Path
from types import TracebackType

import uvicorn
import uvloop

from dandelion.errors import DandelionError, InvalidInput
from dandelion.frontend.acceptor import Acceptor
from dandelion.frontend.admission import ConnectionTable, Limits
from dandelion.frontend.app import App
from dandelion.frontend.collector import Collector
from dandelion.frontend.descriptors import connection_limit, reserve_descriptors
from dandelion.frontend.guard import Guard
from dandelion.frontend.http_versions import alpn_protocols, check_http2, protocol_factory
from dandelion.frontend.listener import bind, url_of
from dandelion.frontend.protocol import Protocol
from dandelion.frontend.service import Service
from dandelion.frontend.tls import Certificate, certificate_of
from dandelion.settings import Settings
from dandelion.tokens import TokenFile

log = logging.getLogger("dandelion.frontend")

_SWEEP_S = 0.1
DRAIN_S = 10
OnReady = Callable[[str, int], None]
"""Called with host and port when the server accepts connections."""


class Server(uvicorn.Server):
    """uvicorn without its signal handlers, with our acceptors.

    Attributes:
        guard: knows what callers may do.
        certificate: of the server; None for plain HTTP.
        tokens: watched while the server runs; None if there are none, or another process does it.
        collector: is called between requests.
    """

    def __init__(
        self,
        app: App,
        config: uvicorn.Config,
        table: ConnectionTable,
        ready: Callable[[], None],
        guard: Guard,
        certificate: Certificate | None,
        settings: Settings,
    ) -> None:
        super().__init__(config)
        self._settings = settings
        self.guard = guard
        self.certificate = certificate
        self.tokens: TokenFile | None = None
        self._watching: asyncio.Task[None] | None = None
        self._app = app
        self._table = table
        self._ready = ready
        self.collector: Collector | None = None

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await self.lifespan.startup()
        await self._app.start()
        loop = asyncio.get_running_loop()

        protocol = protocol_factory(
            self._settings,
            self.config,
            self.server_state,
            has_tls=self.certificate is not None,
        )
        # uvicorn only calls close() and wait_closed() of its servers
        self.servers = [
            Acceptor(loop, listener, self._table, protocol, self.certificate)  # type: ignore[misc]
            for listener in sockets or ()
        ]
        if self.tokens is not None:
            self._watching = loop.create_task(self.tokens.watch(self.guard.replace))
        self.started = True
        self._ready()

    async def on_tick(self, counter: int) -> bool:
        now = asyncio.get_running_loop().time()
        self._table.sweep(now)
        self._app.tick()
        if self.collector is not None:
            state = self.server_state
            self.collector.tick(now, state.total_requests, len(state.tasks))
        return await super().on_tick(counter)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        sweeping = asyncio.create_task(self._sweep())
        try:
            await self._app.stop()
            await super().shutdown(sockets)
        finally:
            sweeping.cancel()
            if self._watching is not None:
                self._watching.cancel()
            await asyncio.to_thread(self.end)  # its threads may wait for this loop

    async def _sweep(self) -> None:
        """Keep the limits of connections while the server drains, when there are no ticks."""
        while True:
            await asyncio.sleep(_SWEEP_S)
            self._table.sweep(asyncio.get_running_loop().time())

    def end(self) -> None:
        """Release everything, after the last request or a start that failed."""
        self._app.close()

    def reload(self) -> None:
        """Read the certificate and the tokens again, and open the access log again."""
        self._app.reload()
        if self.certificate is not None:
            self.certificate.reload()
        if self.tokens is not None:
            self.tokens.read_now()

    def stop(self) -> None:
        """Drain and stop; if called again, stop at once."""
        self.force_exit = self.should_exit
        self.should_exit = True


def reload_node(node: Service) -> None:
    """Have a node read its files again; an error is logged, and the old contents stay in use."""
    try:
        node.reload()
    except InvalidInput as error:
        log.error("the old secrets stay in use", extra={"why": str(error)})


def hangup_without_files(stop: Callable[[], None]) -> Callable[[], None]:
    """Return what SIGHUP does in a node that has no files to read again.

    A terminal sends it when it is closed: then the node stops. Else it is logged.
    """
    return hangup_in_terminal(stop) if os.isatty(0) else _nothing_to_reload


def hangup_in_terminal(stop: Callable[[], None]) -> Callable[[], None]:
    """Return what SIGHUP does in a node that ends with its terminal.

    A shell and the system both send it, and a second call of `stop` would not wait for requests, so
    only the first one counts. Where it was ignored when the program started, it still is.
    """
    left = [] if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN else [stop]

    def hangup() -> None:
        if left:
            left.pop()()

    return hangup


def _nothing_to_reload() -> None:
    log.info("SIGHUP: no files to read again; tokens, certificate, secrets, access log are not set")


async def serve(
    node: Service,
    host: str,
    port: int,
    ready_callback: OnReady | None = None,
    *,
    drain_s: int = DRAIN_S,
) -> None:
    """Serve a node on the running loop until SIGINT or SIGTERM, then drain and return.

    A second signal stops it at once. SIGHUP reads the certificate, the tokens and the secrets
    again, and opens the access log again; see `hangup_without_files`. Call it in the main thread.

    Args:
        node: a started node, preferably on the same loop; it is not closed here.
        host: address to bind.
        port: TCP port; 0 takes a free one.
        ready_callback: is called with host and port when the server accepts connections.
        drain_s: how long running requests may take after the signal, in seconds.

    Raises:
        InvalidInput: the address cannot be bound or is public; a file of tokens or of TLS cannot
            be used.
    """
    reserve_descriptors(node.settings.max_connections)
    tokens = tokens_of(node.settings)
    bound = bind(host, port, node.settings)
    try:
        guard = Guard(None if tokens is None else tokens.records)
        server = make_server(node, host, bound, ready_callback, drain_s, guard)
        server.tokens = tokens
    except BaseException:
        bound.close()
        raise
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, server.stop)

    def reload() -> None:
        server.reload()
        reload_node(node)

    settings = node.settings
    has_files = bool(settings.secrets or settings.access_log)
    can_reload = tokens is not None or server.certificate is not None or has_files
    loop.add_signal_handler(
        signal.SIGHUP, reload if can_reload else hangup_without_files(server.stop)
    )
    server.collector = Collector()
    try:
        await server.serve([bound])
    finally:
        server.collector.close()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
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

    Raises:
        DandelionError: the address cannot be bound, or a protocol cannot start.
    """

    def __init__(
        self, node: Service, host: str = "127.0.0.1", port: int = 0, *, drain_s: int = DRAIN_S
    ) -> None:
        tokens = tokens_of(node.settings)
        self._socket = bind(host, port, node.settings)
        self.url = url_of(*self._socket.getsockname()[:2], secure=bool(node.settings.tls_cert))
        ready = threading.Event()
        try:
            guard = Guard(None if tokens is None else tokens.records)
            self._server = make_server(
                node, host, self._socket, lambda _host, _port: ready.set(), drain_s, guard
            )
            self._server.tokens = tokens
        except BaseException:
            self._socket.close()
            raise
        self._failure: DandelionError | None = None
        self._thread = threading.Thread(
            target=self._run, args=(ready,), name="dandelion-http", daemon=True
        )
        self._thread.start()
        ready.wait()
        if self._failure is not None:
            self.close()
            raise self._failure

    def _run(self, ready: threading.Event) -> None:
        try:
            uvloop.run(self._server.serve([self._socket]))
        except DandelionError as error:
            self._failure = error
            self._server.end()
        finally:
            ready.set()

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


def tokens_of(settings: Settings) -> TokenFile | None:
    """Read the file of tokens that settings name; None if they name none.

    Raises:
        InvalidInput: it cannot be used.
    """
    return TokenFile(Path(settings.tokens)) if settings.tokens else None


def make_server(
    node: Service,
    name: str,
    bound: socket.socket,
    on_ready: OnReady | None,
    drain_s: int,
    guard: Guard,
) -> Server:
    """Make the server of one listening socket; `name` is what it was asked to listen on."""
    host, port = bound.getsockname()[:2]
    check_http2(node.settings)
    certificate = certificate_of(node.settings, alpn_protocols(node.settings))
    table = ConnectionTable(_limits(node.settings))
    app = App(node, (name, host), guard)
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

    return Server(app, config, table, ready, guard, certificate, node.settings)


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
