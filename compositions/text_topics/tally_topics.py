"""Compute function `tally_topics`: all scores become one report. It runs in a sandbox."""

import json
import math
import struct
from typing import Any

TOPICS = ("billing", "delivery", "fault", "account", "praise")


def tally_topics(scores: Any) -> dict[str, dict[str, str]]:
    """Choose a topic for each item of `scores` (float32[1, 5]) and count the topics.

    Returns:
        set `report`: one JSON text, ``{"topics": {"billing": n, ...}, "texts": [{"name", "topic",
        "confidence"}, ...]}``, texts ordered by name.
    """
    texts = sorted((classified(item) for item in scores), key=lambda text: text["name"])
    counts = dict.fromkeys(TOPICS, 0)
    for text in texts:
        counts[text["topic"]] += 1
    return {"report": {"report.json": json.dumps({"topics": counts, "texts": texts})}}


def classified(item: Any) -> dict[str, Any]:
    """Read the scores of one text."""
    values = struct.unpack(f"<{len(TOPICS)}f", item.data)
    if not all(map(math.isfinite, values)):
        raise ValueError(f"{item.name}: a score is not finite")
    best = max(values)
    total = sum(math.exp(value - best) for value in values)
    return {"name": item.name, "topic": TOPICS[values.index(best)], "confidence": 1 / total}
