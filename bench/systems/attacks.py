"""A program that attacks a node over HTTP for some seconds.

Each attack stands for a kind of work that a stranger could give a node. It prints nothing; what it
does to others is measured by another process, see `dandelion.bench.experiments.health`.
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

from ..systems.servers import module

MIB = 1024 * 1024
_HEAD = b"POST /v1/invoke/F HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
_THREADS = 4
_FLOODS = 8


def command(name: str, port: int, count: int, seconds: float) -> list[str]:
    """Give the command of an attack."""
    return module("dandelion.bench.systems.attacks", name, str(port), str(count), str(seconds))


def _posted(port: int, path: str, body: bytes) -> None:
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    head += f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port)) as peer:
        peer.sendall(head.encode() + body)
        while peer.recv(MIB):
            pass


def _repeated(act: Callable[[], None], threads: int, end: float) -> None:
    def run() -> None:
        while time.monotonic() < end:
            act()

    running = [threading.Thread(target=run) for _ in range(threads)]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()


def sources(port: int, count: int, end: float) -> None:
    """Register short Python sources that a compiler takes long for."""
    lines = []
    for level in range(count):
        indent = " " * level
        lines += [f"{indent}try:", f"{indent} pass", f"{indent}finally:"]
    text = "\n".join([*lines, " " * count + "x = 1"]) + "\n"
    code = {"format": "python", "main": {"text": text}}
    document = {"functions": [{"name": "G", "inputs": ["x"], "outputs": ["y"], "code": [code]}]}
    body = msgspec.json.encode(document)
    _repeated(lambda: _posted(port, "/v1/register", body), _THREADS, end)


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


def _called(port: int, flood: int, end: float) -> None:
    request = f"GET http://127.0.0.1:{flood}/ HTTP/1.1\n\n"
    body = msgspec.json.encode({"sets": {"requests": [request]}})
    _repeated(lambda: _posted(port, "/v1/invoke/HTTP?deadline_s=3", body), _FLOODS, end)


def interim(port: int, count: int, end: float) -> None:
    """Have the node ask a server that sends ``100 Continue`` for ever."""
    _called(port, _flood(b"", b"HTTP/1.1 100 Continue\r\n\r\n"), end)


def chunks(port: int, count: int, end: float) -> None:
    """Have the node ask a server that sends chunks of two bytes for ever."""
    head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    _called(port, _flood(head, b"2\r\nxx\r\n"), end)


def _held(port: int, count: int, first: bytes, drip: bytes, end: float) -> None:
    """Hold so many connections; on each send something first, then a byte a second."""
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


def _opened(port: int, count: int, end: float) -> Iterator[socket.socket]:
    for number in range(count):
        if time.monotonic() > end:
            return
        source = f"127.0.{1 + number // 20_000}.1"  # ports of one address run out
        with contextlib.suppress(OSError):
            yield socket.create_connection(("127.0.0.1", port), 5.0, source_address=(source, 0))


def silent(port: int, count: int, end: float) -> None:
    """Open connections and send nothing."""
    _held(port, count, b"", b"", end)


def half_heads(port: int, count: int, end: float) -> None:
    """Send half a head on each."""
    _held(port, count, _HEAD, b"", end)


def slow_heads(port: int, count: int, end: float) -> None:
    """Send a head at a byte a second."""
    _held(port, count, b"POST /v1/invoke/F HT", b"T", end)


def slow_bodies(port: int, count: int, end: float) -> None:
    """Send a body at a byte a second."""
    _held(port, count, _HEAD + b"Content-Length: 100000\r\n\r\n", b"x", end)


def register_large(port: int, count: int, end: float) -> None:
    """Register a document of so many MiB."""
    document = {"libraries": {"L": {"text": "x" * (count * MIB)}}}
    body = msgspec.json.encode(document)
    _repeated(lambda: _posted(port, "/v1/register", body), 1, end)


def many_strings(port: int, count: int, end: float) -> None:
    """Invoke with so many short strings."""
    body = msgspec.json.encode({"sets": {"x": ["abcdefgh"] * count}})
    _repeated(lambda: _posted(port, "/v1/invoke/F", body), 1, end)


def large_string(port: int, count: int, end: float) -> None:
    """Invoke with one string of so many MiB; it comes back as JSON."""
    body = msgspec.json.encode({"sets": {"x": "x" * (count * MIB)}})
    _repeated(lambda: _posted(port, "/v1/invoke/F", body), 1, end)


ATTACKS: dict[str, tuple[Callable[[int, int, float], None], int, int]] = {
    "hostile sources": (sources, 18, 20),
    "100 Continue for ever": (interim, 0, 0),
    "chunks of 2 bytes": (chunks, 0, 0),
    "silent connections": (silent, 500, 10_000),
    "half heads": (half_heads, 500, 10_000),
    "slow heads": (slow_heads, 200, 1000),
    "slow bodies": (slow_bodies, 200, 1000),
    "a large document": (register_large, 8, 57),
    "many strings": (many_strings, 500_000, 5_000_000),
    "a large string": (large_string, 8, 57),
}
"""By name: the attack, how much of it in short runs, and in full ones."""


def main(arguments: list[str]) -> int:
    """Attack."""
    name, port, count, seconds = arguments
    ATTACKS[name][0](int(port), int(count), time.monotonic() + float(seconds))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
