"""A program: sends requests as a `LoadOrder` from standard input says, and writes a `LoadResult`.

One thread, one epoll. The time of an answer is when epoll reported it, before anything else was
done with it. Memory is bounded by the number of requests and time by the order: the program ends
when the drain is over, whatever the server does.
"""

from __future__ import annotations

import select
import sys
import time
from abc import ABC, abstractmethod
from array import array
from collections import Counter, deque

import msgspec
import numpy as np

from .load import LoadOrder, LoadResult, intended_times
from .load_connection import REFUSED, EncodedRequest, LoadConnection
from .low_latency import sleep_on, spin_ns, use_low_latency
from .samples import Samples

_NS = 1_000_000_000
_START_NS = 20_000_000
_RETRY_NS = 10_000_000
_EVENTS = 512
_LATE_SHARE = 0.2
_BUSY_SHARE = 0.9


class RequestLog:
    """Results of all requests.

    Those of the warm-up do not count. In an open loop these are the requests that were to be sent
    then; in a closed loop those that were over then, since one that is not answered at all prevents
    others.
    """

    def __init__(self, first_ns: int, end_ns: int, *, closed: bool) -> None:
        self._closed = closed
        self._first_ns = first_ns
        self._end_ns = end_ns
        self._completed, self._latency = array("q"), array("q")
        self._service, self._late = array("q"), array("q")
        self.errors: Counter[str] = Counter()
        self.offered = 0
        self.queued = 0

    def counts(self, intended_ns: int) -> bool:
        """Return whether a request that was to be sent then is not of the warm-up."""
        return intended_ns >= self._first_ns

    def lacks(self, connection: LoadConnection) -> bool:
        """Return whether a request without an answer counts."""
        return self._closed or self.counts(connection.intended_ns)

    def sent(self, connection: LoadConnection, possible_ns: int) -> None:
        """Record that a request was sent, which would have been possible at `possible_ns`."""
        if self.counts(connection.intended_ns):
            self.offered += 1
            self._late.append(connection.sent_ns - possible_ns)

    def over(self, connection: LoadConnection, now_ns: int) -> None:
        """Record that a request was answered or has failed."""
        if not connection.failure:
            self._completed.append(now_ns)
        if not self.counts(now_ns if self._closed else connection.intended_ns):
            return
        if connection.failure:
            self.errors[connection.failure] += 1
            return
        self._latency.append(now_ns - connection.intended_ns)
        self._service.append(now_ns - connection.sent_ns)

    def report(self, busy: float, started_ns: int) -> LoadResult:
        """Summarize all requests."""
        latency = _samples(self._latency)
        # In an open loop, answers of the window's requests come later; a closed loop has none then.
        shift_ns = 0 if self._closed or not latency.count else int(latency.median * 1000)
        completed = np.array(self._completed, np.int64) - shift_ns
        achieved = np.count_nonzero((completed >= self._first_ns) & (completed < self._end_ns))
        service, late = _samples(self._service), _samples(self._late)
        was_late = late.count > 0 and any(
            late.percentile(q) > _LATE_SHARE * latency.percentile(q) for q in (50, 99)
        )
        seconds = (self._end_ns - self._first_ns) / _NS
        return LoadResult(
            self.offered / seconds, int(achieved) / seconds, latency, service, dict(self.errors),
            late.percentile(99) if late.count else 0.0, seconds, was_late or busy > _BUSY_SHARE,
            self.queued, busy, started_ns,
        )  # fmt: skip


def _samples(values_ns: array[int]) -> Samples:
    return Samples([max(0, value) for value in values_ns])


class Generator(ABC):
    """Opens connections, receives answers, and ends in time. Subclasses decide when to send."""

    def __init__(self, order: LoadOrder) -> None:
        self._requests = [EncodedRequest(request) for request in order.requests]
        self.started_ns = time.monotonic_ns() + _START_NS + order.connections * 100_000
        first_ns = self.started_ns + round(order.warm_up_s * _NS)
        self.end_ns: int = first_ns + round(order.seconds * _NS)
        self.deadline_ns: int = self.end_ns + round(order.drain_s * _NS)
        self.log = RequestLog(first_ns, self.end_ns, closed=not order.rate_per_s)
        self.pending = 0
        self._spin_ns = spin_ns()
        self._poll = select.epoll()
        self._known: dict[int, LoadConnection] = {}
        self.connections = [
            LoadConnection(order.port, self._poll) for _ in range(order.connections)
        ]
        self._idle_ns = 0

    def run(self) -> LoadResult:
        """Send and receive until everything is over, or the time is."""
        for connection in self.connections:
            connection.open(self._known)
        now = time.monotonic_ns()
        while now < self.deadline_ns and not self.done(now):
            due_ns = self.send_due(now)
            now = self._receive(min(due_ns, self.deadline_ns))
        self._give_up()
        whole_ns = now - self.started_ns
        return self.log.report(1 - self._idle_ns / max(whole_ns, 1), self.started_ns)

    @abstractmethod
    def done(self, now_ns: int) -> bool:
        """Return whether nothing is left to be sent or received."""

    @abstractmethod
    def send_due(self, now_ns: int) -> int:
        """Send what is due, and return when something is due next."""

    @abstractmethod
    def freed(self, connection: LoadConnection, now_ns: int) -> None:
        """Take a connection back whose request is over."""

    def unsent(self) -> int:
        """Count requests after the warm-up that were never sent."""
        return 0

    def start(
        self, connection: LoadConnection, number: int, intended_ns: int = 0, possible_ns: int = 0
    ) -> None:
        """Send a request over a free connection.

        Args:
            connection: that carries it.
            number: of the request.
            intended_ns: when it was to be sent; 0 is now.
            possible_ns: when it could have been sent; 0 is now.
        """
        now = time.monotonic_ns()
        connection.begin(number, intended_ns or now, now)
        self.pending += 1
        self.log.sent(connection, possible_ns or now)
        if not connection.open(self._known):
            connection.fail(REFUSED)
            self._over(connection, connection.sent_ns)
        elif connection.send(self._requests[number % len(self._requests)]):
            self._over(connection, connection.sent_ns)

    def _over(self, connection: LoadConnection, now_ns: int) -> None:
        self.pending -= 1
        self.log.over(connection, now_ns)
        connection.number = -1
        self.freed(connection, now_ns)

    def _receive(self, due_ns: int) -> int:
        """Wait for answers, at most until the next request is due, and return the time."""
        before = time.monotonic_ns()
        left_ns = due_ns - before - self._spin_ns
        if left_ns > 0:
            sleep_on(self._poll, left_ns)
        events = self._poll.poll(0, _EVENTS)
        now = time.monotonic_ns()
        if (left_ns > 0 or not events) and now > self.started_ns:
            self._idle_ns += now - max(before, self.started_ns)
        for descriptor, mask in events:
            connection = self._known[descriptor]
            if connection.on_event(mask):
                self._over(connection, now)
        return now

    def _give_up(self) -> None:
        """Count what was never answered, and close everything."""
        unanswered = self.unsent()
        self.log.offered += unanswered
        for connection in self.connections:
            unanswered += connection.number >= 0 and self.log.lacks(connection)
            connection.close()
        if unanswered:
            self.log.errors["unanswered"] += unanswered
        self._poll.close()


class OpenLoop(Generator):
    """Sends at times that are fixed beforehand."""

    def __init__(self, order: LoadOrder) -> None:
        super().__init__(order)
        whole_s = order.warm_up_s + order.seconds
        times = intended_times(order.rate_per_s, whole_s, order.arrivals, order.seed)
        self._times: list[int] = (times + self.started_ns).tolist()
        self._next = 0
        self._free = self.connections[::-1]
        self._queue: deque[int] = deque()

    def done(self, now_ns: int) -> bool:
        return self._next == len(self._times) and not self._queue and not self.pending

    def send_due(self, now_ns: int) -> int:
        while self._queue and self._free:
            number, connection = self._queue.popleft(), self._free.pop()
            self.start(connection, number, self._times[number], connection.freed_ns)
        while self._next < len(self._times):
            intended_ns = self._times[self._next]
            if intended_ns > now_ns:
                return intended_ns
            if self._free:
                self.start(self._free.pop(), self._next, intended_ns, intended_ns)
            else:
                self._queue.append(self._next)
                self.log.queued += self.log.counts(intended_ns)
            self._next += 1
            now_ns = time.monotonic_ns()
        return self.deadline_ns

    def freed(self, connection: LoadConnection, now_ns: int) -> None:
        connection.freed_ns = now_ns
        self._free.append(connection)

    def unsent(self) -> int:
        left = [*self._queue, *range(self._next, len(self._times))]
        return sum(self.log.counts(self._times[number]) for number in left)


class ClosedLoop(Generator):
    """Sends over each connection as soon as it has answered."""

    def __init__(self, order: LoadOrder) -> None:
        super().__init__(order)
        self._number = 0
        self._ready = self.connections[::-1]
        self._retry_ns: int = self.started_ns

    def done(self, now_ns: int) -> bool:
        return now_ns >= self.end_ns and not self.pending

    def send_due(self, now_ns: int) -> int:
        if now_ns < self._retry_ns:
            return self._retry_ns
        if now_ns >= self.end_ns:
            return self.deadline_ns
        ready, self._ready = self._ready, []
        while ready:
            self._start_next(ready.pop())
        # Connections that are ready again have just failed, and are retried later.
        self._retry_ns = time.monotonic_ns() + (_RETRY_NS if self._ready else 0)
        return self._retry_ns if self._ready else self.end_ns

    def freed(self, connection: LoadConnection, now_ns: int) -> None:
        if connection.failure or now_ns >= self.end_ns:
            self._ready.append(connection)
        else:
            self._start_next(connection)

    def _start_next(self, connection: LoadConnection) -> None:
        self._number += 1
        self.start(connection, self._number - 1)


def main() -> None:
    """Carry out the order on standard input."""
    order = msgspec.msgpack.decode(sys.stdin.buffer.read(), type=LoadOrder)
    generator = OpenLoop(order) if order.rate_per_s else ClosedLoop(order)
    use_low_latency()
    sys.stdout.buffer.write(msgspec.msgpack.encode(generator.run()))


if __name__ == "__main__":
    main()
