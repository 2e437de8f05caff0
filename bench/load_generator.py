"""A program: sends requests as a `LoadOrder` from standard input says, and answers with `Seen`.

One thread, one epoll. The time of an answer is when epoll told of it, before anything else was done
with it. Its memory is bounded by the number of requests, and its time by
the order: whatever a server does, there is an answer when the drain is over.
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

from .histogram import Histogram
from .load import LoadOrder, Seen, intended_times
from .load_connection import REFUSED, Connection, Message
from .punctual import become_punctual, sleep_on, spin_ns

_NS = 1_000_000_000
_START_NS = 20_000_000
_AGAIN_NS = 10_000_000
_EVENTS = 512


class Ledger:
    """What became of the requests; all of them, since what counts is known at the end."""

    def __init__(self, first_ns: int, end_ns: int) -> None:
        self._first_ns = first_ns
        self._end_ns = end_ns
        self._completed = array("q")
        self._latency = array("q")
        self._service = array("q")
        self._late = array("q")
        self.errors: Counter[str] = Counter()
        self.offered = 0
        self.queued = 0

    def counts(self, intended_ns: int) -> bool:
        """Tell whether a request that was to be sent then is not of the warm-up."""
        return intended_ns >= self._first_ns

    def sent(self, connection: Connection, could_ns: int) -> None:
        """Note that a request was sent, which could have been sent at `could_ns`."""
        if self.counts(connection.intended_ns):
            self.offered += 1
            self._late.append(connection.sent_ns - could_ns)

    def over(self, connection: Connection, now_ns: int) -> None:
        """Note that a request is answered or has failed."""
        if not connection.failure:
            self._completed.append(now_ns)
        if not self.counts(connection.intended_ns):
            return
        if connection.failure:
            self.errors[connection.failure] += 1
            return
        self._latency.append(now_ns - connection.intended_ns)
        self._service.append(now_ns - connection.sent_ns)

    def seen(self, busy: float, started_ns: int) -> Seen:
        """Sum up."""
        latency = _histogram(self._latency)
        shift_ns = int(latency.percentile(50) * 1000) if latency.count else 0
        completed = np.array(self._completed, np.int64) - shift_ns
        achieved = np.count_nonzero((completed >= self._first_ns) & (completed < self._end_ns))
        return Seen(
            offered=self.offered,
            achieved=int(achieved),
            latency=latency.as_record(),
            service=_histogram(self._service).as_record(),
            late=_histogram(self._late).as_record(),
            errors=dict(self.errors),
            queued=self.queued,
            busy=busy,
            started_ns=started_ns,
        )


def _histogram(values_ns: array[int]) -> Histogram:
    histogram = Histogram()
    for value in values_ns:
        histogram.record_ns(value)
    return histogram


class Generator(ABC):
    """Opens connections, hears of answers, and ends in time. When to send, subclasses know."""

    def __init__(self, order: LoadOrder) -> None:
        self.messages = [Message(request) for request in order.requests]
        self.started_ns = time.monotonic_ns() + _START_NS + order.connections * 100_000
        first_ns = self.started_ns + round(order.warm_up_s * _NS)
        self.end_ns: int = first_ns + round(order.seconds * _NS)
        self.deadline_ns: int = self.end_ns + round(order.drain_s * _NS)
        self.ledger = Ledger(first_ns, self.end_ns)
        self.under_way = 0
        self._spin_ns = spin_ns()
        self._poll = select.epoll()
        self._known: dict[int, Connection] = {}
        self.connections = [Connection(order.port, self._poll) for _ in range(order.connections)]
        self._idle_ns = 0

    def run(self) -> Seen:
        """Send and hear until all is over, or the time is."""
        for connection in self.connections:
            connection.open(self._known)
        now = time.monotonic_ns()
        while now < self.deadline_ns and not self.done(now):
            due_ns = self.send_due(now)
            now = self._hear(min(due_ns, self.deadline_ns))
        self._give_up(now)
        whole_ns = now - self.started_ns
        return self.ledger.seen(1 - self._idle_ns / max(whole_ns, 1), self.started_ns)

    @abstractmethod
    def done(self, now_ns: int) -> bool:
        """Tell whether nothing is left to be sent or heard of."""

    @abstractmethod
    def send_due(self, now_ns: int) -> int:
        """Send what is due; give the time at which something is due next."""

    @abstractmethod
    def freed(self, connection: Connection, now_ns: int) -> None:
        """Hear that a connection may carry its next request."""

    def unsent(self) -> int:
        """Count requests whose turn has come, or will not come, that count and were never sent."""
        return 0

    def start(
        self,
        connection: Connection,
        number: int,
        intended_ns: int | None = None,
        could_ns: int | None = None,
    ) -> None:
        """Send a request over a free connection.

        Args:
            connection: that carries it.
            number: of the request.
            intended_ns: when it was to be sent; None is now.
            could_ns: when it could have been sent; None is now.
        """
        now = time.monotonic_ns()
        connection.begin(number, now if intended_ns is None else intended_ns, now)
        self.under_way += 1
        self.ledger.sent(connection, now if could_ns is None else could_ns)
        if not connection.open(self._known):
            connection.fail(REFUSED)
            self._over(connection, connection.sent_ns)
        elif connection.send(self.messages[number % len(self.messages)]):
            self._over(connection, connection.sent_ns)

    def _over(self, connection: Connection, now_ns: int) -> None:
        self.under_way -= 1
        self.ledger.over(connection, now_ns)
        connection.number = -1
        self.freed(connection, now_ns)

    def _hear(self, due_ns: int) -> int:
        """Wait for answers, no longer than until the next request is due; give the time."""
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

    def _give_up(self, now_ns: int) -> None:
        """Count what was never answered, and close everything."""
        unanswered = self.unsent()
        self.ledger.offered += unanswered
        for connection in self.connections:
            if connection.number >= 0 and self.ledger.counts(connection.intended_ns):
                unanswered += 1
            connection.close()
        if unanswered:
            self.ledger.errors["unanswered"] += unanswered
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
        """Tell whether all were sent and all are over."""
        return self._next == len(self._times) and not self._queue and not self.under_way

    def send_due(self, now_ns: int) -> int:
        """Send all requests whose time has come, or queue them if no connection is free."""
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
                self.ledger.queued += self.ledger.counts(intended_ns)
            self._next += 1
            now_ns = time.monotonic_ns()
        return self.deadline_ns

    def freed(self, connection: Connection, now_ns: int) -> None:
        """Keep the connection for the next request."""
        connection.freed_ns = now_ns
        self._free.append(connection)

    def unsent(self) -> int:
        """Count what is queued, or was not even due."""
        left = [*self._queue, *range(self._next, len(self._times))]
        return sum(self.ledger.counts(self._times[number]) for number in left)


class ClosedLoop(Generator):
    """Sends over each connection as soon as it has answered."""

    def __init__(self, order: LoadOrder) -> None:
        super().__init__(order)
        self._number = 0
        self._ready = self.connections[::-1]
        self._again_ns: int = self.started_ns

    def done(self, now_ns: int) -> bool:
        """Tell whether the time to send is over and nothing is under way."""
        return now_ns >= self.end_ns and not self.under_way

    def send_due(self, now_ns: int) -> int:
        """Send over all connections that are free."""
        if now_ns < self._again_ns:
            return self._again_ns
        if now_ns >= self.end_ns:
            return self.deadline_ns
        ready, self._ready = self._ready, []
        while ready:
            self._start_next(ready.pop())
        # Those that are ready again have just failed, and are given some time.
        self._again_ns = time.monotonic_ns() + (_AGAIN_NS if self._ready else 0)
        return self._again_ns if self._ready else self.end_ns

    def freed(self, connection: Connection, now_ns: int) -> None:
        """Send again at once, unless the last request failed."""
        if connection.failure or now_ns >= self.end_ns:
            self._ready.append(connection)
        else:
            self._start_next(connection)

    def _start_next(self, connection: Connection) -> None:
        self._number += 1
        self.start(connection, self._number - 1)


def main() -> None:
    """Do as standard input says."""
    order = msgspec.msgpack.decode(sys.stdin.buffer.read(), type=LoadOrder)
    generator = OpenLoop(order) if order.rate_per_s else ClosedLoop(order)
    become_punctual()
    sys.stdout.buffer.write(msgspec.msgpack.encode(generator.run()))


if __name__ == "__main__":
    main()
