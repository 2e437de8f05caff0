"""A program that attacks a node over HTTP for some seconds.

Each attack is a kind of work that a stranger could send to a node. What it does to others is
measured by another process; see `dandelion.bench.experiments.http_stress`.
"""

from __future__ import annotations

import contextlib
import resource
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator

import msgspec

from ..http_client import request_head
from ..processes import module

MIB = 1024 * 1024
_JSON_HEAD = b"POST /v1/invoke/F HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
_THREADS = 4
_FLOODS = 8


def command(name: str, port: int, count: int, seconds: float) -> list[str]:
    """Give the command of an attack."""
    return module("dandelion.bench.systems.attacks", name, str(port), str(count), str(seconds))


def _post(port: int, request: bytes) -> None:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port)) as peer:
        peer.sendall(request)
        while peer.recv(MIB):
            pass


def _repeat(port: int, path: str, document: object, threads: int, end: float) -> None:
    """Post a document repeatedly, each time over a new connection."""
    body = msgspec.json.encode(document)
    head = request_head(path, len(body), "application/json").removesuffix(b"\r\n")
    request = head + b"connection: close\r\n\r\n" + body

    def run() -> None:
        while time.monotonic() < end:
            _post(port, request)

    running = [threading.Thread(target=run) for _ in range(threads)]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()


def sources(port: int, count: int, end: float) -> None:
    """Register short Python sources for which a compiler takes long."""
    lines = []
    for level in range(count):
        indent = " " * level
        lines += [f"{indent}try:", f"{indent} pass", f"{indent}finally:"]
    text = "\n".join([*lines, " " * count + "x = 1"]) + "\n"
    code = {"format": "python", "main": {"text": text}}
    document = {"functions": [{"name": "G", "inputs": ["x"], "outputs": ["y"], "code": [code]}]}
    _repeat(port, "/v1/register", document, _THREADS, end)


def _flood(head: bytes, block: bytes) -> int:
    """Serve a response that never ends; gives the port."""
    server = socket.create_server(("127.0.0.1", 0), backlog=64)
    joined = block * (65536 // len(block))

    def answer(peer: socket.socket) -> None:
        with peer, contextlib.suppress(OSError):
            peer.recv(65536)
            peer.sendall(head)
            while True:
                peer.sendall(joined)

    def accept() -> None:
        while True:
            threading.Thread(target=answer, args=(server.accept()[0],), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    return server.getsockname()[1]  # type: ignore[no-any-return]  # of what getsockname gives


def _request_flood(port: int, head: bytes, block: bytes, end: float) -> None:
    """Make the node ask a server that answers for ever."""
    request = f"GET http://127.0.0.1:{_flood(head, block)}/ HTTP/1.1\n\n"
    document = {"sets": {"requests": [request]}}
    _repeat(port, "/v1/invoke/HTTP?deadline_s=3", document, _FLOODS, end)


def interim(port: int, count: int, end: float) -> None:
    """Make the node ask a server that sends ``100 Continue`` for ever."""
    _request_flood(port, b"", b"HTTP/1.1 100 Continue\r\n\r\n", end)


def chunks(port: int, count: int, end: float) -> None:
    """Make the node ask a server that sends chunks of two bytes for ever."""
    head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    _request_flood(port, head, b"2\r\nxx\r\n", end)


def _hold(first: bytes, drip: bytes) -> Callable[[int, int, float], None]:
    """Open so many connections; on each send something first, then a byte per second."""

    def attack(port: int, count: int, end: float) -> None:
        most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(most, count + 64), most))
        peers: list[socket.socket] = []
        for peer in _opened(port, count, end):
            with contextlib.suppress(OSError):
                if first:
                    peer.send(first)
                peers.append(peer)
        while time.monotonic() < end:
            began = time.monotonic()
            for peer in peers if drip else ():
                with contextlib.suppress(OSError):
                    peer.send(drip)
            time.sleep(max(0.0, min(began + 1.0, end) - time.monotonic()))

    return attack


def _opened(port: int, count: int, end: float) -> Iterator[socket.socket]:
    for number in range(count):
        if time.monotonic() > end:
            return
        source = f"127.0.{1 + number // 20_000}.1"  # one address has too few ports
        with contextlib.suppress(OSError):
            yield socket.create_connection(("127.0.0.1", port), 5.0, source_address=(source, 0))


def register_large(port: int, count: int, end: float) -> None:
    """Register a document of so many MiB."""
    _repeat(port, "/v1/register", {"libraries": {"L": {"text": "x" * (count * MIB)}}}, 1, end)


def many_strings(port: int, count: int, end: float) -> None:
    """Invoke with so many short strings."""
    _repeat(port, "/v1/invoke/F", {"sets": {"x": ["abcdefgh"] * count}}, 1, end)


def large_string(port: int, count: int, end: float) -> None:
    """Invoke with one string of so many MiB; it comes back as JSON."""
    _repeat(port, "/v1/invoke/F", {"sets": {"x": "x" * (count * MIB)}}, 1, end)


ATTACKS: dict[str, tuple[Callable[[int, int, float], None], int, int]] = {
    "hostile sources": (sources, 18, 20),
    "100 Continue for ever": (interim, 0, 0),
    "chunks of 2 bytes": (chunks, 0, 0),
    "silent connections": (_hold(b"", b""), 500, 10_000),
    "half heads": (_hold(_JSON_HEAD, b""), 500, 10_000),
    "slow heads": (_hold(b"POST /v1/invoke/F HT", b"T"), 200, 1000),
    "slow bodies": (_hold(_JSON_HEAD + b"Content-Length: 100000\r\n\r\n", b"x"), 200, 1000),
    "a large document": (register_large, 8, 57),
    "many strings": (many_strings, 500_000, 5_000_000),
    "a large string": (large_string, 8, 57),
}
"""By name: the attack, how much of it in short runs, and in full ones."""


if __name__ == "__main__":
    name, port, count, seconds = sys.argv[1:]
    ATTACKS[name][0](int(port), int(count), time.monotonic() + float(seconds))
