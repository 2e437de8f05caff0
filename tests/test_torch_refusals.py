"""What cannot be exported: errors name the operator and the line, and nothing is left behind."""

from __future__ import annotations

import inspect
import io
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="the extra 'export' is not installed")
pytest.importorskip("tinygrad", reason="the extra 'export' is not installed")

import torch
from torch import nn

from dandelion.cli.main import main
from dandelion.errors import InvalidFunction, InvalidInput
from dandelion.export import export_module

X = torch.ones(2, 4)


@torch.library.custom_op("dandelion_tests::twice", mutates_args=())
def twice(x: torch.Tensor) -> torch.Tensor:
    return x * 2


@twice.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


class Branches(nn.Module):
    def forward(self, x: Any) -> Any:
        if x.sum() > 0:  # here
            return x
        return -x


class Loops(nn.Module):
    def forward(self, x: Any) -> Any:
        while x.max() < 10:  # here
            x = x * 2
        return x


class Reads(nn.Module):
    def forward(self, x: Any) -> Any:
        return x * float(x.sum())  # here


class Selects(nn.Module):
    def forward(self, x: Any) -> Any:
        return x[x > 0]  # here


class Complex(nn.Module):
    def forward(self, x: Any) -> Any:
        return torch.fft.fft(x).abs()  # here


class Narrow(nn.Module):
    def forward(self, x: Any) -> Any:
        return x.to(torch.float8_e4m3fn).float()  # here


class InPlace(nn.Module):
    def forward(self, x: Any) -> Any:
        x.mul_(3)  # here
        return x + 1


class Counts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros(1))

    def forward(self, x: Any) -> Any:
        self.calls.add_(1)  # here
        return x + self.calls


class Keeps(nn.Module):
    def forward(self, x: Any) -> Any:  # here
        self.last = x * 2
        return x


class Unknown(nn.Module):
    def forward(self, x: Any) -> Any:
        return torch.special.bessel_j0(x)  # here


class Custom(nn.Module):
    def forward(self, x: Any) -> Any:
        return twice(x)  # here


class Draws(nn.Module):
    def forward(self, x: Any) -> Any:
        return x + torch.rand_like(x)  # here


class Quantised(nn.Module):
    def forward(self, x: Any) -> Any:
        return torch.quantize_per_tensor(x, 0.1, 0, torch.quint8).dequantize()  # here


class Sparse(nn.Module):
    def forward(self, x: Any) -> Any:
        return x.to_sparse().to_dense()  # here


class Numpy(nn.Module):
    def forward(self, x: Any) -> Any:
        return x + torch.from_numpy(x.numpy())  # here


CASES: list[tuple[Callable[[], nn.Module], str]] = [
    (Branches, "depends on values of tensors"),
    (Loops, "depends on values of tensors"),
    (Reads, "depends on values of tensors"),
    (Selects, "aten.index.Tensor is only known in a call"),
    (Complex, "complex64"),
    (Narrow, "float8_e4m3fn"),
    (InPlace, "changes 'x' by aten.mul"),
    (Counts, "changes 'calls' by aten.add"),
    (Keeps, "changes 'self.last'"),
    (Unknown, "aten.special_bessel_j0.default is not supported"),
    (Custom, "dandelion_tests.twice.default is not supported"),
    (Draws, "aten.rand_like.default is not supported"),
    (Quantised, "quantize_per_tensor"),
    (Sparse, "aten._to_sparse.default is not supported"),
    (Numpy, "numpy"),
]


@pytest.mark.parametrize(
    ("module", "words"), CASES, ids=lambda value: getattr(value, "__name__", "")
)
def test_an_error_names_the_operator_and_its_line(
    module: Callable[[], nn.Module], words: str, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(InvalidFunction) as caught:
        export_module("no", module().eval(), (X.clone(),))
    problem = caught.value.problems[0]
    lines, first = inspect.getsourcelines(module)
    line = first + next(at for at, text in enumerate(lines) if "# here" in text)
    assert problem.where == f"{__file__}:{line}"
    assert words in problem.message
    assert capfd.readouterr().err == "", "torch prints the graph of what it cannot export"


class Averages(nn.Module):
    def forward(self, x: Any) -> Any:
        return torch.relu(x).mean((0,))


def test_what_torch_logs_is_not_shown() -> None:
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    logger = logging.getLogger("torch._subclasses.fake_tensor")
    logger.addHandler(handler)
    try:
        with pytest.raises(InvalidFunction, match="mean"):
            export_module("no", Averages().eval(), (X.to(torch.uint16),))
        assert stream.getvalue() == ""
        logger.error("later")
        assert stream.getvalue() == "later\n"
    finally:
        logger.removeHandler(handler)


def test_a_missing_argument_has_no_place_in_the_standard_library() -> None:
    class Sum(nn.Module):
        def forward(self, x: Any, y: Any) -> Any:
            return x + y

    with pytest.raises(InvalidFunction) as caught:
        export_module("no", Sum().eval(), (X,))
    problem = caught.value.problems[0]
    assert problem.where == "Sum"
    assert "missing a required argument: 'y'" in problem.message


def test_all_operators_are_named_at_once() -> None:
    class Several(nn.Module):
        def forward(self, x: Any) -> Any:
            return torch.special.bessel_j0(x) + torch.special.airy_ai(x)

    with pytest.raises(InvalidFunction) as caught:
        export_module("no", Several().eval(), (X,))
    assert len(caught.value.problems) == 2


def test_a_part_in_training_mode_is_refused() -> None:
    module = nn.Sequential(nn.Linear(4, 4), nn.Dropout()).eval()
    module[1].train()
    with pytest.raises(InvalidInput, match="part '1' is in training mode"):
        export_module("no", module, (X,))


def test_results_that_are_no_tensors_are_refused() -> None:
    class Text(nn.Module):
        def forward(self, x: Any) -> Any:
            return {"y": x, "name": "text"}

    with pytest.raises(InvalidInput, match="not tensors"):
        export_module("no", Text().eval(), (X,))


def test_the_command_writes_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = tmp_path / "nets.py"
    source.write_text(
        "import torch\n"
        "class Net(torch.nn.Module):\n"
        "    def forward(self, x):\n"
        "        return torch.special.bessel_j0(x)\n"
        "def net():\n"
        "    return Net().eval(), (torch.ones(2),)\n"
    )
    for place in ("net.msgpack", "folder"):
        assert main(["export", f"{source}:net", "-o", str(tmp_path / place)]) == 1
        assert f"{source}:4" in capsys.readouterr().err
    assert sorted(path.name for path in tmp_path.iterdir() if path.suffix != "") == ["nets.py"]
    assert not (tmp_path / "folder").exists()
