"""PyTorch modules as steps of a loop: results that are fed back, and one that may be absent."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch", reason="the extra 'export' is not installed")
pytest.importorskip("tinygrad", reason="the extra 'export' is not installed")

import torch
from torch import nn

from dandelion.cli.main import main
from dandelion.documents import RegistrationDocument
from dandelion.errors import InvalidInput
from dandelion.export import export_module, torch_function
from dandelion.node import Node
from tests.torch_calls import SETTINGS, call

LOOP = """
function halve (x, count, weights_float32) => (half, counted, more);
composition Halve (x, count) => (half, counted) {
    halve (x = all x, count = all count) => (half = half, counted = counted)
        repeat 100 until more feeding (x = half, count = counted);
}
"""
ARGUMENTS: tuple[Any, ...] = (torch.ones(1, 4), torch.zeros(1, dtype=torch.int64))


class Halve(nn.Module):
    """One iteration: the largest value becomes smaller until it is below one."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor([0.5, 0.5, 0.5, 0.25]))

    def forward(self, x: Any, count: Any) -> Any:
        half = x * self.scale
        more = (half.amax(1) >= 1).int()
        return {"half": half, "counted": count + 1, "more": more}


@pytest.fixture(scope="module")
def node() -> Iterator[Node]:
    with Node(SETTINGS) as made:
        yield made


def test_one_tensor_as_the_example_of_two_inputs(node: Node) -> None:
    class Difference(nn.Module):
        def forward(self, x: Any, y: Any) -> Any:
            return x - 2 * y

    one = torch.zeros(2, 3)
    function = torch_function("difference", Difference().eval(), (one, one))
    x, y = np.arange(6, dtype=np.float32).reshape(2, 3), np.full((2, 3), 5, np.float32)
    assert np.array_equal(call(node, function, {"x": x, "y": y})["output"], x - 2 * y)


def test_a_tensor_of_the_module_as_an_example(node: Node) -> None:
    class Sum(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.bias = nn.Parameter(torch.ones(3))

        def forward(self, x: Any) -> Any:
            return x + 2 * self.bias

    module = Sum().eval()
    x = np.array([1, 2, 4], np.float32)
    found = call(node, torch_function("sum", module, (module.bias,)), {"x": x})["output"]
    assert np.array_equal(found, x + 2)


@pytest.mark.parametrize(("largest", "steps"), [(0.5, 1), (8.0, 4), (4096.0, 13), (2.0**120, 100)])
def test_a_loop_ends_by_a_result(node: Node, largest: float, steps: int) -> None:
    function = torch_function("halve", Halve().eval(), ARGUMENTS, absent_if_zero=["more"])
    node.register(RegistrationDocument(functions=(function,), compositions=(LOOP,)))
    x = np.array([[0, 0, largest, largest]], np.float32)
    found = node.invoke("Halve", x=x, count=np.zeros(1, np.int64))
    half, counted = found["half"], found["counted"]
    assert half is not None
    assert counted is not None
    assert counted.numpy().tolist() == [steps]
    wanted = x * np.array([0.5, 0.5, 0.5, 0.25], np.float64) ** steps
    np.testing.assert_allclose(half.numpy(), wanted.astype(np.float32), rtol=1e-6)


@pytest.mark.parametrize(("largest", "present"), [(8.0, True), (1.0, False)])
def test_an_output_is_absent_if_it_is_zero(node: Node, largest: float, present: bool) -> None:
    function = torch_function("halve", Halve().eval(), ARGUMENTS, absent_if_zero=["more"])
    node.register(function)
    found = node.invoke("halve", x=np.full((1, 4), largest, np.float32), count=np.zeros(1, int))
    assert (found["more"] is not None) == present
    assert found["half"] is not None


@pytest.mark.parametrize(
    ("names", "batch", "message"),
    [
        (["moer"], None, "did you mean 'more'"),
        (["half"], None, "int32 is expected, it is float32; return it as tensor.int()"),
        (["counted"], None, "int32 is expected, it is int64"),
        (["more"], (1, 2), "batch"),
        ("more", None, "a list of names is expected"),
    ],
)
def test_what_cannot_be_absent(names: Any, batch: Any, message: str) -> None:
    with pytest.raises(InvalidInput, match=message) as caught:
        export_module("halve", Halve().eval(), ARGUMENTS, absent_if_zero=names, batch=batch)
    assert "absent_if_zero" in str(caught.value)


def test_command(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "steps.py"
    file.write_text(
        "import torch\n\nclass Less(torch.nn.Module):\n    def forward(self, x):\n"
        "        none = (x > 1e9).any()[None].int()\n"
        "        return {'y': x * 2, 'more': torch.cat([none, none + 1])}\n\n"
        "less = Less().eval()\n"
    )
    command = ["export", f"{file}:less", "--inputs", "float32[4]", "-o", str(tmp_path / "out")]
    assert main([*command, "--absent-if-zero", "more", "--json"]) == 0
    report = json.loads(capfd.readouterr().out)["report"]
    assert report["errors"] == {"y": 0.0, "more": 0.0}
    blueprint = json.loads((tmp_path / "out" / "sources" / "blueprint.json").read_text())
    assert blueprint["blueprint"]["present_if"] == {"more": "more"}
