"""A program: a node with its HTTP frontend, as ``dandelion serve`` runs it.

Reads a `NodeOrder` from standard input, registers, waits until all engines are ready, and prints
its port as JSON once it listens. SIGTERM ends it.
"""

from __future__ import annotations

import asyncio
import os
import sys

import msgspec
import uvloop

from dandelion.frontend_process.serving import serve
from dandelion.node import Node, Settings

from .servers import NodeOrder

_DRAIN_S = 2


async def main() -> None:
    """Serve until a signal comes."""
    order = msgspec.msgpack.decode(sys.stdin.buffer.read(), type=NodeOrder)
    settings = msgspec.convert(order.settings, Settings)
    async with Node(settings) as node:
        for document in order.documents:
            await asyncio.to_thread(node.register, document)
        if not await asyncio.to_thread(node.wait_ready):
            raise SystemExit("not all engines are ready")
        await serve(node, settings.host, 0, _tell, drain_s=_DRAIN_S)


def _tell(host: str, port: int) -> None:
    print(
        msgspec.json.encode({"host": host, "port": port, "pid": os.getpid()}).decode(), flush=True
    )


if __name__ == "__main__":
    uvloop.run(main())
