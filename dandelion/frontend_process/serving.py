"""Serving a node until a signal, in its own process or by as many frontends as its settings say."""

from __future__ import annotations

import asyncio
import signal

from dandelion.frontend import server
from dandelion.frontend.collector import Collector
from dandelion.frontend.server import DRAIN_S, OnReady
from dandelion.frontend_process.supervisor import Supervisor
from dandelion.node import Node

_TICK_S = 0.05


async def serve(
    node: Node,
    host: str,
    port: int,
    ready_callback: OnReady | None = None,
    *,
    drain_s: int = DRAIN_S,
    grpc_ready_callback: OnReady | None = None,
) -> None:
    """Serve a node on the running loop until SIGINT or SIGTERM, then drain and return.

    A second signal does not wait. SIGHUP reads the certificate and the tokens again, and opens the
    access log again; see `dandelion.frontend.server.hangup_without_files`. Call it in the main
    thread.

    Args:
        node: a node that was started on the running loop; it is not closed here.
        host: address to bind.
        port: TCP port; 0 takes a free one.
        ready_callback: called with the address once connections are taken.
        drain_s: how long requests under way may take after the signal, in seconds.
        grpc_ready_callback: called before that with the address of gRPC, if it is on.

    Raises:
        InvalidInput: the address cannot be bound.
        InternalError: the frontend processes do not start.
    """
    if node.settings.frontends == 1 and node.settings.grpc_port < 0:
        await server.serve(node, host, port, ready_callback, drain_s=drain_s)
    else:
        supervisor = Supervisor(node, host, port, node.settings.frontends, drain_s)
        await _supervise(supervisor, ready_callback, grpc_ready_callback)


async def _supervise(
    supervisor: Supervisor,
    ready_callback: OnReady | None,
    grpc_ready_callback: OnReady | None,
) -> None:
    loop = asyncio.get_running_loop()
    signalled = asyncio.Event()

    def stop() -> None:
        if signalled.is_set():
            supervisor.kill()
        signalled.set()

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop)
    reload = supervisor.reload if supervisor.can_reload else server.hangup_without_files(stop)
    loop.add_signal_handler(signal.SIGHUP, reload)
    collector = Collector()
    ticking = loop.create_task(_tick(supervisor, collector))
    try:
        await supervisor.start()
        if grpc_ready_callback is not None and supervisor.grpc_address is not None:
            grpc_ready_callback(*supervisor.grpc_address)
        if ready_callback is not None:
            ready_callback(*supervisor.address)
        await signalled.wait()
        await supervisor.drain()
    finally:
        ticking.cancel()
        collector.close()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            loop.remove_signal_handler(number)
        await supervisor.close()


async def _tick(supervisor: Supervisor, collector: Collector) -> None:
    while True:
        await asyncio.sleep(_TICK_S)
        collector.tick(asyncio.get_running_loop().time(), *supervisor.tick())
