"""ASGI applications on uvicorn, set up as the node's frontend, and a program that serves them.

====== ===========================================================================
KIND   what it serves
====== ===========================================================================
echo   the body of the request: the baseline "raw ASGI"
torch  PyPlover's network in PyTorch, in the thread of the event loop
ray    the same application in front of one Ray actor that has the network
fast   the network in PyTorch behind FastAPI
====== ===========================================================================

``python -m dandelion.bench.systems.asgi KIND`` prints its port once it listens; SIGTERM ends it.
"""

from __future__ import annotations

import gc
import importlib
import socket
import sys
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, TypeAlias

import uvicorn

from ..processes import ServerProcess, module
from . import names

AsgiMessage: TypeAlias = MutableMapping[str, Any]  # as ASGI has it
Responder: TypeAlias = Callable[[str, bytes], Awaitable[tuple[int, bytes]]]
"""Answers the path and the body of a request with a status and a body."""


def application(reply: Responder) -> Callable[..., Awaitable[None]]:
    """Make an ASGI application that answers whole bodies."""

    async def app(
        scope: AsgiMessage,
        receive: Callable[[], Awaitable[AsgiMessage]],
        send: Callable[[AsgiMessage], Awaitable[None]],
    ) -> None:
        parts = []
        while True:
            message = await receive()
            parts.append(message.get("body", b""))
            if not message.get("more_body"):
                break
        status, body = await reply(scope["path"], parts[0] if len(parts) == 1 else b"".join(parts))
        headers = [
            (b"content-type", b"application/octet-stream"),
            (b"content-length", b"%d" % len(body)),
        ]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    return app


def serve(app: Any) -> None:  # an ASGI application, of FastAPI too
    """Serve on a free port, which is printed, until a signal comes."""
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    listener.listen(2048)
    config = uvicorn.Config(
        app, loop="uvloop", http="httptools", ws="none", lifespan="off", log_level="error",
        timeout_keep_alive=75, access_log=False, server_header=False, date_header=False,
    )  # fmt: skip
    gc.collect()
    gc.freeze()  # as the node does
    print(listener.getsockname()[1], flush=True)
    uvicorn.Server(config).run(sockets=[listener])


def asgi_server(kind: str = "echo", name: str = names.RAW_ASGI) -> ServerProcess:
    """Start the program."""
    return ServerProcess(name, module("dandelion.bench.systems.asgi", kind), wait_s=120.0)


async def _echo(_: str, body: bytes) -> tuple[int, bytes]:
    return 200, body


def _torch() -> Responder:
    network = importlib.import_module("dandelion.bench.systems.torch_network").Network()

    async def reply(_: str, body: bytes) -> tuple[int, bytes]:
        return 200, network(body)

    return reply


def _ray() -> Responder:
    network = importlib.import_module("dandelion.bench.systems.torch_network").Network
    ray = importlib.import_module("ray")
    ray.init(include_dashboard=False, configure_logging=False, log_to_driver=False)
    found = importlib.import_module("torch").cuda.is_available()
    actor = ray.remote(num_cpus=0, num_gpus=int(found))(network).remote()

    async def reply(_: str, body: bytes) -> tuple[int, bytes]:
        return 200, await actor.__call__.remote(body)

    return reply


def _fast() -> Any:  # FastAPI's own class
    fastapi = importlib.import_module("fastapi")
    app = fastapi.FastAPI()
    network = importlib.import_module("dandelion.bench.systems.torch_network").Network()

    async def classify(request: Any) -> Any:  # a request and a response of FastAPI
        reply = network(await request.body())
        return fastapi.Response(reply, media_type="application/octet-stream")

    classify.__annotations__ = {"request": fastapi.Request}  # it reads the type of the parameter
    app.post("/")(classify)
    return app


_KINDS: dict[str, Callable[[], Any]] = {  # each an ASGI application
    "echo": lambda: application(_echo),
    "torch": lambda: application(_torch()),
    "ray": lambda: application(_ray()),
    "fast": _fast,
}


if __name__ == "__main__":
    serve(_KINDS[sys.argv[1]]())
