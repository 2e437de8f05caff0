"""docs/observability.md: the settings and metrics that it names exist."""

import re
from pathlib import Path

from dandelion.settings import Settings

TEXT = (Path(__file__).resolve().parent.parent.parent / "docs" / "observability.md").read_text()


def test_settings_and_metrics_exist() -> None:
    for name in re.findall(r"`((?:otlp|keep|log|access)_[a-z]+)`", TEXT):
        assert hasattr(Settings(), name), name
    metrics = set(re.findall(r"`(dandelion_[a-z_]+_total)`", TEXT))
    assert metrics == {
        "dandelion_trace_spans_exported_total",
        "dandelion_trace_spans_dropped_total",
        "dandelion_access_log_dropped_total",
    }
