"""Experiments that run briefly."""

from __future__ import annotations

from typing import Any

from dandelion.bench.experiments import (
    data_path,
    dispatcher,
    http_calls,
    language,
    sandboxes,
    zeroing,
)
from dandelion.bench.records import Panel
from dandelion.bench.samples import Samples
from dandelion.bench.timing import in_turns

MODULES = (data_path, dispatcher, http_calls, language, sandboxes, zeroing)


def briefly(actions: Any, *, count: int, **others: Any) -> dict[str, Samples]:
    """Time so little that a test takes no time."""
    others |= {"warm_up": 1, "block": 1, "seconds": None}
    found: dict[str, Samples] = in_turns(actions, count=min(count, 3), **others)
    return found


def samples(*values_us: float) -> Samples:
    return Samples.of_us(values_us)


def p50(panel: Panel, system: str, x: float | str) -> float:
    return next(r.values["p50"] for r in panel.rows if (r.system, r.x) == (system, x))
