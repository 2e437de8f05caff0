"""Compute function `tally`: all scores become one report. It runs in a sandbox."""

import json
import math
import struct
from typing import Any

CLASSES = 10


def tally(logits: Any) -> dict[str, dict[str, str]]:
    """Choose a digit for each item of `logits` (float32[10]) and count the digits.

    Returns:
        set `report`: one JSON text, ``{"count": n, "digits": {"0": n, ...}, "predictions":
        [{"name": ..., "digit": d, "confidence": p}, ...]}``, predictions ordered by name;
        `confidence` is the softmax probability of the digit.
    """
    predictions = sorted((prediction(item) for item in logits), key=lambda p: p["name"])
    digits = dict.fromkeys(map(str, range(CLASSES)), 0)
    for entry in predictions:
        digits[str(entry["digit"])] += 1
    report = {"count": len(predictions), "digits": digits, "predictions": predictions}
    return {"report": {"report.json": json.dumps(report)}}


def prediction(item: Any) -> dict[str, Any]:
    """Read the scores of one image."""
    scores = struct.unpack(f"<{CLASSES}f", item.data)
    if not all(map(math.isfinite, scores)):
        raise ValueError(f"{item.name}: a score is not finite")
    best = max(scores)
    total = sum(math.exp(score - best) for score in scores)
    return {"name": item.name, "digit": scores.index(best), "confidence": 1 / total}
