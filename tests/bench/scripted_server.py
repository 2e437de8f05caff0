"""A server that answers by a script, and what a perfect client would measure of it.

The script fixes how long each request takes once the server has read it, and when the whole server
stalls: then it neither reads nor answers. `replay` computes from the script alone when each request
is answered. The server also records in an `Account` what it really did, which differs from the
script by what its machine does to it.

As a program, it reads a `Script` from standard input, prints its port once it listens, and its
`Account` as JSON after SIGTERM. It understands requests without a body, with a header
``x-number``.
"""

from __future__ import annotations

import enum
import heapq
import select
import signal
import socket
import sys
import time

import msgspec
import numpy as np
from dandelion.bench.load import HttpRequest
from dandelion.bench.low_latency import sleep_on, spin_ns, use_low_latency
from dandelion.bench.processes import ServerProcess
from numpy.typing import NDArray

_NS = 1_000_000_000
_KNOWN_DELAYS = 200_000
_NUMBER = b"x-number: "

Times = NDArray[np.int64]
"""Nanoseconds of the monotonic clock, or between two of its times."""


class Fault(enum.Enum):
    """What the server may do instead of answering."""

    CLOSE = "close"
    STATUS = "status"  # 503
    WRONG = "wrong"  # another body
    SILENCE = "silence"
    NO_HTTP = "no http"


class Script(msgspec.Struct, frozen=True):
    """How the server answers.

    Attributes:
        delays_us: what requests may take, with the share of all requests that take it.
        stall_every_s: time from the end of a stall to the next; 0 is never.
        stall_s: how long the whole server stalls.
        faults: by the number of the request.
        seed: of which request takes how long.
    """

    delays_us: tuple[tuple[float, float], ...]
    stall_every_s: float = 0.0
    stall_s: float = 0.0
    faults: dict[int, Fault] = {}
    seed: int = 1


class Account(msgspec.Struct, frozen=True):
    """What the server really did: answered requests with their times, and its stalls."""

    numbers: tuple[int, ...]
    got_ns: tuple[int, ...]
    answered_ns: tuple[int, ...]
    stalls_ns: tuple[tuple[int, int], ...]


REQUEST = HttpRequest("/", method="GET", numbered=True, expect=b"ok")
"""What the server understands."""

_OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"
_FAULTS = {
    Fault.STATUS: b"HTTP/1.1 503 Busy\r\ncontent-length: 0\r\n\r\n",
    Fault.WRONG: b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nno",
    Fault.NO_HTTP: b"good morning\r\n\r\n",
}


def scripted_server(script: Script) -> ServerProcess:
    """Start the program; its account can be read once it was stopped."""
    order = msgspec.msgpack.encode(script)
    return ServerProcess("scripted", [sys.executable, __file__], standard_input=order)


def account_of(server: ServerProcess) -> Account:
    """Stop a scripted server and read its account."""
    server.stop()
    return msgspec.json.decode(server.output().partition(b"\n")[2], type=Account)


def delays_ns(script: Script, count: int) -> Times:
    """Give how long each of the first requests takes, with the shares in every thousand of them."""
    delays, shares = np.array([(d * 1000, s) for d, s in script.delays_us]).T
    within = (np.arange(1000) + 0.5) / 1000
    places = np.searchsorted(np.cumsum(shares) / shares.sum(), within)
    thousand = delays[places].astype(np.int64)
    random = np.random.default_rng(script.seed)
    blocks = [random.permutation(thousand) for _ in range(-(-count // 1000))]
    found: Times = np.concatenate(blocks)[:count]
    return found


def replay(arrivals_ns: Times, takes_ns: Times, stalls_ns: tuple[tuple[int, int], ...]) -> Times:
    """Compute when a server answers that does exactly what the script says."""
    got = _after_stalls(arrivals_ns, stalls_ns)
    return _after_stalls(got + takes_ns, stalls_ns)


def _after_stalls(times_ns: Times, stalls_ns: tuple[tuple[int, int], ...]) -> Times:
    found = times_ns.copy()
    for begin, end in stalls_ns:
        found[(found >= begin) & (found < end)] = end
    return found


class ScriptedServer:
    """One thread, one epoll, a heap of answers that are due."""

    def __init__(self, script: Script) -> None:
        self._script = script
        self._delays: list[int] = delays_ns(script, _KNOWN_DELAYS).tolist()
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=4096)
        self._listener.setblocking(False)
        self.port = self._listener.getsockname()[1]
        self._poll = select.epoll()
        self._poll.register(self._listener.fileno(), select.EPOLLIN)
        self._clients: dict[int, socket.socket] = {}
        self._due: list[tuple[int, int, int, int]] = []  # due, got, number, descriptor
        self._next_stall_ns = 0
        self._answered: list[tuple[int, int, int]] = []  # number, got, answered
        self._stalls_ns: list[tuple[int, int]] = []
        self._spin_ns = spin_ns()
        self._ended = False

    def end(self, *_: object) -> None:
        """Stop serving; a handler of signals."""
        self._ended = True

    def serve(self) -> Account:
        """Serve until the end."""
        while not self._ended:
            now = time.monotonic_ns()
            if self._next_stall_ns and now >= self._next_stall_ns:
                time.sleep(self._script.stall_s)
                end = time.monotonic_ns()
                self._stalls_ns.append((now, end))
                self._next_stall_ns = end + round(self._script.stall_every_s * _NS)
            while self._due and self._due[0][0] <= time.monotonic_ns():
                _, got_ns, number, descriptor = heapq.heappop(self._due)
                if descriptor in self._clients:
                    self._answer(number, descriptor, got_ns)
            self._wait()
        numbers, got, answered = zip(*self._answered, strict=True) if self._answered else ((),) * 3
        return Account(numbers, got, answered, tuple(self._stalls_ns))

    def _answer(self, number: int, descriptor: int, got_ns: int) -> None:
        fault = self._script.faults.get(number)
        if fault is Fault.SILENCE:
            return
        if fault is Fault.CLOSE:
            self._clients.pop(descriptor).close()
            return
        now = time.monotonic_ns()  # sending wakes the client, which may run first
        try:
            self._clients[descriptor].send(_OK if fault is None else _FAULTS[fault])
        except OSError:
            self._clients.pop(descriptor).close()
            return
        self._answered.append((number, got_ns, now))

    def _wait(self) -> None:
        due = [self._due[0][0]] if self._due else []
        stall = [self._next_stall_ns] if self._next_stall_ns else []
        now = time.monotonic_ns()
        left_ns = min([*due, *stall, now + _NS]) - now - self._spin_ns
        if left_ns > 0:
            sleep_on(self._poll, left_ns)
        events = self._poll.poll(0, 512)
        now = time.monotonic_ns()
        for descriptor, _ in events:
            if descriptor == self._listener.fileno():
                self._accept()
            else:
                self._read(descriptor, now)

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except BlockingIOError:
                return
            client.setblocking(False)
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._clients[client.fileno()] = client
            self._poll.register(client.fileno(), select.EPOLLIN)

    def _read(self, descriptor: int, now_ns: int) -> None:
        try:
            data = self._clients[descriptor].recv(65536)
        except OSError:
            data = b""
        place = data.find(_NUMBER)
        if place < 0:
            self._clients.pop(descriptor).close()
            return
        number = int(data[place + len(_NUMBER) : data.index(b"\r", place)])
        if self._script.stall_every_s and not self._next_stall_ns:
            self._next_stall_ns = now_ns + round(self._script.stall_every_s * _NS)
        due_ns = now_ns + self._delays[number % _KNOWN_DELAYS]
        heapq.heappush(self._due, (due_ns, now_ns, number, descriptor))


if __name__ == "__main__":
    server = ScriptedServer(msgspec.msgpack.decode(sys.stdin.buffer.read(), type=Script))
    signal.signal(signal.SIGTERM, server.end)
    use_low_latency()
    print(server.port, flush=True)
    sys.stdout.buffer.write(msgspec.json.encode(server.serve()))
