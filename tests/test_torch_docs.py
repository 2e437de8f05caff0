"""docs/torch.md: its programs run, and make what the text says."""

from __future__ import annotations

import re
import runpy
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dandelion.cli.parser import make_parser

pytest.importorskip("torch", reason="the extra 'export' is not installed")
pytest.importorskip("tinygrad", reason="the extra 'export' is not installed")

TEXT = (Path(__file__).resolve().parent.parent / "docs/torch.md").read_text()


@pytest.fixture(scope="module")
def names(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What the programs of the page define, run one after the other as one module."""
    program = tmp_path_factory.mktemp("docs") / "page.py"
    program.write_text("\n".join(re.findall(r"```python\n(.*?)```", TEXT, re.S)))
    return runpy.run_path(str(program))


def test_the_function_is_called(names: dict[str, Any]) -> None:
    assert names["function"].outputs == ("chances: float32[1, 10]",)
    wanted = names["module"](names["torch"].from_numpy(names["image"])).detach().numpy()
    assert np.abs(names["chances"] - wanted).max() < 1e-6


def test_the_report_counts(names: dict[str, Any]) -> None:
    report = names["made"].report
    assert report.operators["convolution.default"] == 1
    assert report.launches == report.kernels + report.library_operations
    assert report.library_operations


def test_commands_of_the_page_are_valid() -> None:
    for line in re.findall(r"^    dandelion (.*)$", TEXT, re.M):
        make_parser().parse_args(line.split())


def test_a_loop_writes_what_its_steps_do(names: dict[str, Any]) -> None:
    torch, module = names["torch"], names["Step"]().eval()
    torch.manual_seed(3)
    for parameter in module.parameters():
        torch.nn.init.normal_(parameter)
    function = names["dd"].torch_function(
        "step", module, (names["text"], names["position"], names["stored"], names["stored"]),
        absent_if_zero=["more"],
    )  # fmt: skip
    text, position = names["text"].clone(), names["position"]
    keys = values = names["stored"]
    for _ in range(names["LENGTH"] - 1):
        with torch.no_grad():
            found = module(text, position, keys, values)
        text, position, keys, values = list(found.values())[:4]
        if not found["more"]:
            break
    dd = names["dd"]
    with dd.Node(dd.Settings(backends=("cuda|hip|opencl",))) as node:
        node.register(names["write"])
        node.register(function)
        wanted = node.invoke("write", **names["begin"], **names["cache"])["text"].numpy()
    assert wanted.shape == names["tokens"].shape == (1, names["LENGTH"])
    assert np.array_equal(wanted, text.numpy())
    assert names["tokens"][0, 0] == 7
