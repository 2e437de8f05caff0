"""The examples of docs/observability.md run, and print what they say."""

import re
from pathlib import Path

import pytest

from dandelion.settings import Settings

TEXT = (Path(__file__).resolve().parent.parent.parent / "docs" / "observability.md").read_text()


def test_the_examples(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    blocks = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)
    assert len(blocks) == 3
    path = tmp_path / "example.py"  # the source of a function is read from its file
    path.write_text("\n".join(blocks))
    exec(compile(path.read_text(), str(path), "exec"), {"__name__": "example"})
    assert capsys.readouterr().out.splitlines() == [
        "hello world",
        'dandelion_invocations_total{outcome="ok",tenant="default"} 1.0',
        "stdout  greeting world",
        "logging warning be polite",
    ]


def test_settings_and_metrics_exist() -> None:
    for name in re.findall(r"`((?:otlp|keep|log|access)_[a-z]+)`", TEXT):
        assert hasattr(Settings(), name), name
    metrics = set(re.findall(r"`(dandelion_[a-z_]+_total)`", TEXT))
    assert metrics == {
        "dandelion_trace_spans_exported_total",
        "dandelion_trace_spans_dropped_total",
        "dandelion_access_log_dropped_total",
    }
