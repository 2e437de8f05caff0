"""Servers for the tests of stores: redis, an S3 service, and a proxy that breaks connections.

Each runs on loopback or a socket in a temporary folder, and is ended with the test.
"""

from __future__ import annotations

import contextlib
import importlib.util
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

KEY_ID = "AKIDEXAMPLEOFTESTS"
SECRET = "s3cr3t-of-the-tests/abc"
PASSWORD = "pa55word-of-the-tests"


@contextlib.contextmanager
def redis_server(folder: Path, *options: str) -> Iterator[Path]:
    """Run a redis server on a socket; skip if it is not installed."""
    program = shutil.which("redis-server")
    if program is None:
        pytest.skip("redis-server is missing: apt-get install redis-server")
    path = folder / "redis.sock"
    given = ["--port", "0", "--unixsocket", str(path), "--save", "", "--dir", str(folder)]
    process = subprocess.Popen(
        [program, *given, *options], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        wait_for(lambda: answers(path), process)
        yield path
    finally:
        process.kill()
        process.wait()


def answers(path: Path) -> bool:
    """Tell whether a redis server takes connections."""
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as client:
        client.connect(str(path))
        client.sendall(b"PING\r\n")
        return bool(client.recv(64))
    return False


_MOTO = """
import sys
from moto.server import ThreadedMotoServer
server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
server.start()
print(server.get_host_and_port()[1], flush=True)
sys.stdin.read()
server.stop()
"""


@contextlib.contextmanager
def s3_server() -> Iterator[str]:
    """Run an S3 service in a process of its own; give its URL."""
    if importlib.util.find_spec("moto") is None:
        pytest.skip("moto is missing: pip install 'moto[server]'")
    with subprocess.Popen(
        [sys.executable, "-c", _MOTO],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as process:
        try:
            assert process.stdout is not None
            port = process.stdout.readline().strip()
            assert port, "the S3 service did not start"
            yield f"http://127.0.0.1:{port}"
        finally:
            process.kill()


def wait_for(condition: Callable[[], bool], process: subprocess.Popen[bytes]) -> None:
    """Wait until a server answers; its start raises no event that could be waited for."""
    end = time.monotonic() + 20
    while not condition():
        assert process.poll() is None, "the server ended"
        assert time.monotonic() < end, "the server does not answer"
        time.sleep(0.01)


@dataclass
class Faults:
    """What a `fault_proxy` does with the connections that are made next.

    Attributes:
        refuse: how many connections are closed at once.
        cut_after: close a connection after so many bytes of answers; None never.
        silent: forward nothing to the client.
        drip_s: wait so long before each byte that is forwarded to the client.
        answer: instead of connecting, send this to each client after its first bytes.
        then: after `answer` was sent so often, forward again.
    """

    refuse: int = 0
    cut_after: int | None = None
    silent: bool = False
    drip_s: float = 0.0
    answer: bytes = b""
    then: int = 1 << 30
    connections: int = 0
    arrived: threading.Event = field(default_factory=threading.Event)


@dataclass
class FaultProxy:
    """A proxy between a client and a server, with faults."""

    port: int
    faults: Faults
    listener: socket.socket
    target: tuple[str, int] | str
    open: set[socket.socket] = field(default_factory=set)
    threads: list[threading.Thread] = field(default_factory=list)
    ended: threading.Event = field(default_factory=threading.Event)

    def accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client = self.listener.accept()[0]
                self.faults.connections += 1
                if self.faults.refuse:
                    self.faults.refuse -= 1
                    client.close()
                    continue
                self.open.add(client)
                self._start(self._serve, client)

    def _start(self, target: Callable[..., None], *arguments: socket.socket) -> None:
        thread = threading.Thread(target=target, args=arguments, daemon=True)
        self.threads.append(thread)
        thread.start()

    def _serve(self, client: socket.socket) -> None:
        faults = self.faults
        with contextlib.suppress(OSError), client:
            if faults.answer and faults.then:
                client.recv(65536)
                faults.then -= 1
                faults.arrived.set()
                client.sendall(faults.answer)
                return
            family = socket.AF_UNIX if isinstance(self.target, str) else socket.AF_INET
            with socket.socket(family) as server:
                server.connect(self.target)
                self.open.add(server)
                self._start(self._forward, client, server)
                try:
                    self._answer(client, server)
                finally:  # closing alone says nothing while the other thread reads
                    client.shutdown(socket.SHUT_RDWR)
                    server.shutdown(socket.SHUT_RDWR)

    def _forward(self, client: socket.socket, server: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := client.recv(65536):
                self.faults.arrived.set()
                server.sendall(data)
            server.shutdown(socket.SHUT_RDWR)

    def _answer(self, client: socket.socket, server: socket.socket) -> None:
        sent = 0
        while data := server.recv(65536):
            faults = self.faults
            if faults.silent:
                continue
            if faults.cut_after is not None and sent + len(data) > faults.cut_after:
                client.sendall(data[: faults.cut_after - sent])
                return
            if faults.drip_s:
                for byte in data:
                    if self.ended.wait(faults.drip_s):
                        return
                    client.sendall(bytes([byte]))
            else:
                client.sendall(data)
            sent += len(data)

    def close(self) -> None:
        self.ended.set()
        self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()
        for one in list(self.open):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()
        for thread in self.threads:
            thread.join(20)


@contextlib.contextmanager
def fault_proxy(target: tuple[str, int] | str) -> Iterator[FaultProxy]:
    """Run a proxy in front of a server, which is an address or the path of a socket."""
    listener = socket.create_server(("127.0.0.1", 0))
    proxy = FaultProxy(listener.getsockname()[1], Faults(), listener, target)
    accepting = threading.Thread(target=proxy.accept, daemon=True)
    accepting.start()
    try:
        yield proxy
    finally:
        proxy.close()
        accepting.join(20)
