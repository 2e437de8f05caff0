"""Compute function `classify_picture`: is a picture worth keeping? It runs in a sandbox.

A picture is a binary PGM file ("P5") with one byte a pixel.

Source: PGM format specification (Netpbm), https://netpbm.sourceforge.net/doc/pgm.html.
"""

import json
import re
from typing import Any

from dandelion.data import Item

DARK, BRIGHT = 32, 223
PIXEL_LIMIT = 1 << 24
# Numbers are separated by white space, which may contain comments; one white space ends the header.
GAP = rb"(?:\s|#[^\n]*\n)+"
HEADER = re.compile(rb"P5" + GAP + rb"(\d{1,9})" + GAP + rb"(\d{1,9})" + GAP + rb"(\d{1,9})\s")


def classify(picture: Any) -> dict[str, Any]:
    """Keep a picture whose mean grey value is in 32..223.

    Returns:
        set `kept`: the unchanged picture, or set `rejected`: one JSON text, ``{"why": "dark" or
        "bright", "mean": grey value}``. Name and key are the picture's.
    """
    item = picture.only()
    pixels = grey_pixels(item)
    mean = sum(pixels) / len(pixels)
    if DARK <= mean <= BRIGHT:
        return {"kept": picture}
    why = "dark" if mean < DARK else "bright"
    text = json.dumps({"why": why, "mean": round(mean, 2)})
    return {"rejected": [Item(item.name, item.key, text.encode())]}


def grey_pixels(item: Any) -> bytes:
    """Read the grey values of a picture, all rows from the top."""
    data: bytes = item.bytes()
    header = HEADER.match(data)
    if header is None:
        raise ValueError(f"picture {item.key} ({item.name}) is not binary PGM: {data[:8]!r}")
    width, height, largest = map(int, header.groups())
    pixels = data[header.end() :]
    if largest != 255 or not 0 < width * height <= PIXEL_LIMIT:
        raise ValueError(f"picture {item.key} ({item.name}): {width} x {height} up to {largest}")
    if len(pixels) != width * height:
        raise ValueError(
            f"picture {item.key} ({item.name}) has {len(pixels)} pixels, not {width} x {height}"
        )
    return pixels
