"""``dandelion trace ID``: when the calls of an invocation waited and ran."""

from __future__ import annotations

from typing import Any

import msgspec

from dandelion.cli.connection import connect
from dandelion.cli.output import Output
from dandelion.cli.parser import Arguments
from dandelion.traces import STAGES

WIDTH = 40
_LIMIT = 200
_LEAST_PART = 0.02
"""Stages that are a smaller part of their call are not listed."""


def run(arguments: Arguments, out: Output) -> int:
    """Print a timeline, or write the file that Perfetto and Chrome read."""
    with connect(arguments) as client:
        data = client.trace(arguments.name)
    if arguments.output is not None:
        arguments.output.write_bytes(data)
        out.line(f"{arguments.output}: open it at ui.perfetto.dev or chrome://tracing")
    elif out.as_json:
        out.json(data)
    else:
        _show(msgspec.json.decode(data), out)
    return 0


def _show(trace: dict[str, Any], out: Output) -> None:
    events = trace["traceEvents"]
    tracks = {e["tid"]: e["args"]["name"] for e in events if e["ph"] == "M"}
    spans = [e for e in events if e["ph"] == "X"]
    calls = _with_stages(spans, tracks)
    whole_us = max(1.0, max(e["ts"] + e["dur"] for e in spans))
    rows = [
        (
            e["name"],
            tracks[e["tid"]],
            f"{e['ts'] / 1000:.3f}",
            f"{e['dur'] / 1000:.3f}",
            _bar(e["ts"] / whole_us, e["dur"] / whole_us),
            _stages_of(e, stages),
        )
        for e, stages in sorted(calls, key=lambda pair: pair[0]["ts"])[:_LIMIT]
    ]
    out.table(("what", "where", "at ms", "for ms", "time", "of that, ms"), rows)
    left = len(calls) - len(rows) + trace["otherData"].get("left_out", 0)
    if left > 0:
        out.line(f"{left} more are not shown")
    out.line(f"outcome: {trace['otherData']['outcome']}")


def _with_stages(
    spans: list[dict[str, Any]], tracks: dict[int, str]
) -> list[tuple[dict[str, Any], list[dict[str, Any]]]]:
    """Give each call its stages, which follow it in a trace.

    Their times do not show it: an engine gets its next call while one is running, and the calls of
    a batch run at the same time.
    """
    calls: list[tuple[dict[str, Any], list[dict[str, Any]]]] = []
    for span in spans:
        if tracks[span["tid"]].endswith(STAGES):
            calls[-1][1].append(span)
        else:
            calls.append((span, []))
    return calls


def _stages_of(call: dict[str, Any], stages: list[dict[str, Any]]) -> str:
    """List the stages of a call, in their order; one that took little is left out."""
    return ", ".join(
        f"{stage['name']} {stage['dur'] / 1000:.3g}"
        for stage in stages
        if stage["dur"] >= _LEAST_PART * call["dur"]
    )


def _bar(start: float, part: float) -> str:
    begin = int(start * WIDTH)
    length = max(1, round(part * WIDTH))
    return "." * begin + "#" * min(length, WIDTH - begin) + "." * (WIDTH - begin - length)
