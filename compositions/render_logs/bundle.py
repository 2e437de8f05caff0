"""Register and call `render_logs`; see `dandelion.compositions.Bundle`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from dandelion.data import ItemSet, Value
from dandelion.documents import RegistrationDocument, python_function

from . import oracle, world

Arrays: TypeAlias = dict[str, npt.NDArray[Any]]

HERE = Path(__file__).parent
NAME = "render_logs"
DEFAULT_URL = "http://127.0.0.1:8000"
TOPICS = ("logins", "a <b> & 'c'", "Ümläute?x=1&topic=y", "")


def document(authority: str = DEFAULT_URL) -> RegistrationDocument:
    """Describe `access`, `fan_out`, `render` and the composition.

    Args:
        authority: URL to which tokens are sent, without a slash at the end.
    """
    access = python_function(
        HERE / "access.py",
        name="access",
        inputs=("token", "authority"),
        outputs=("request",),
        static={"authority": {"authority": authority}},
    )
    fan_out = python_function(
        HERE / "fan_out.py",
        name="fan_out",
        inputs=("reply", "grant", "topic"),
        outputs=("requests", "reader", "refusal"),
    )
    render = python_function(
        HERE / "render.py",
        name="render",
        inputs=("reader", "topic", "replies", "pages"),
        outputs=("html",),
    )
    text = (HERE / "render_logs.dandelion").read_text()
    return RegistrationDocument(functions=(access, fan_out, render), compositions=(text,))


def example_inputs(seed: int) -> dict[str, Value]:
    """Choose a reader that is not locked, and a topic."""
    rng = np.random.default_rng(seed)
    readers = world.EXAMPLE.readers
    tokens = [token for token, reader in readers.items() if not reader.is_locked]
    return {"token": str(rng.choice(tokens)), "topic": str(rng.choice(TOPICS))}


def expected(inputs: Mapping[str, Value]) -> Arrays:
    """Return `html`: [characters] int32, the code points of the page."""
    return {"html": code_points(oracle.page(world.EXAMPLE, inputs["token"], inputs["topic"]))}


def results(outputs: Mapping[str, ItemSet | None]) -> Arrays:
    """Read the page in the form of `expected`; a missing page is an empty array."""
    found = outputs["html"]
    return {"html": code_points(found.text() if found else "")}


def agrees(results: Arrays, expected: Arrays) -> bool:
    """Compare every character."""
    return np.array_equal(results["html"], expected["html"])


def code_points(text: str) -> npt.NDArray[np.int32]:
    """Return the code points of a text."""
    return np.array([ord(character) for character in text], np.int32)
