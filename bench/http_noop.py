"""What does a no-op over HTTP cost, against a raw ASGI application on the same server?

Two servers in processes of their own: a node with the null backend, and an ASGI application that
reads the body and answers it, both on uvicorn with uvloop and httptools. One client connection that
is kept alive, blocking socket, requests of the same size; the two are asked in turns, so that noise
falls on both. All run on one core: on a virtual machine a wake-up across cores costs more than the
request, and hits the two at random.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial

from dandelion.bench.measure import Sample, against, keep_name, report, summed_up

from dandelion.documents import CodeDocument, FunctionDocument, RegistrationDocument
from dandelion.frontend.client import Client

ROUNDS = 40
REQUESTS = 100
BODY = b"x" * 64
RAW_SERVER = """
import socket, sys, uvicorn
async def app(scope, receive, send):
    if scope["type"] != "http":
        return
    body = b""
    while True:
        message = await receive()
        body += message.get("body", b"")
        if not message.get("more_body"):
            break
    await send({"type": "http.response.start", "status": 200, "headers": [
        (b"content-type", b"application/octet-stream"), (b"content-length", b"%d" % len(body))]})
    await send({"type": "http.response.body", "body": body})
listener = socket.socket()
listener.bind(("127.0.0.1", 0))
listener.listen()
print(listener.getsockname()[1], flush=True)
config = uvicorn.Config(app, loop="uvloop", http="httptools", lifespan="off", log_level="error",
                        access_log=False)
uvicorn.Server(config).run(sockets=[listener])
"""
NODE_SERVER = """
import asyncio, uvloop
from dandelion.frontend.server import serve
from dandelion.node import Node, Settings
async def main():
    async with Node(Settings(backends=("null",))) as node:
        await serve(node, "127.0.0.1", 0, lambda host, port: print(port, flush=True))
uvloop.run(main())
"""


class Connection:
    """A kept-alive connection that knows just enough HTTP to wait for an answer."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def ask(self, request: bytes) -> bytes:
        """Send a request and wait for the whole answer; its body is given."""
        self._socket.sendall(request)
        data = b""
        while b"\r\n\r\n" not in data:
            data += self._socket.recv(65536)
        head, _, body = data.partition(b"\r\n\r\n")
        length = next(
            int(line.split(b":")[1])
            for line in head.lower().split(b"\r\n")
            if line.startswith(b"content-length:")
        )
        while len(body) < length:
            body += self._socket.recv(65536)
        if b" 200 " not in head.split(b"\r\n")[0]:
            raise SystemExit(f"the server answered {head!r} {body!r}")
        return body

    def close(self) -> None:
        """Close it."""
        self._socket.close()


def post(path: str, body: bytes, content_type: str) -> bytes:
    """Write a request."""
    return (
        f"POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: {content_type}\r\n"
        f"accept: {content_type}\r\ncontent-length: {len(body)}\r\n\r\n"
    ).encode() + body


def start(program: str) -> tuple[subprocess.Popen[str], int]:
    """Start a server; give it and its port."""
    process = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    return process, int(process.stdout.readline())


def one_round(ask: Callable[[], object], timings_us: list[float]) -> None:
    """Ask `REQUESTS` times."""
    for _ in range(REQUESTS):
        begin = time.perf_counter_ns()
        ask()
        timings_us.append((time.perf_counter_ns() - begin) / 1e3)


def measure(raw_port: int, node_port: int) -> list[Sample]:
    """Time both servers in turns."""
    null = (CodeDocument("null"),)
    document = RegistrationDocument(functions=(FunctionDocument("F", ("a",), ("b",), code=null),))
    with Client(f"http://127.0.0.1:{node_port}") as client:
        client.register(document)
    raw, node = Connection(raw_port), Connection(node_port)
    octets = "application/octet-stream"
    json = b'{"sets":{"a":"%s"}}' % BODY
    plans: dict[str, tuple[Connection, bytes]] = {
        "raw ASGI": (raw, post("/", BODY, octets)),
        "no-op, raw bytes": (node, post("/v1/invoke/F", BODY, octets)),
        "no-op, JSON": (node, post("/v1/invoke/F", json, "application/json")),
    }
    timings: dict[str, list[float]] = {name: [] for name in plans}
    for round_number in range(ROUNDS + 2):
        for name, (connection, request) in plans.items():
            kept: list[float] = timings[name] if round_number > 1 else []
            one_round(partial(connection.ask, request), kept)
    raw.close()
    node.close()
    baseline = summed_up("raw ASGI", timings["raw ASGI"])
    rest = [
        against(summed_up(name, timings[name], budget="<= 1.6x at p50"), baseline)
        for name in plans
        if name != "raw ASGI"
    ]
    return [baseline, *rest]


def main() -> None:
    """Run and print."""
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    raw, raw_port = start(RAW_SERVER)
    node, node_port = start(NODE_SERVER)
    try:
        samples = measure(raw_port, node_port)
    finally:
        for process in (raw, node):
            process.terminate()
            process.communicate()
    report("http_noop", "what does a no-op over HTTP cost?", samples, keep_name())


if __name__ == "__main__":
    main()
