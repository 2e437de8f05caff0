"""Ready-to-run compositions, a folder each: text, blueprint, kernels, data, README, numpy oracle.

Every folder is a package with a module ``bundle`` that implements `Bundle`. ::

    bundle = load("matmul")
    inputs = bundle.example_inputs(seed=1)
    client.register(bundle.document())
    outputs = client.invoke("matmul", **inputs)
    assert bundle.agrees(bundle.results(outputs), bundle.expected(inputs))
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol, TypeAlias, cast

import numpy.typing as npt

from dandelion.data import ItemSet, Value
from dandelion.documents import RegistrationDocument
from dandelion.errors import Unknown, nearest

Arrays: TypeAlias = dict[str, npt.NDArray[Any]]


class Bundle(Protocol):
    """The interface of the module ``bundle`` of a composition's folder."""

    NAME: str
    """The registered name of the composition."""

    def document(self) -> RegistrationDocument:
        """Return everything to register: functions, weights, composition text."""

    def example_inputs(self, seed: int) -> dict[str, Value]:
        """Make a set of inputs, the same for the same seed, by input set of the composition."""

    def expected(self, inputs: Mapping[str, Value]) -> Arrays:
        """Compute the expected results with numpy, by output set."""

    def results(self, outputs: Mapping[str, ItemSet | None]) -> Arrays:
        """View the outputs of an invocation as arrays in the form of `expected`."""

    def agrees(self, results: Arrays, expected: Arrays) -> bool:
        """Tell whether results are right within the precision that the README states."""


def names() -> tuple[str, ...]:
    """List the compositions, sorted."""
    found = Path(__file__).parent.glob("*/bundle.py")
    return tuple(sorted(path.parent.name for path in found))


def load(name: str) -> Bundle:
    """Load a composition's bundle.

    Raises:
        Unknown: there is no folder of that name.
    """
    if name not in names():
        raise Unknown("composition", name, None, nearest(name, names()))
    module = importlib.import_module(f"{__name__}.{name}.bundle")
    return cast(Bundle, module)
