"""``dandelion serve``: a node with its HTTP frontend, until SIGINT or SIGTERM.

When the node accepts connections, it prints on standard output where it keeps what is registered
and its address: lines of text, of which the last has the address, or with ``--json`` an object in
one line with ``url``, ``host``, ``port``, ``pid`` and ``catalog``, and ``grpc_port`` if gRPC is on.
Logs are JSON lines on standard error.
"""

from __future__ import annotations

import importlib
import json
import logging
import os
from pathlib import Path

import msgspec
import uvloop

from dandelion.cli.data_folder import add_choices, announcement, default_catalog
from dandelion.cli.output import Output
from dandelion.cli.parser import Arguments
from dandelion.cli.settings import load_settings, unknown_variables
from dandelion.errors import CatalogCorrupt, CatalogUnavailable, Conflict, DiskFull
from dandelion.frontend.listener import url_of
from dandelion.frontend.logs import log_to_stderr
from dandelion.frontend_process.serving import serve
from dandelion.node import Node, Settings
from dandelion.node.attachment import ClusterPart

_logger = logging.getLogger("dandelion.settings")


def run(arguments: Arguments, out: Output) -> int:
    """Serve until a signal arrives."""
    flags = {
        name.removeprefix("setting_"): given
        for name, given in vars(arguments).items()
        if name.startswith("setting_") and given is not None
    }
    file = arguments.settings or os.environ.get("DANDELION_SETTINGS")
    settings = load_settings(Path(file) if file else None, os.environ, flags, default_catalog)
    if arguments.insecure:
        settings = msgspec.structs.replace(settings, allow_anonymous=True)
    log_to_stderr(arguments.log_level.upper())
    for sentence in unknown_variables(os.environ):
        _logger.warning(sentence)
    uvloop.run(_serve(settings, arguments.drain, out))
    return 0


def _cluster_of(settings: Settings) -> ClusterPart | None:
    """Make the node's part of a cluster; without one, nothing of it is imported."""
    given = (settings.peers, settings.cluster, settings.cluster_listen, settings.cluster_store)
    if not any(given):
        return None
    joining = importlib.import_module("dandelion.cluster.joining")
    joined: ClusterPart = joining.joined(settings)
    return joined


async def _serve(settings: Settings, drain_s: int, out: Output) -> None:
    grpc: dict[str, int] = {}

    def grpc_ready(host: str, port: int) -> None:
        grpc["grpc_port"] = port

    def ready(host: str, port: int) -> None:
        url = url_of(host, port, secure=bool(settings.tls_cert))
        if out.as_json:
            place = {"url": url, "host": host, "port": port, "pid": os.getpid(), **grpc}
            place["catalog"] = settings.catalog
            out.raw(json.dumps(place).encode() + b"\n")
        else:
            out.raw(f"{announcement(settings)}\n".encode())
            if grpc:
                out.raw(f"KServe v2 over gRPC is at port {grpc['grpc_port']}\n".encode())
            out.raw(
                f"Dandelion listens on {url}; its interface is described at {url}/docs\n".encode()
            )

    async with make_node(settings, _cluster_of(settings)) as node:
        await serve(
            node,
            settings.host,
            settings.port,
            ready,
            drain_s=drain_s,
            grpc_ready_callback=grpc_ready,
        )


def make_node(settings: Settings, cluster: ClusterPart | None = None) -> Node:
    """Make the node; an error of its catalogue also says how to choose another one."""
    try:
        return Node(settings, cluster=cluster)
    except (CatalogCorrupt, CatalogUnavailable, Conflict, DiskFull) as error:
        add_choices(error, settings)
        raise
