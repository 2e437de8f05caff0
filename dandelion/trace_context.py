"""W3C trace context: which span of which trace an invocation belongs to.

A request may carry a **parent**: the span of its caller (`TraceContext`). The invocation has a span
of its own below it (`InvocationSpan`), whose context goes to the response and to what the
invocation asks of other services. `Tracing` decides which spans are recorded. If the node exports
no spans, it forwards the caller's context unchanged: the id of a span that is not exported would
break the tree of the services that do.

A malformed ``traceparent`` is ignored together with ``tracestate``, as if there were none. A
malformed ``tracestate`` is dropped alone.

Source: W3C Trace Context Level 2, 3.2 (traceparent), 3.3 (tracestate), 4 (processing model).
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from typing import Any

import msgspec

STATE_LIMIT = 512
"""Characters of ``tracestate`` that are forwarded; the standard asks for that many at least."""
SAMPLED = 0x01
_RANDOM = 0x02  # the trace id was made at random
_KNOWN_FLAGS = SAMPLED | _RANDOM
_MEMBERS_LIMIT = 32
_LONG_MEMBER = 128
_STATE_INPUT_LIMIT = 32 * 1024  # more than 32 members with their spaces
_PARENT = re.compile(rb"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-[\x21-\x7e]*)?")
_MEMBER = re.compile(r"([a-z0-9][a-z0-9_\-*/@]{0,255})=([ !-+\--<>-~]{0,255}[!-+\--<>-~])")
_NO_TRACE = "0" * 32
_NO_SPAN = "0" * 16
_IDS = 64


class TraceContext(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One span, as other services name it.

    Attributes:
        traceparent: the value of the header, in the form of version 00.
        state: ``tracestate``; empty if there is none.
    """

    traceparent: str
    state: str = ""

    @classmethod
    def of(cls, trace_id: str, span_id: str, flags: int = 0, state: str = "") -> TraceContext:
        """Make one of its parts.

        Args:
            trace_id: 32 hexadecimal digits, in lower case.
            span_id: 16 of them.
            flags: `SAMPLED`, and whether the trace id is random.
            state: ``tracestate``.
        """
        return cls(f"00-{trace_id}-{span_id}-{flags:02x}", state)

    @property
    def trace_id(self) -> str:
        """32 hexadecimal digits."""
        return self.traceparent[3:35]

    @property
    def span_id(self) -> str:
        """16 hexadecimal digits."""
        return self.traceparent[36:52]

    @property
    def flags(self) -> int:
        """`SAMPLED`, and whether the trace id is random."""
        return int(self.traceparent[53:], 16)

    @property
    def sampled(self) -> bool:
        """Whether its caller records the trace."""
        return bool(self.flags & SAMPLED)

    def below(self, span_id: str) -> TraceContext:
        """Return the context of another span of the trace."""
        given = self.traceparent
        return TraceContext(given[:36] + span_id + given[52:], self.state)


class InvocationSpan(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The span of an invocation.

    Attributes:
        context: of the span; without a recorder that of the caller.
        parent_id: the caller's span; empty if the trace begins here.
        recorded: whether it is exported.
    """

    context: TraceContext
    parent_id: str = ""
    recorded: bool = False


class Tracing:
    """Begins the spans of invocations. Safe from any thread.

    Args:
        exports: whether the node exports spans.
        ratio: of the traces that begin here, the part that is recorded. Others are recorded if
            their caller records them. With 0 no trace begins here.
    """

    def __init__(self, exports: bool, ratio: float = 1.0) -> None:
        self._exports = exports
        self._bound = round(ratio * (1 << 64))
        self._always = ratio >= 1
        # For the next traces that begin here: the system is asked for many ids at once.
        self._ids: Iterator[str] = iter(())
        self._recorded: Iterator[InvocationSpan] = iter(())

    def begin(self, parent: TraceContext | None) -> InvocationSpan | None:
        """Begin the span of an invocation; None if none is recorded."""
        if not self._exports:
            return None if parent is None else InvocationSpan(parent)
        if parent is not None:
            return InvocationSpan(parent.below(new_span_id()), parent.span_id, parent.sampled)
        if self._always:
            return next(self._recorded, None) or self._more_recorded()
        if not self._bound:
            return None
        ids = next(self._ids, None) or self._more_ids()
        # As OpenTelemetry's sampler decides, so that services with equal ratios agree.
        if int(ids[16:32], 16) < self._bound:
            return InvocationSpan(TraceContext(f"00-{ids}-03"), "", True)
        return InvocationSpan(TraceContext(f"00-{ids}-02"))

    def _more_recorded(self) -> InvocationSpan:
        made = [InvocationSpan(TraceContext(f"00-{ids}-03"), "", True) for ids in _new_ids()]
        self._recorded = iter(made)
        return next(self._recorded)

    def _more_ids(self) -> str:
        self._ids = iter(_new_ids())
        return next(self._ids)


NO_TRACING = Tracing(exports=False)
"""Records nothing, and forwards what callers give."""


def _new_ids() -> list[str]:
    """Make ids of traces and their first spans, as in the header."""
    while _NO_SPAN in (digits := os.urandom(_IDS * 24).hex()):
        pass  # an id that is zero is not valid
    starts = range(0, _IDS * 48, 48)
    return [f"{digits[at : at + 32]}-{digits[at + 32 : at + 48]}" for at in starts]


def new_span_id() -> str:
    """Make an id for a span within an invocation."""
    while (span_id := os.urandom(8).hex()) == _NO_SPAN:
        pass
    return span_id


def read_trace_context(headers: list[tuple[bytes, bytes]]) -> TraceContext | None:
    """Read the caller's context from the headers of a request.

    Args:
        headers: names in lower case, in the order of arrival.
    """
    parents = [value for name, value in headers if name == b"traceparent"]
    if len(parents) != 1:
        return None
    context = parse_traceparent(parents[0].strip(b" \t"))
    if context is None:
        return None
    states = [value for name, value in headers if name == b"tracestate"]
    if not states:
        return context
    state = parse_tracestate(b",".join(states))
    return TraceContext(context.traceparent, state)


def parse_traceparent(value: bytes) -> TraceContext | None:
    """Read a ``traceparent``; None if it is malformed.

    Of a later version, the parts that version 00 has are used.
    """
    found = _PARENT.fullmatch(value)
    if found is None:
        return None
    version, trace_id, span_id, flags, rest = found.groups()
    if version == b"ff" or (version == b"00" and rest is not None):
        return None
    trace, span = trace_id.decode(), span_id.decode()
    if trace == _NO_TRACE or span == _NO_SPAN:
        return None
    return TraceContext.of(trace, span, int(flags, 16) & _KNOWN_FLAGS)


def parse_tracestate(value: bytes) -> str:
    """Read a ``tracestate``, shortened to `STATE_LIMIT`; an empty text if it is malformed.

    To shorten it, members of more than 128 characters go first, then those at the end.
    """
    if len(value) > _STATE_INPUT_LIMIT or not value.isascii():
        return ""
    members: dict[str, str] = {}
    for part in value.decode().split(","):
        member = part.strip(" \t")
        if not member:
            continue
        found = _MEMBER.fullmatch(member)
        if found is None or found[1] in members:
            return ""
        members[found[1]] = member
    if len(members) > _MEMBERS_LIMIT:
        return ""
    kept = list(members.values())
    if sum(map(len, kept)) + len(kept) > STATE_LIMIT + 1:
        kept = [member for member in kept if len(member) <= _LONG_MEMBER]
    while sum(map(len, kept)) + len(kept) > STATE_LIMIT + 1:
        kept.pop()
    return ",".join(kept)


def current_context() -> TraceContext | None:
    """Return the current span of OpenTelemetry in this program, if the program uses it.

    A program that has not imported OpenTelemetry pays for one look into a dictionary.
    """
    api: Any = sys.modules.get("opentelemetry.trace")  # Any: it need not be installed
    if api is None:
        return None
    span = api.get_current_span().get_span_context()
    if not span.is_valid:
        return None
    state = parse_tracestate(span.trace_state.to_header().encode("ascii", "replace"))
    flags = int(span.trace_flags) & _KNOWN_FLAGS
    return TraceContext.of(f"{span.trace_id:032x}", f"{span.span_id:016x}", flags, state)
