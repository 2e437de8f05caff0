"""The timeline that ``dandelion trace`` prints."""

from __future__ import annotations

import pytest

from dandelion.cli import trace as command
from dandelion.cli.main import main
from dandelion.traces import CallRecord, Trace


class Node:
    """A client of a node that has one trace."""

    def __init__(self, trace: Trace) -> None:
        self._trace = trace

    def __enter__(self) -> Node:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def trace(self, _id: str) -> bytes:
        return self._trace.chrome_json()


def lines(
    trace: Trace, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> list[str]:
    monkeypatch.setattr(command, "connect", lambda _: Node(trace))
    monkeypatch.setenv("COLUMNS", "300")
    assert main(["trace", "1"]) == 0
    return capsys.readouterr().out.splitlines()


def test_stages_are_those_of_their_call(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # The engine got the call of g while that of f was running, and one of g failed at once.
    ms = 1_000_000
    calls = [
        CallRecord("f", 0, "process:0", 0, 0, 4 * ms, {"sandbox": 1 * ms, "run": 3 * ms}),
        CallRecord("g", 0, "process:0", 2 * ms, 3 * ms, 9 * ms, {"run": 5 * ms, "outputs": ms}),
        CallRecord("g", 1, "process:0", 0, 5 * ms, 6 * ms, {}, error="Raised"),
        # Two calls of a batch: at the same time, with the same stages.
        CallRecord("h", 0, "opencl:cpu", 0, 9 * ms, 10 * ms, {"kernels": 1 * ms}),
        CallRecord("h", 1, "opencl:cpu", 0, 9 * ms, 10 * ms, {"kernels": 1 * ms}),
    ]
    trace = Trace("1", "all", 0, end_ns=10 * ms, outcome="ok", calls=calls)
    rows = [line.split() for line in lines(trace, monkeypatch, capsys)]
    found = [(row[0], " ".join(row[5:])) for row in rows if len(row) > 4 and ":" in row[1]]
    assert found == [
        ("f", "sandbox 1, run 3"),
        ("g", "run 5, outputs 1"),
        ("g", ""),
        ("h", "kernels 1"),
        ("h", "kernels 1"),
    ]
