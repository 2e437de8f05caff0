"""Functions of the launches of several routes: what belongs to which part."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from dandelion.blueprint import Access
from dandelion.documents import FunctionDocument, content
from dandelion.errors import InvalidFunction
from dandelion.export.buckets import Bucket, BucketKernels
from dandelion.export.kernels import KernelLaunch, KernelSource
from dandelion.export.portable_part import PortablePart
from dandelion.export.route_parts import function_of
from dandelion.export.torch_graph import Constant, TensorType

SMALL = TensorType((4,), "float32")
READ, WRITE = Access.READ, Access.WRITE


def constant(*values: float) -> Constant:
    return Constant(SMALL, np.array(values, np.float32))


def part(
    name: str, constants: Mapping[str, Constant], buffers: Mapping[str, int] | None = None
) -> PortablePart:
    """A part with one launch, which reads its constants."""
    read = tuple(constants)
    access = (READ,) * (1 + len(read)) + (WRITE,)
    offset = (False, *(True for _ in read), False)
    source = KernelSource(f"kernel_{name}", f"/* {name} */", access, offset)
    launch = KernelLaunch(source.name, ("x", *read, "y"), (1, 1, 1), (4, 1, 1))
    made = BucketKernels(
        [source], [Bucket(None, [launch])], buffers or {}, {"x": SMALL}, {"y": SMALL}, constants
    )
    return PortablePart(name, made)


def read_by_each(function: FunctionDocument) -> dict[str, list[list[float]]]:
    """Return the constants that the launch of each kernel reads."""
    [code] = function.code
    blueprint: Any = json.loads(content(code.main).bytes())["blueprint"]
    [candidates] = [action["Candidates"] for action in blueprint["control_flow"]]
    found = {}
    for [launch] in candidates:
        kernel, arguments, _ = launch["ExecKernel"]
        pairs = zip(arguments[1:-1:2], arguments[2:-1:2], strict=True)
        found[kernel] = [elements(function, one["Ptr"], at["u64"]) for one, at in pairs]
    return found


def elements(function: FunctionDocument, group: str, start: int) -> list[float]:
    stored: Any = function.static[group][group]
    data: list[float] = np.frombuffer(stored.data, np.float32).tolist()
    return data[start : start + 4]


def test_two_routes_may_use_one_name_for_different_constants() -> None:
    one = part("one", {"w": constant(1, 2, 3, 4), "v": constant(5, 6, 7, 8)})
    other = part("other", {"w": constant(5, 6, 7, 8), "u": constant(0, 0, 0, 1)})
    function, weights = function_of("f", [one, other], None, 0.0)
    assert read_by_each(function) == {
        "kernel_one": [[1, 2, 3, 4], [5, 6, 7, 8]],
        "kernel_other": [[5, 6, 7, 8], [0, 0, 0, 1]],
    }
    assert weights.size_bytes == 3 * 64, "equal constants are there once"


def test_buffers_and_modules_of_two_routes_have_different_names() -> None:
    one = part("f", {"w": constant(1, 2, 3, 4)}, {"b": 16})
    other = part("f", {"w": constant(1, 2, 3, 4)}, {"b": 32})
    with pytest.raises(InvalidFunction) as caught:
        function_of("f", [one, other], None, 0.0)
    shown = str(caught.value)
    for text in ("b: two routes have a buffer", "f: two routes have a module", "f.c: two routes"):
        assert text in shown
