"""Compute function `tally_tags`: all scores become one report. It runs in a sandbox."""

import json
import math
import struct
from typing import Any

TAGS = ("circle", "square", "triangle", "stripes", "checkers", "plain")


def tally_tags(scores: Any) -> dict[str, dict[str, str]]:
    """Choose a tag for each item of `scores` (float32[1, 6]) and count the tags.

    Returns:
        set `report`: one JSON text, ``{"tags": {"circle": n, ...}, "photos": [{"name", "tag",
        "confidence"}, ...]}``, photos ordered by name.
    """
    photos = sorted((tagged(item) for item in scores), key=lambda photo: photo["name"])
    counts = dict.fromkeys(TAGS, 0)
    for photo in photos:
        counts[photo["tag"]] += 1
    return {"report": {"report.json": json.dumps({"tags": counts, "photos": photos})}}


def tagged(item: Any) -> dict[str, Any]:
    """Read the scores of one photo."""
    values = struct.unpack(f"<{len(TAGS)}f", item.data)
    if not all(map(math.isfinite, values)):
        raise ValueError(f"{item.name}: a score is not finite")
    best = max(values)
    total = sum(math.exp(value - best) for value in values)
    return {"name": item.name, "tag": TAGS[values.index(best)], "confidence": 1 / total}
