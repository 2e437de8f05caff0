"""Nodes, started in the same way by all experiments: in this process, or as a server.

As a program, this module serves a node with its HTTP frontend, as ``dandelion serve`` does. It
reads a `NodeOrder` from standard input and prints its port once everything is registered and ready.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import msgspec
import uvloop

from dandelion.cluster.joining import cluster_of
from dandelion.data import Item, ItemSet
from dandelion.documents import RegistrationDocument
from dandelion.errors import BackendUnavailable, DandelionError
from dandelion.frontend_process.serving import serve
from dandelion.namespaces import DEFAULT_TENANT
from dandelion.node import Node, Settings

from ..processes import ServerProcess, module

MIB = 1024 * 1024
GPU_OPTIONS: dict[str, dict[str, str]] = {}
"""Options of backends for all nodes, by backend; those of an experiment come first."""
_READY_S = 120.0
_DRAIN_S = 2


class NodeOrder(msgspec.Struct, frozen=True):
    """Input of the program.

    Attributes:
        settings: of the node, by name.
        documents: registered before it listens.
        engines: number of engines that have to be ready; 0 for those that are known at first.
    """

    settings: dict[str, object]
    documents: tuple[RegistrationDocument, ...] = ()
    engines: int = 0


def gpu_settings(
    backend: str, workers: int | None, pool_bytes: str, arena_bytes: int, **options: str
) -> dict[str, object]:
    """Give settings of a node with GPU engines.

    Args:
        backend: ``cuda``, ``hip`` or ``opencl``.
        workers: that share the device; 0 for the sequential engine alone, None for the default.
        pool_bytes: device memory of each engine, like "2G".
        arena_bytes: of the node.
        options: further ones of the backend.
    """
    chosen = {"pool_bytes": pool_bytes, **GPU_OPTIONS.get(backend, {}), **options}
    if workers is not None:
        chosen["workers"] = str(workers)
    return {"backends": (backend,), "options": {backend: chosen}, "arena_bytes": arena_bytes}


def pool_for(gpu: bool) -> str:
    """Give the device memory of an engine with which several nodes fit on one device."""
    return "2G" if gpu else "256M"


@contextmanager
def open_node(settings: Mapping[str, object], engines: int = 0) -> Iterator[Node]:
    """Start a node in this process and wait until its engines are ready.

    Raises:
        BackendUnavailable: an engine does not start.
    """
    with Node(msgspec.convert(settings, Settings)) as node:
        wait_engines(node, engines)
        yield node


def wait_engines(node: Node, count: int = 0) -> None:
    """Wait until `count` engines are ready, or, without a count, all that are known.

    Workers start when the first engine is ready, so a node may be ready before it knows of them.

    Raises:
        BackendUnavailable: an engine does not start.
    """
    end = time.monotonic() + _READY_S
    while True:
        engines = node.engines()
        ready = sum(e.state == "ready" for e in engines)
        wanted = count or sum(e.state != "dormant" for e in engines)
        lost = [e for e in engines if e.state not in ("ready", "starting", "dormant")]
        if not lost and ready >= wanted:
            return
        if lost or time.monotonic() > end:
            reasons = "; ".join(e.reason for e in lost) or "the others are starting"
            raise BackendUnavailable("node", f"{ready} of {wanted} engines started: {reasons}")
        time.sleep(0.01)


def node_server(
    settings: Mapping[str, object],
    documents: Sequence[RegistrationDocument] = (),
    *,
    engines: int = 0,
    name: str = "dandelion",
    wait_s: float = 180.0,
    environment: Mapping[str, str] | None = None,
) -> ServerProcess:
    """Start a node with its HTTP frontend, with everything registered and all engines ready.

    Args:
        settings: of the node, by name; the port is a free one.
        documents: registered in this order before it listens.
        engines: see `NodeOrder`.
        wait_s: how long it may take.
        environment: variables beside those of this process.

    Raises:
        ServerFailed: it did not start, for example because a document is refused.
    """
    order = msgspec.msgpack.encode(NodeOrder(dict(settings), tuple(documents), engines))
    command = module("dandelion.bench.systems.nodes")
    return ServerProcess(
        name, command, standard_input=order, wait_s=wait_s, environment=environment
    )


def one_item(name: str, data: Any) -> dict[str, ItemSet | None]:  # bytes or a view of the arena
    """Give the input of a function with one set of one item."""
    return {name: ItemSet(name, (Item(name, 0, data),))}


def stages_us(spans: Sequence[Any], left_out: str = "zero") -> dict[str, float]:  # of a trace
    """Add up the stages that engines reported in the trace of an invocation, in microseconds."""
    found: dict[str, float] = {}
    for span in spans:
        if span.track.endswith(" stages") and span.name != left_out:
            found[span.name] = found.get(span.name, 0.0) + (span.end_ns - span.start_ns) / 1e3
    return found


def split_call(spans: Sequence[Any], total_us: float) -> dict[str, float]:  # of a trace
    """Split the time of an invocation of one GPU function into stages, and ``dispatch``."""
    stages = stages_us(spans)
    rest = max(0.0, total_us - sum(stages.values()))
    return {"dispatch": rest, **stages, "total": total_us}


def staged_call(
    node: Node, function: str, sets: Mapping[str, Any], tenant: str = DEFAULT_TENANT
) -> tuple[Any, dict[str, float]]:
    """Invoke a function; give its result and the stages of `split_call`."""
    began = time.perf_counter_ns()
    result = node.invoke_sets(function, sets, tenant=tenant)
    total = (time.perf_counter_ns() - began) / 1e3
    return result, split_call(result.trace.spans, total)


async def main() -> None:
    """Serve until a signal comes."""
    order = msgspec.msgpack.decode(sys.stdin.buffer.read(), type=NodeOrder)
    settings = msgspec.convert(order.settings, Settings)
    async with Node(settings, cluster=cluster_of(settings)) as node:
        for document in order.documents:
            await asyncio.to_thread(node.register, document)
        await asyncio.to_thread(wait_engines, node, order.engines)
        await serve(
            node, settings.host, 0, lambda _, port: print(port, flush=True), drain_s=_DRAIN_S
        )


if __name__ == "__main__":
    try:
        uvloop.run(main())
    except DandelionError as error:
        raise SystemExit(str(error)) from None
