"""A program: PyPlover's network in PyTorch, behind one of several servers.

Its first argument is the kind. It prints its port once it listens; SIGTERM ends it.

======= ========================================================================================
asgi    the raw ASGI application of `echo`, with the network in the loop's thread
fastapi the same in FastAPI
ray     the raw ASGI application in front of one actor of Ray that has the network
======= ========================================================================================

The network runs on the first NVIDIA GPU if PyTorch finds one. Weights are those of the composition
`digits`; they are on the device beforehand.
"""

from __future__ import annotations

import importlib
import socket
import sys
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, TypeAlias

import numpy as np
import uvicorn
from dandelion.compositions.digits import bundle as digits

Message: TypeAlias = MutableMapping[str, Any]  # as ASGI has it
Answer: TypeAlias = Callable[[bytes], Awaitable[bytes]]


class Network:
    """The network on the best device; called with an image [8, 8] float32, gives 10 logits."""

    def __init__(self) -> None:
        self._torch: Any = importlib.import_module("torch")  # its names exist once it is loaded
        self.device = "cuda" if self._torch.cuda.is_available() else "cpu"
        self._weights = {
            name: self._torch.from_numpy(np.array(tensor)).to(self.device)
            for name, tensor in digits.weights().items()
        }

    def __call__(self, body: bytes) -> bytes:
        torch, w = self._torch, self._weights
        functional = torch.nn.functional
        with torch.inference_mode():
            image = torch.frombuffer(bytearray(body), dtype=torch.float32).to(self.device)
            filters = w["conv_weights"].unsqueeze(1)
            maps = functional.conv2d(
                image.view(1, 1, 8, 8), filters, w["conv_bias"], padding=filters.shape[-1] // 2
            )
            pooled = functional.max_pool2d(torch.relu(maps), 2).flatten(1)
            hidden = torch.relu(functional.linear(pooled, w["hidden_weights"], w["hidden_bias"]))
            logits = functional.linear(hidden, w["output_weights"], w["output_bias"])
            data: bytes = logits.cpu().numpy().tobytes()
        return data


def asgi(answer: Answer) -> Callable[..., Awaitable[None]]:
    """Make a raw ASGI application that answers bodies."""

    async def app(
        scope: Message,
        receive: Callable[[], Awaitable[Message]],
        send: Callable[[Message], Awaitable[None]],
    ) -> None:
        parts = []
        while True:
            message = await receive()
            parts.append(message.get("body", b""))
            if not message.get("more_body"):
                break
        reply = await answer(b"".join(parts))
        length = (b"content-length", b"%d" % len(reply))
        await send({"type": "http.response.start", "status": 200, "headers": [length]})
        await send({"type": "http.response.body", "body": reply})

    return app


def in_process() -> Answer:
    """Answer in the loop's own thread: the shortest way for work of microseconds."""
    network = Network()

    async def answer(body: bytes) -> bytes:
        return network(body)

    return answer


def fastapi_app() -> Any:  # FastAPI's own class
    """Make the application in FastAPI."""
    fastapi = importlib.import_module("fastapi")
    app, network = fastapi.FastAPI(), Network()

    async def classify(request: Any) -> Any:  # a request and a response of FastAPI
        reply = network(await request.body())
        return fastapi.Response(reply, media_type="application/octet-stream")

    classify.__annotations__ = {"request": fastapi.Request}  # it reads what the parameter is
    app.post("/")(classify)
    return app


def ray_actor() -> Answer:
    """Answer by an actor of a Ray of its own."""
    ray = importlib.import_module("ray")
    ray.init(include_dashboard=False, configure_logging=False, log_to_driver=False)
    found = importlib.import_module("torch").cuda.is_available()
    actor = ray.remote(num_cpus=0, num_gpus=int(found))(Network).remote()

    async def answer(body: bytes) -> bytes:
        reply: bytes = await actor.__call__.remote(body)
        return reply

    return answer


def serve(app: Any) -> None:  # an ASGI application
    """Serve on uvicorn, set up as the node's, until a signal comes."""
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    listener.listen(2048)
    config = uvicorn.Config(
        app, loop="uvloop", http="httptools", ws="none", lifespan="off", log_level="error",
        timeout_keep_alive=75, access_log=False, server_header=False, date_header=False,
    )  # fmt: skip
    print(listener.getsockname()[1], flush=True)
    uvicorn.Server(config).run(sockets=[listener])


def main(kind: str) -> None:
    """Serve in one of the ways above."""
    ways: dict[str, Callable[[], Any]] = {  # each an ASGI application
        "asgi": lambda: asgi(in_process()),
        "fastapi": fastapi_app,
        "ray": lambda: asgi(ray_actor()),
    }
    if kind not in ways:
        raise SystemExit(f"there is no way '{kind}'")
    serve(ways[kind]())


if __name__ == "__main__":
    main(*sys.argv[1:])
