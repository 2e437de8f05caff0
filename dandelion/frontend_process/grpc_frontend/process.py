"""The program of the gRPC frontend: the server's address, TLS, limits, and its end."""

from __future__ import annotations

import asyncio
import logging
import resource
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc

from dandelion.errors import InternalError
from dandelion.frontend.access_log import access_log_of
from dandelion.frontend.conversion.converter import Converter
from dandelion.frontend.guard import Guard
from dandelion.frontend_process.grpc_frontend.methods import Methods
from dandelion.frontend_process.grpc_frontend.server import Service
from dandelion.frontend_process.grpc_frontend.wire import MESSAGE_LIMIT_BYTES
from dandelion.frontend_process.messages import Open
from dandelion.frontend_process.process import Frontend, Stoppable
from dandelion.frontend_process.remote_node import RemoteNode
from dandelion.settings import Settings

log = logging.getLogger("dandelion.frontend")

_ENVELOPE_BYTES = 64 * 1024
"""Of a message, beside its tensors."""
_MEMORY_BYTES = 2 << 30
_MESSAGES_IN_MEMORY = 8
_WATCH_S = 0.5
_KEEPALIVE_S = 30.0
_KEEPALIVE_TIMEOUT_S = 10.0


class GrpcFrontend(Frontend):
    """Serves KServe v2 over gRPC. Its listener only reserves the port: gRPC opens its own."""

    def make(
        self, node: RemoteNode, opened: Open, guard: Guard, ready: Callable[[], None]
    ) -> Stoppable:
        _limit_memory(opened.settings)
        host, port = self.listener.getsockname()[:2]
        address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        return GrpcServer(node, address, guard, opened.drain_s, ready)

    async def run(self, server: Any) -> None:
        await server.run()


class GrpcServer:
    """The server.

    Args:
        node: serves the calls.
        address: to listen on.
        guard: knows what callers may do.
        drain_s: how long calls may take after `stop`, in seconds.
        ready: called when connections are taken.
    """

    def __init__(
        self,
        node: RemoteNode,
        address: str,
        guard: Guard,
        drain_s: int,
        ready: Callable[[], None],
    ) -> None:
        self._address = address
        self._drain_s = drain_s
        self._ready = ready
        self._settings = node.settings
        self._node = node
        self._log = access_log_of(node.settings.access_log)
        self._converter = Converter(node)
        self._service = Service(Methods(node, self._converter), guard, self._log)
        self._stopped = asyncio.Event()
        self._is_changed = False

    def stop(self) -> None:
        """Take no more calls, and end when those under way have ended."""
        self._stopped.set()

    def reload(self) -> None:
        """Read the certificate again with the next connection; open the access log again."""
        self._is_changed = True
        if self._log is not None:
            self._log.reopen()

    async def run(self) -> None:
        """Serve until `stop`.

        Raises:
            InternalError: the address cannot be listened on.
        """
        server = grpc.aio.server(
            options=options_of(self._settings),
            maximum_concurrent_rpcs=self._settings.grpc_max_calls,
        )
        server.add_generic_rpc_handlers((self._service,))
        try:
            if self._settings.tls_cert:
                server.add_secure_port(self._address, self._credentials())
            else:
                server.add_insecure_port(self._address)
        except RuntimeError as error:
            raise InternalError(f"gRPC cannot listen on {self._address}: {error}") from None
        await server.start()
        log.info("gRPC listens", extra={"address": self._address})
        self._ready()
        watching = asyncio.create_task(self._watch_log())
        await self._stopped.wait()
        watching.cancel()
        self._service.draining.set()
        await server.stop(self._drain_s)
        await asyncio.to_thread(self._close)

    def _close(self) -> None:
        self._converter.close()
        if self._log is not None:
            self._log.close()

    async def _watch_log(self) -> None:
        """Tell the node how many lines are lost."""
        while self._log is not None:
            await asyncio.sleep(_WATCH_S)
            dropped = self._log.newly_dropped()
            if dropped:
                self._node.lines_dropped(dropped)

    def _credentials(self) -> Any:
        return grpc.dynamic_ssl_server_credentials(self._certificate(), self._changed_certificate)

    def _certificate(self) -> Any:
        chain = Path(self._settings.tls_cert).read_bytes()
        key = Path(self._settings.tls_key).read_bytes()
        return grpc.ssl_server_certificate_configuration([(key, chain)])

    def _changed_certificate(self) -> Any:
        """Give the certificate if it has changed; called for each connection, in any thread."""
        if not self._is_changed:
            return None
        self._is_changed = False
        try:
            return self._certificate()
        except (OSError, ValueError) as error:
            log.error("the old certificate stays in use", extra={"why": str(error)})
            return None


def options_of(settings: Settings) -> list[tuple[str, int]]:
    """Give the options of the server."""
    received_bytes = min(settings.body_limit_bytes + _ENVELOPE_BYTES, MESSAGE_LIMIT_BYTES)
    return [
        ("grpc.max_receive_message_length", received_bytes),
        ("grpc.max_send_message_length", -1),
        ("grpc.so_reuseport", 1),
        ("grpc.max_connection_idle_ms", int(settings.idle_timeout_s * 1000)),
        ("grpc.keepalive_time_ms", int(_KEEPALIVE_S * 1000)),
        ("grpc.keepalive_timeout_ms", int(_KEEPALIVE_TIMEOUT_S * 1000)),
    ]


def _limit_memory(settings: Settings) -> None:
    limit = _MEMORY_BYTES + _MESSAGES_IN_MEMORY * settings.body_limit_bytes
    hard = resource.getrlimit(resource.RLIMIT_DATA)[1]
    if hard != resource.RLIM_INFINITY:
        limit = min(limit, hard)
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
