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
    stages = [e for e in spans if tracks[e["tid"]].endswith(STAGES)]
    spans = [e for e in spans if not tracks[e["tid"]].endswith(STAGES)]
    whole_us = max(1.0, max(e["ts"] + e["dur"] for e in spans))
    rows = [
        (
            e["name"],
            tracks[e["tid"]],
            f"{e['ts'] / 1000:.3f}",
            f"{e['dur'] / 1000:.3f}",
            _bar(e["ts"] / whole_us, e["dur"] / whole_us),
            _stages_of(e, tracks[e["tid"]] + STAGES, stages, tracks),
        )
        for e in sorted(spans, key=lambda e: e["ts"])[:_LIMIT]
    ]
    out.table(("what", "where", "at ms", "for ms", "time", "of that, ms"), rows)
    left = len(spans) - len(rows) + trace["otherData"].get("left_out", 0)
    if left > 0:
        out.line(f"{left} more are not shown")
    out.line(f"outcome: {trace['otherData']['outcome']}")


def _stages_of(
    call: dict[str, Any], track: str, stages: list[dict[str, Any]], tracks: dict[int, str]
) -> str:
    """List the stages of a call, in their order; one that took little is left out."""
    end = call["ts"] + call["dur"]
    found = [
        f"{stage['name']} {stage['dur'] / 1000:.3g}"
        for stage in stages
        if tracks[stage["tid"]] == track and call["ts"] <= stage["ts"] < end
        if stage["dur"] >= _LEAST_PART * call["dur"]
    ]
    return ", ".join(found)


def _bar(start: float, part: float) -> str:
    begin = int(start * WIDTH)
    length = max(1, round(part * WIDTH))
    return "." * begin + "#" * min(length, WIDTH - begin) + "." * (WIDTH - begin - length)
