"""W3C trace context: what is read, what is ignored, which spans begin."""

from __future__ import annotations

import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dandelion.trace_context import (
    NO_TRACING,
    SAMPLED,
    TraceContext,
    Tracing,
    current_context,
    parse_traceparent,
    parse_tracestate,
    read_trace_context,
)

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
PARENT = f"00-{TRACE}-{SPAN}-01"


def test_a_traceparent_is_read_and_written() -> None:
    context = parse_traceparent(PARENT.encode())
    assert context == TraceContext.of(TRACE, SPAN, 1)
    assert context.sampled
    assert context.traceparent == PARENT


@pytest.mark.parametrize(
    ("given", "flags"),
    [
        (f"00-{TRACE}-{SPAN}-00", 0),
        (f"00-{TRACE}-{SPAN}-03", 3),
        (f"00-{TRACE}-{SPAN}-ff", 3),  # flags that are not known are not forwarded
        (f"cc-{TRACE}-{SPAN}-01", 1),  # of a later version
        (f"cc-{TRACE}-{SPAN}-01-what-the-future-brings", 1),
    ],
)
def test_flags_and_later_versions(given: str, flags: int) -> None:
    context = parse_traceparent(given.encode())
    assert context is not None
    assert context.flags == flags
    assert context.traceparent == f"00-{TRACE}-{SPAN}-{flags:02x}"


@pytest.mark.parametrize(
    "given",
    [
        "",
        "00",
        PARENT.upper(),
        f"ff-{TRACE}-{SPAN}-01",
        f"00-{'0' * 32}-{SPAN}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f"00-{TRACE}-{SPAN}-01-",
        f"00-{TRACE}-{SPAN}-01-extra",
        f"cc-{TRACE}-{SPAN}-01.extra",
        f"00-{TRACE}-{SPAN}-1",
        f"00-{TRACE}-{SPAN}",
        f"0-{TRACE}-{SPAN}-01",
        f"00_{TRACE}_{SPAN}_01",
        f"00-{TRACE[:-1]}g-{SPAN}-01",
        f"00-{TRACE}-{SPAN}-01\n",
        "00-" + "٣" * 32 + f"-{SPAN}-01",
    ],
)
def test_a_malformed_traceparent_is_ignored(given: str) -> None:
    assert parse_traceparent(given.encode()) is None
    headers = [(b"traceparent", given.encode()), (b"tracestate", b"a=1")]
    assert read_trace_context(headers) is None


def test_two_traceparents_are_none() -> None:
    twice = [(b"traceparent", PARENT.encode())] * 2
    assert read_trace_context(twice) is None


def test_tracestates_are_joined_in_order() -> None:
    headers = [
        (b"tracestate", b"a=1, b@c=2 ,"),
        (b"traceparent", PARENT.encode()),
        (b"tracestate", b"\t0d*/-_=x y"),
    ]
    context = read_trace_context(headers)
    assert context is not None
    assert context.state == "a=1,b@c=2,0d*/-_=x y"


@pytest.mark.parametrize(
    "given",
    [
        "A=1",
        "=1",
        "a",
        "a=",
        "a=1,a=2",
        "a=b=c",
        "a b=1",
        "a=\x01",
        "a=é",
        "a" * 257 + "=1",
        "a=" + "x" * 257,
        ",".join(f"k{n}=1" for n in range(33)),
        "a=1," * 10_000,
    ],
)
def test_a_malformed_tracestate_is_dropped_alone(given: str) -> None:
    headers = [(b"traceparent", PARENT.encode()), (b"tracestate", given.encode())]
    assert read_trace_context(headers) == TraceContext.of(TRACE, SPAN, 1)


def test_a_long_tracestate_loses_long_members_first() -> None:
    members = [f"k{n}={'x' * 30}" for n in range(14)]
    text = ",".join([members[0], "long=" + "y" * 200, *members[1:]])
    kept = parse_tracestate(text.encode())
    assert kept == ",".join(members)
    assert parse_tracestate(",".join(members + members[:0] + ["z=" + "w" * 100]).encode()) == kept


@given(st.binary(max_size=80), st.lists(st.binary(max_size=40), max_size=3))
def test_any_bytes_are_read_or_ignored(parent: bytes, states: list[bytes]) -> None:
    headers = [(b"traceparent", parent), *((b"tracestate", s) for s in states)]
    read_trace_context(headers)


@given(st.lists(st.text("ab=, \t*@", max_size=20), max_size=4))
def test_what_is_kept_of_a_tracestate_is_read_as_the_same(parts: list[str]) -> None:
    kept = parse_tracestate(",".join(parts).encode())
    assert parse_tracestate(kept.encode()) == kept


# --- spans ----------------------------------------------------------------------------------------


def test_without_exports_the_callers_context_is_forwarded() -> None:
    assert NO_TRACING.begin(None) is None
    parent = TraceContext.of(TRACE, SPAN, SAMPLED, "a=1")
    span = NO_TRACING.begin(parent)
    assert span is not None
    assert span.context == parent
    assert not span.recorded


def test_a_span_below_its_callers_follows_its_decision() -> None:
    tracing = Tracing(exports=True, ratio=0.0)
    for flags in (0, 1):
        span = tracing.begin(TraceContext.of(TRACE, SPAN, flags, "a=1"))
        assert span is not None
        assert span.recorded == bool(flags)
        assert span.parent_id == SPAN
        assert span.context == TraceContext.of(TRACE, span.context.span_id, flags, "a=1")
        assert span.context.span_id != SPAN


@pytest.mark.parametrize(("ratio", "least", "most"), [(0, 0, 0), (1, 2000, 2000), (0.5, 800, 1200)])
def test_the_ratio_of_traces_that_begin_here(ratio: float, least: int, most: int) -> None:
    tracing = Tracing(exports=True, ratio=ratio or 1e-15)
    spans = [tracing.begin(None) for _ in range(2000)]
    recorded = 0
    for span in spans:
        assert span is not None
        assert not span.parent_id
        assert span.recorded == span.context.sampled
        assert parse_traceparent(span.context.traceparent.encode()) == span.context
        recorded += span.recorded
    assert least <= recorded <= most
    assert len({s.context.trace_id for s in spans if s}) == 2000


def test_no_trace_begins_here_without_sampling() -> None:
    assert Tracing(exports=True, ratio=0.0).begin(None) is None


def test_the_ratio_decides_as_opentelemetrys_own_sampler() -> None:
    from opentelemetry.sdk.trace.sampling import Decision, TraceIdRatioBased

    tracing, sampler = Tracing(exports=True, ratio=0.3), TraceIdRatioBased(0.3)
    for _ in range(500):
        span = tracing.begin(None)
        assert span is not None
        decided = sampler.should_sample(None, int(span.context.trace_id, 16), "x").decision
        assert span.recorded == (decided is Decision.RECORD_AND_SAMPLE)


def test_opentelemetrys_current_span_is_found() -> None:
    from opentelemetry import trace
    from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags, TraceState

    assert current_context() is None
    state = TraceState([("a", "1")])
    context = SpanContext(int(TRACE, 16), int(SPAN, 16), False, TraceFlags(1), state)
    with trace.use_span(NonRecordingSpan(context)):
        assert current_context() == TraceContext.of(TRACE, SPAN, 1, "a=1")
    assert current_context() is None


def test_a_node_does_not_load_opentelemetry() -> None:
    program = (
        "import sys, dandelion\n"
        "node = dandelion.Node(dandelion.Settings(backends=('null',)))\n"
        "node.start(); node.close()\n"
        "assert not [m for m in sys.modules if m.startswith('opentelemetry')]"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
