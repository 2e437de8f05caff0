"""Register and call `compression`; see `dandelion.compositions.Bundle`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from dandelion.data import ItemSet, Value
from dandelion.documents import CodeDocument, Content, FunctionDocument, RegistrationDocument

from .oracle import draw, from_png, from_qoi, to_qoi

Arrays: TypeAlias = dict[str, npt.NDArray[Any]]

HERE = Path(__file__).parent
NAME = "compression"
FORMATS = ("elf", "wasm", "python")
"""The function's code objects, the fastest first; they return the same bytes."""


def code(kind: str) -> CodeDocument:
    """Describe one code object: ``elf``, ``wasm`` or ``python``."""
    if kind == "python":
        return CodeDocument(kind, (HERE / "compress.py").read_text(), options={"entry": "compress"})
    return CodeDocument(kind, Content(data=(HERE / f"compress.{kind}").read_bytes()))


def function(formats: Iterable[str] = FORMATS) -> FunctionDocument:
    """Describe the function `compress` with code objects of these formats."""
    return FunctionDocument("compress", ("qoi",), ("png",), code=tuple(map(code, formats)))


def document(formats: Iterable[str] = FORMATS) -> RegistrationDocument:
    """Describe the function `compress` and the composition."""
    text = (HERE / "compression.dandelion").read_text()
    return RegistrationDocument(functions=(function(formats),), compositions=(text,))


def example_inputs(
    seed: int, count: int = 3, width: int = 61, height: int = 48
) -> dict[str, Value]:
    """Draw images in QOI, alternating between three and four channels."""
    rng = np.random.default_rng(seed)
    return {
        "images": {f"{n:03}": to_qoi(draw(rng, width + n, height, 3 + n % 2)) for n in range(count)}
    }


def expected(inputs: Mapping[str, Value]) -> Arrays:
    """Return the values of all pixels, image after image, int16."""
    images = [from_qoi(data) for _, data in sorted(inputs["images"].items())]
    return {"compressed": _flat(images)}


def results(outputs: Mapping[str, ItemSet | None]) -> Arrays:
    """Decode the PNG files to the values of all pixels, image after image, int16."""
    found = outputs["compressed"]
    if found is None:
        return {}
    return {"compressed": _flat(from_png(i.bytes()) for i in sorted(found, key=lambda i: i.name))}


def agrees(results: Arrays, expected: Arrays) -> bool:
    """Compare exactly."""
    return results.keys() == expected.keys() and np.array_equal(
        results["compressed"], expected["compressed"]
    )


def _flat(images: Iterable[npt.NDArray[Any]]) -> npt.NDArray[Any]:
    return np.concatenate([image.astype(np.int16).ravel() for image in images])
