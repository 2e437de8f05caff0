"""A program: a server that answers as the `Script` on standard input says.

It prints its port once it listens, and its `Account` as JSON after SIGTERM. One thread, one epoll,
a heap of answers that are due. It understands no more of HTTP than requests without a body, each
with a header ``x-number``.
"""

from __future__ import annotations

import heapq
import select
import signal
import socket
import sys
import time

import msgspec

from ..punctual import become_punctual, sleep_on, spin_ns
from .script import Account, Fault, Script, delays_ns

_NS = 1_000_000_000
_KNOWN_DELAYS = 200_000
_NUMBER = b"x-number: "

_OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"
_FAULTS = {
    Fault.STATUS: b"HTTP/1.1 503 Busy\r\ncontent-length: 0\r\n\r\n",
    Fault.WRONG: b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nno",
    Fault.NO_HTTP: b"good morning\r\n\r\n",
}


class ScriptedServer:
    """Reads requests, and answers each when it is due."""

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
        self._numbers: list[int] = []
        self._got_ns: list[int] = []
        self._answered_ns: list[int] = []
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
                self._stall(now)
            self._answer_due()
            self._wait()
        return Account(
            tuple(self._numbers),
            tuple(self._got_ns),
            tuple(self._answered_ns),
            tuple(self._stalls_ns),
        )

    def _stall(self, now_ns: int) -> None:
        time.sleep(self._script.stall_s)
        end = time.monotonic_ns()
        self._stalls_ns.append((now_ns, end))
        self._next_stall_ns = end + round(self._script.stall_every_s * _NS)

    def _answer_due(self) -> None:
        while self._due and self._due[0][0] <= time.monotonic_ns():
            _, got_ns, number, descriptor = heapq.heappop(self._due)
            if descriptor in self._clients:
                self._answer(number, descriptor, got_ns)

    def _answer(self, number: int, descriptor: int, got_ns: int) -> None:
        fault = self._script.faults.get(number)
        if fault is Fault.SILENCE:
            return
        if fault is Fault.CLOSE:
            self._clients.pop(descriptor).close()
            return
        now = time.monotonic_ns()  # sending wakes the client, which may well go first
        try:
            self._clients[descriptor].send(_OK if fault is None else _FAULTS[fault])
        except OSError:
            self._clients.pop(descriptor).close()
            return
        self._numbers.append(number)
        self._got_ns.append(got_ns)
        self._answered_ns.append(now)

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


def main() -> None:
    """Serve until SIGTERM, then tell."""
    server = ScriptedServer(msgspec.msgpack.decode(sys.stdin.buffer.read(), type=Script))
    signal.signal(signal.SIGTERM, server.end)
    become_punctual()
    print(server.port, flush=True)
    sys.stdout.buffer.write(msgspec.json.encode(server.serve()))


if __name__ == "__main__":
    main()
