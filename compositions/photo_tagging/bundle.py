"""Register and call `photo_tagging`; see `dandelion.compositions.Bundle`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt

from dandelion.data import Item, ItemSet, Value
from dandelion.documents import FunctionDocument, RegistrationDocument, python_function

from .pictures import TAGS, draw, encode

Arrays: TypeAlias = dict[str, npt.NDArray[Any]]

HERE = Path(__file__).parent
NAME = "photo_tagging"
DEFAULT_URL = "http://127.0.0.1:8000"
EXAMPLE_COUNT = 48
EXAMPLE_SEED = 5


def tag() -> FunctionDocument:
    """Read the GPU function `tag`, which was exported from torch."""
    data = (HERE / "data" / "tag.json").read_bytes()
    (function,) = msgspec.json.decode(data, type=RegistrationDocument).functions
    return function


def document() -> RegistrationDocument:
    """Describe `decode_photo`, `tag`, `tally_tags` and the composition."""
    decode = python_function(
        HERE / "decode_photo.py",
        name="decode_photo",
        inputs=("page",),
        outputs=("image: float32[1, 3, 32, 32]",),
        imports=("struct", "zlib"),
    )
    tally = python_function(
        HERE / "tally_tags.py",
        name="tally_tags",
        inputs=(f"scores: float32[1, {len(TAGS)}]",),
        outputs=("report",),
        imports=("json", "math", "struct"),
    )
    text = (HERE / "photo_tagging.dandelion").read_text()
    return RegistrationDocument(functions=(decode, tag(), tally), compositions=(text,))


def file_name(index: int) -> str:
    """Name the PNG file of a picture of the example."""
    return f"photo-{index:03}.png"


def png_files() -> dict[str, bytes]:
    """Encode all pictures of the example, by file name, to be served."""
    pictures, _ = draw(EXAMPLE_COUNT, EXAMPLE_SEED)
    return {file_name(index): encode(pixels) for index, pixels in enumerate(pictures)}


def example_inputs(seed: int, url: str = DEFAULT_URL, count: int | None = None) -> dict[str, Value]:
    """Request pictures in random order.

    Args:
        seed: of the order.
        url: where `png_files` are served, without a slash at the end.
        count: how many of the 48; all by default.
    """
    order = np.random.default_rng(seed).permutation(EXAMPLE_COUNT)[:count]
    names = [file_name(int(index)) for index in order]
    items = (Item(name, data=f"GET {url}/{name} HTTP/1.1\n\n".encode()) for name in names)
    return {"requests": ItemSet("requests", tuple(items))}


@cache
def expected_scores() -> npt.NDArray[np.float64]:
    """Scores of all pictures, computed by torch in double precision: [48, 6]."""
    return np.array(json.loads((HERE / "data" / "expected.json").read_text())["scores"])


def expected(inputs: Mapping[str, Value]) -> Arrays:
    """Return `report`: [count, 2] of tag and confidence, ordered by file name."""
    names = sorted(item.name for item in inputs["requests"])
    scores = expected_scores()[[int(name[6:9]) for name in names]]
    shares = np.exp(scores - scores.max(1, keepdims=True))
    return {"report": np.column_stack((scores.argmax(1), 1 / shares.sum(1)))}


def results(outputs: Mapping[str, ItemSet | None]) -> Arrays:
    """Read the report in the form of `expected`."""
    found = outputs["report"]
    photos = json.loads(found.bytes())["photos"] if found else []
    pairs = [(TAGS.index(photo["tag"]), photo["confidence"]) for photo in photos]
    return {"report": np.array(pairs, np.float64).reshape(-1, 2)}


def agrees(results: Arrays, expected: Arrays) -> bool:
    """Compare tags exactly and confidences to 1e-4."""
    got, wanted = results["report"], expected["report"]
    if got.shape != wanted.shape or not np.array_equal(got[:, 0], wanted[:, 0]):
        return False
    return bool(np.abs(got[:, 1] - wanted[:, 1]).max(initial=0.0) <= 1e-4)
