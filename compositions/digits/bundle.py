"""Register and call `digits`; see `dandelion.compositions.Bundle`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt

from dandelion.data import Item, ItemSet, Value
from dandelion.documents import (
    FunctionDocument,
    RegistrationDocument,
    gpu_function,
    python_function,
)

from . import oracle, png

Arrays: TypeAlias = dict[str, npt.NDArray[Any]]

HERE = Path(__file__).parent
NAME = "digits"
DEFAULT_URL = "http://127.0.0.1:8000"


@dataclass(frozen=True, slots=True)
class HeldOut:
    """The images not used in training: grey values [200, 8, 8] uint8, and their digits [200]."""

    pixels: npt.NDArray[np.uint8]
    labels: npt.NDArray[np.uint8]


class Prediction(msgspec.Struct, frozen=True):
    """The network's result for one file: the digit, and its softmax probability."""

    name: str
    digit: int
    confidence: float


class Report(msgspec.Struct, frozen=True):
    """The report of `tally`: predictions ordered by file name, and the count of each digit."""

    count: int
    digits: dict[str, int]
    predictions: tuple[Prediction, ...]


@cache
def weights() -> dict[str, npt.NDArray[np.float32]]:
    """Read the tensors of the network, by name."""
    with np.load(HERE / "data" / "weights.npz") as archive:
        return {name: archive[name] for name in archive.files}


@cache
def held_out() -> HeldOut:
    """Read the held-out images."""
    with np.load(HERE / "data" / "heldout.npz") as archive:
        return HeldOut(archive["pixels"], archive["labels"])


def file_name(index: int) -> str:
    """Name the PNG file of a held-out image."""
    return f"digit-{index:03}.png"


def index_of(name: str) -> int:
    """Find the index of a held-out image by the name of its file."""
    return int(name.removeprefix("digit-").removesuffix(".png"))


def png_files() -> dict[str, bytes]:
    """Encode all held-out images, by file name, to be served."""
    return {file_name(i): png.encode(p) for i, p in enumerate(held_out().pixels)}


def classify() -> FunctionDocument:
    """Describe the GPU function `classify` with its weights."""
    sets = {n: f"{n}: float32[{', '.join(map(str, t.shape))}]" for n, t in weights().items()}
    return gpu_function(
        "classify",
        HERE / "classify.json",
        inputs=("image: float32[8, 8]", *sets.values()),
        outputs=("logits: float32[10]",),
        files={"network.c": HERE / "network.c"},
        static={name: {name: tensor.tobytes()} for name, tensor in weights().items()},
    )


def document() -> RegistrationDocument:
    """Describe `decode`, `classify`, `tally` and the composition."""
    decode = python_function(
        HERE / "decode.py",
        name="decode",
        inputs=("page",),
        outputs=("image: float32[8, 8]",),
        imports=("struct", "zlib"),
    )
    tally = python_function(
        HERE / "tally.py",
        name="tally",
        inputs=("logits: float32[10]",),
        outputs=("report",),
        imports=("json", "math", "struct"),
    )
    text = (HERE / "digits.dandelion").read_text()
    return RegistrationDocument(functions=(decode, classify(), tally), compositions=(text,))


def request(name: str, url: str) -> Item:
    """Write the HTTP request for one file of the folder `url`; the item has the file's name."""
    return Item(name, data=f"GET {url}/{name} HTTP/1.1\n\n".encode())


def example_inputs(seed: int, url: str = DEFAULT_URL, count: int | None = None) -> dict[str, Value]:
    """Request held-out images in random order.

    Args:
        seed: of the order.
        url: where `png_files` are served, without a slash at the end.
        count: how many of the 200; all by default.
    """
    order = np.random.default_rng(seed).permutation(len(held_out().labels))[:count]
    items = tuple(request(file_name(int(i)), url) for i in order)
    return {"requests": ItemSet("requests", items)}


def expected(inputs: Mapping[str, Value]) -> Arrays:
    """Return `report`: [count, 2] float64 of digit and confidence, ordered by file name."""
    indices = sorted(index_of(item.name) for item in inputs["requests"])
    images = oracle.pixels_to_images(held_out().pixels[indices])
    chances = oracle.softmax(oracle.logits(images, weights()))
    return {"report": np.column_stack((chances.argmax(axis=1), chances.max(axis=1)))}


def read_report(outputs: Mapping[str, ItemSet | None]) -> Report:
    """Read the report of an invocation.

    Raises:
        InvalidInput: there are several.
        msgspec.ValidationError: there is none, or it is not one.
    """
    found = outputs["report"]
    return msgspec.json.decode(found.bytes() if found else b"null", type=Report)


def results(outputs: Mapping[str, ItemSet | None]) -> Arrays:
    """Read the report in the form of `expected`."""
    pairs = [(p.digit, p.confidence) for p in read_report(outputs).predictions]
    return {"report": np.array(pairs, np.float64).reshape(-1, 2)}


def agrees(results: Arrays, expected: Arrays) -> bool:
    """Compare digits exactly and confidences to 1e-5."""
    got, wanted = results["report"], expected["report"]
    if got.shape != wanted.shape or not np.array_equal(got[:, 0], wanted[:, 0]):
        return False
    return bool(np.abs(got[:, 1] - wanted[:, 1]).max(initial=0.0) <= 1e-5)


def recorded_accuracy() -> float:
    """Return the held-out accuracy that training recorded, as a fraction."""
    record = json.loads((HERE / "data" / "weights.json").read_text())
    return float(record["accuracy"]["held_out"])
