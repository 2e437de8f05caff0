"""The lines that functions wrote lately, by tenant.

The loop appends one record for each call that wrote something; lines with their fields are made
on request. Each tenant has a ring of limited size, and all together too: then the tenant
with the most loses its oldest lines, so that one tenant cannot push out the lines of others.

Records are numbered by the time, in microseconds. So numbers increase after a restart, too, and
they do not say how much other tenants wrote.
"""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass, field
from typing import NamedTuple

from dandelion.call_logs import PAGE_LINES, LogLine, LogPage, PrintedLine
from dandelion.scheduler import CallState

TENANTS = 16
"""All rings together are as large as so many full ones."""
_LINE_BYTES = 200  # of a line without its text, in memory


class _Printed(NamedTuple):
    """What one call wrote. `number` is higher than that of the tenant's record before."""

    number: int
    time_s: float
    invocation: str
    function: str
    application: str
    instance: int
    attempt: int
    lines: tuple[PrintedLine, ...]
    size_bytes: int


@dataclass(slots=True)
class _Ring:
    calls: deque[_Printed] = field(default_factory=deque)
    size_bytes: int = 0
    last: int = 0

    def drop_oldest(self) -> int:
        """Drop what one call wrote; return its size."""
        size = self.calls.popleft().size_bytes
        self.size_bytes -= size
        return size


class CallLogs:
    """Keeps lines. `add` is for the node's loop, `page` for any thread.

    Args:
        tenant_bytes: how much is kept for a tenant; 0 keeps nothing.
    """

    def __init__(self, tenant_bytes: int) -> None:
        self._tenant_bytes = tenant_bytes
        self._rings: dict[str, _Ring] = {}
        self._size_bytes = 0

    def add(self, call: CallState) -> None:
        """Keep what a call wrote."""
        lines, run = call.printed, call.run
        size = _LINE_BYTES * len(lines)
        for line in lines:
            size += len(line.text)
        if size > self._tenant_bytes:
            return
        tenant = call.flow.tenant.name
        ring = self._rings.get(tenant)
        if ring is None:
            ring = self._rings[tenant] = _Ring()
        while ring.size_bytes + size > self._tenant_bytes:
            self._size_bytes -= ring.drop_oldest()
        now_ns = time.time_ns()
        ring.last = max(ring.last + 1, now_ns // 1000)  # the clock may be set back
        ring.size_bytes += size
        self._size_bytes += size
        ring.calls.append(
            _Printed(
                ring.last,
                now_ns / 1e9,
                call.invocation.id,
                call.flow.spec.name,
                run.application.id,
                run.number,
                call.attempt,
                lines,
                size,
            )
        )
        while self._size_bytes > TENANTS * self._tenant_bytes:
            self._drop_of_largest()

    def _drop_of_largest(self) -> None:
        name, largest = max(self._rings.items(), key=lambda pair: pair[1].size_bytes)
        self._size_bytes -= largest.drop_oldest()
        if not largest.calls:
            del self._rings[name]

    def page(
        self,
        tenant: str,
        function: str | None = None,
        invocation: str | None = None,
        after: int = 0,
        limit: int = PAGE_LINES,
    ) -> LogPage:
        """Give lines of a tenant; see `Node.logs`."""
        ring = self._rings.get(tenant)
        if ring is None:
            return LogPage((), max(after, 0))
        calls = list(ring.calls)  # at once, while the loop may append
        last = calls[-1].number if calls else after
        chosen: list[LogLine] = []
        for call in reversed(calls):
            if call.number <= after or len(chosen) >= limit:
                break
            if function in (None, call.function) and invocation in (None, call.invocation):
                chosen.extend(_lines(call))
        return LogPage(tuple(reversed(chosen[: max(limit, 0)])), max(last, after))


def _lines(call: _Printed) -> list[LogLine]:
    """Make the lines of a call, last one first."""
    second = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(call.time_s))
    when = f"{second}.{int(call.time_s * 1000) % 1000:03d}Z"
    head = (when, call.invocation, call.function, call.application, call.instance)
    return [
        LogLine(*head, line.stream, line.text, line.level, call.attempt)
        for line in reversed(call.lines)
    ]
