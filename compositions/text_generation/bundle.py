"""Register and call `text_generation`; see `dandelion.compositions.Bundle`."""

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

from .texts import LAYERS, LENGTH, VOCABULARY, WIDTH

Arrays: TypeAlias = dict[str, npt.NDArray[Any]]

HERE = Path(__file__).parent
NAME = "text_generation"
IMPORTS = ("array", "json", "math", "random")
PROMPTS = {
    "text-0": "my keyboard ",
    "text-1": "hello, i cannot ",
    "text-2": "where is ",
    "text-3": "good morning, the battery ",
    "text-4": "i love ",
    "text-5": "please help: ",
    "text-6": "the invoice ",
    "text-7": "f",
}
OPTIONS: tuple[dict[str, float], ...] = ({}, {"temperature": 0.7, "seed": 1})


def write_character() -> FunctionDocument:
    """Read the GPU function `write_character`, which was exported from torch."""
    data = (HERE / "data" / "write_character.json").read_bytes()
    (function,) = msgspec.json.decode(data, type=RegistrationDocument).functions
    return function


def document() -> RegistrationDocument:
    """Describe `start_text`, `write_character`, `end_text` and the compositions."""
    stored = f"float32[1, {LAYERS}, {LENGTH}, {WIDTH}]"
    start = python_function(
        HERE / "texts.py",
        name="start_text",
        inputs=("prompt", "options"),
        outputs=(
            f"text: int64[1, {LENGTH}]",
            f"noise: float32[1, {LENGTH}, {VOCABULARY}]",
            "position: int64[1]",
            f"keys: {stored}",
            f"values: {stored}",
        ),
        imports=IMPORTS,
    )
    end = python_function(
        HERE / "texts.py",
        name="end_text",
        inputs=(f"text: int64[1, {LENGTH}]",),
        outputs=("text",),
        imports=IMPORTS,
    )
    text = (HERE / "text_generation.dandelion").read_text()
    return RegistrationDocument(functions=(start, write_character(), end), compositions=(text,))


def example_inputs(seed: int) -> dict[str, Value]:
    """Give prompts in random order; with odd seeds, letters are drawn at random."""
    order = np.random.default_rng(seed).permutation(len(PROMPTS))
    prompts = list(PROMPTS.items())
    items = (Item(name, data=text.encode()) for name, text in (prompts[int(i)] for i in order))
    options = OPTIONS[seed % 2]
    return {
        "prompts": ItemSet("prompts", tuple(items)),
        "options": json.dumps(options).encode(),
    }


@cache
def expected_texts() -> list[dict[str, str]]:
    """Texts for each of `OPTIONS` and prompts, computed by torch in double precision."""
    found: list[dict[str, str]] = json.loads((HERE / "data" / "expected.json").read_text())
    return found


def expected(inputs: Mapping[str, Value]) -> Arrays:
    """Return `texts`: [count] of str, ordered by name."""
    options = json.loads(bytes(inputs["options"]))
    texts = expected_texts()[OPTIONS.index(options)]
    return {
        "texts": np.array([texts[name] for name in sorted(item.name for item in inputs["prompts"])])
    }


def results(outputs: Mapping[str, ItemSet | None]) -> Arrays:
    """Read the texts in the form of `expected`."""
    items = sorted(outputs["texts"] or (), key=lambda item: item.name)
    return {"texts": np.array([bytes(item.data).decode() for item in items])}


def agrees(results: Arrays, expected: Arrays) -> bool:
    """Compare every character."""
    return np.array_equal(results["texts"], expected["texts"])
