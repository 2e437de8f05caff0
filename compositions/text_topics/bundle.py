"""Register and call `text_topics`; see `dandelion.compositions.Bundle`."""

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

from .messages import write
from .tally_topics import TOPICS
from .tokenise_text import LENGTH

Arrays: TypeAlias = dict[str, npt.NDArray[Any]]

HERE = Path(__file__).parent
NAME = "text_topics"
EXAMPLE_COUNT = 40
EXAMPLE_SEED = 5


def vocabulary() -> bytes:
    """Read the word pieces, one in each line."""
    return (HERE / "data" / "vocabulary.txt").read_bytes()


def classify() -> FunctionDocument:
    """Read the GPU function `classify_text`, which was exported from torch."""
    data = (HERE / "data" / "classify_text.json").read_bytes()
    (function,) = msgspec.json.decode(data, type=RegistrationDocument).functions
    return function


def document() -> RegistrationDocument:
    """Describe `tokenise_text`, `classify_text`, `tally_topics` and the composition."""
    tokenise = python_function(
        HERE / "tokenise_text.py",
        name="tokenise_text",
        inputs=("text", "vocabulary"),
        outputs=(f"ids: int64[1, {LENGTH}]",),
        imports=("re", "struct"),
        static={"vocabulary": {"vocabulary.txt": vocabulary()}},
    )
    tally = python_function(
        HERE / "tally_topics.py",
        name="tally_topics",
        inputs=(f"scores: float32[1, {len(TOPICS)}]",),
        outputs=("report",),
        imports=("json", "math", "struct"),
    )
    text = (HERE / "text_topics.dandelion").read_text()
    return RegistrationDocument(functions=(tokenise, classify(), tally), compositions=(text,))


@cache
def texts() -> tuple[str, ...]:
    """Messages of the example."""
    return tuple(write(EXAMPLE_COUNT, EXAMPLE_SEED)[0])


def example_inputs(seed: int, count: int | None = None) -> dict[str, Value]:
    """Give messages in random order.

    Args:
        seed: of the order.
        count: how many of the 40; all by default.
    """
    order = np.random.default_rng(seed).permutation(EXAMPLE_COUNT)[:count]
    items = (Item(f"text-{index:03}", data=texts()[int(index)].encode()) for index in order)
    return {"texts": ItemSet("texts", tuple(items))}


@cache
def expected_scores() -> npt.NDArray[np.float64]:
    """Scores of all messages, computed by torch in double precision: [40, 5]."""
    return np.array(json.loads((HERE / "data" / "expected.json").read_text())["scores"])


def expected(inputs: Mapping[str, Value]) -> Arrays:
    """Return `report`: [count, 2] of topic and confidence, ordered by name."""
    names = sorted(item.name for item in inputs["texts"])
    scores = expected_scores()[[int(name[5:]) for name in names]]
    shares = np.exp(scores - scores.max(1, keepdims=True))
    return {"report": np.column_stack((scores.argmax(1), 1 / shares.sum(1)))}


def results(outputs: Mapping[str, ItemSet | None]) -> Arrays:
    """Read the report in the form of `expected`."""
    found = outputs["report"]
    texts = json.loads(found.bytes())["texts"] if found else []
    pairs = [(TOPICS.index(text["topic"]), text["confidence"]) for text in texts]
    return {"report": np.array(pairs, np.float64).reshape(-1, 2)}


def agrees(results: Arrays, expected: Arrays) -> bool:
    """Compare topics exactly and confidences to 1e-4."""
    got, wanted = results["report"], expected["report"]
    if got.shape != wanted.shape or not np.array_equal(got[:, 0], wanted[:, 0]):
        return False
    return bool(np.abs(got[:, 1] - wanted[:, 1]).max(initial=0.0) <= 1e-4)
