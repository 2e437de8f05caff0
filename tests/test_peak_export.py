"""The route ``peak``: Inductor's kernels and library operations, without a device."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch", reason="the extra 'export' is not installed")
pytest.importorskip("triton", reason="the extra 'export' is not installed")

import torch
from torch import nn
from torch.nn import functional

import dandelion.blueprint as bp
from dandelion.cli.main import main
from dandelion.errors import InvalidFunction, InvalidInput
from dandelion.export import export_module, torch_binding
from dandelion.export.fx_graph import circular
from dandelion.export.peak_graph import for_peak
from dandelion.export.peak_records import AttentionProduct
from dandelion.export.product_records import ConvolutionProduct, GemmProduct
from dandelion.export.triton_binding import without_unused_variables
from tests import peak_modules, torch_models
from tests.peak_calls import computed
from tests.peak_modules import Calls, heads, inductor

ERROR = 1e-5


@pytest.fixture(scope="module", autouse=True)
def compiler_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRITON_CACHE_DIR", str(tmp_path_factory.mktemp("triton")))
        patch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path_factory.mktemp("inductor")))
        yield


def error(module: Any, examples: tuple[Any, ...], precision: str = "tf32") -> float:
    """The largest error of a rewritten graph, over the largest value."""
    graph = torch_binding.graph_of(module, examples)
    made, products = for_peak(graph, bp.Computation(precision))
    found = computed(made, products, examples)
    wanted = torch_binding.reference_outputs(module, examples, list(graph.outputs))
    return max(
        float(np.abs(found[n].numpy() - wanted[n]).max() / np.abs(wanted[n]).max()) for n in wanted
    )


@pytest.mark.parametrize(
    ("name", "precision"), [*((name, "tf32") for name in torch_models.MODELS), ("vit_b_16", "f32")]
)
def test_a_rewritten_model_computes_what_torch_does(name: str, precision: str) -> None:
    module, examples = torch_models.model(name, torch_models.SMALL, 2)
    assert error(module, examples, precision) <= ERROR


@pytest.mark.parametrize(
    "layer",
    [
        nn.Conv2d(8, 6, 1),
        nn.Conv2d(8, 6, 3, 2, 1),
        nn.Conv2d(3, 6, 3, padding=2, dilation=2),
        nn.Conv2d(8, 6, 2, 2),
        nn.Conv2d(8, 4, 3, groups=2),
        nn.Conv2d(8, 8, 3, 2, 1, groups=8),
        nn.Conv2d(8, 16, (3, 1), groups=8, bias=False),
        nn.ConvTranspose2d(8, 6, 2, 2),
        nn.ConvTranspose2d(8, 6, 3, 2, 1, 1),
        nn.ConvTranspose2d(8, 6, 4, 1, 3, bias=False),
        nn.ConvTranspose2d(8, 6, 3, 2, groups=2),
    ],
    ids=str,
)
def test_convolutions(layer: Any) -> None:
    torch.manual_seed(1)
    image = torch.randn(2, layer.in_channels, 8, 6)
    assert error(Calls(lambda conv, x: functional.relu(conv(x)), layer).eval(), (image,)) <= ERROR


@pytest.mark.parametrize(
    "layer", [nn.Conv1d(4, 6, 3, 2, 1), nn.Conv1d(4, 6, 1), nn.ConvTranspose1d(4, 6, 4, 2)], ids=str
)
def test_convolutions_of_lines(layer: Any) -> None:
    torch.manual_seed(1)
    assert error(Calls(lambda conv, x: conv(x), layer).eval(), (torch.randn(2, 4, 9),)) <= ERROR


@pytest.mark.parametrize("kind", ["plain", "causal", "bool", "added", "shared"])
def test_attention(kind: str) -> None:
    def attend(x: Any, mask: Any) -> Any:
        q, k, v = (heads(part, 4) for part in x.chunk(3, -1))
        if kind == "shared":
            k, v = k[:, :2], v[:, :2]
        given = {"bool": mask > 0, "added": mask}.get(kind)
        made = functional.scaled_dot_product_attention(
            q, k, v, given, is_causal=kind == "causal", enable_gqa=kind == "shared"
        )
        return made.transpose(1, 2).flatten(2)

    torch.manual_seed(1)
    mask = torch.randn(2, 1, 1, 7) if kind != "added" else torch.randn(7, 7)
    examples = (torch.randn(2, 7, 48), mask)
    module = Calls(attend).eval()
    assert error(module, examples) <= ERROR
    made, products = for_peak(torch_binding.graph_of(module, examples), bp.Computation.TF32)
    (product,) = products.values()
    assert isinstance(product, AttentionProduct)
    bases = {view.base for view in (product.q, product.k, product.v)}
    assert bases == {next(iter(made.inputs))}  # nothing is copied


@pytest.mark.parametrize(("dtype", "whole"), [(torch.float32, 0), (torch.bfloat16, 1)])
def test_attention_of_one_row(dtype: Any, whole: int) -> None:
    """As a decoder has it that writes a token: faster as sums, if the numbers are float32."""
    module = Calls(functional.scaled_dot_product_attention).eval()
    examples = [torch.randn(1, 4, rows, 16).to(dtype) for rows in (1, 9, 9)]
    graph = torch_binding.graph_of(module, examples)
    _, products = for_peak(graph, bp.Computation.TF32)
    assert sum(isinstance(one, AttentionProduct) for one in products.values()) == whole


def test_rows_are_multiplied_as_they_lie() -> None:
    module, examples = torch_models.model("bert_base", torch_models.SMALL, 2)
    graph = torch_binding.graph_of(module, examples)
    _, products = for_peak(graph, bp.Computation.TF32)
    gemms = [one for one in products.values() if isinstance(one, GemmProduct)]
    tokens = examples[0].numel()
    assert {one.batch for one in gemms} == {1}
    assert [one.m for one in gemms].count(tokens) == len(gemms) - 1  # the last is of one token
    assert all(one.bias is not None for one in gemms)


def test_a_convolution_takes_in_what_follows() -> None:
    module, examples = torch_models.model("resnet50", torch_models.SMALL)
    _, products = for_peak(torch_binding.graph_of(module, examples), bp.Computation.TF32)
    kinds = [type(one) for one in products.values()]
    assert kinds.count(ConvolutionProduct) + kinds.count(GemmProduct) == len(kinds)
    added = [one for one in products.values() if getattr(one, "c", None) is not None]
    assert added
    assert all(getattr(one, "activation", None) is bp.Activation.RELU for one in added)


@pytest.mark.parametrize("quarter", [0, 1])
def test_sine_and_cosine(quarter: int) -> None:
    x = torch.cat([torch.linspace(-30, 30, 4001), torch.tensor([0.0, 1e4, -12345.678, 1e6])])
    wanted = (x.double() + 0).sin() if quarter == 0 else x.double().cos()
    assert float((circular(torch, x, quarter).double() - wanted).abs().max()) <= 2e-7


def refused(module: Any, *examples: Any) -> str:
    with pytest.raises(InvalidFunction) as caught:
        export_module("x", module.eval(), examples, route="peak", target="cuda:90")
    return str(caught.value)


class Unusual(nn.Module):
    def forward(self, x: Any) -> Any:
        return torch.linalg.inv(x) + x.repeat(300, 1).sort(0)[0].sum()


@inductor
def test_an_operator_without_a_kernel_is_named_with_its_line() -> None:
    text = refused(Unusual(), torch.eye(4))
    assert "aten.linalg_inv_ex" in text
    assert "aten.sort" in text
    assert f"{__file__}:{Unusual.forward.__code__.co_firstlineno + 1}" in text


def test_random_numbers_are_refused() -> None:
    text = refused(Calls(lambda x: x + torch.rand(3)), torch.zeros(3))
    assert "aten.rand" in text
    assert f"{peak_modules.__file__}:" in text


@pytest.mark.parametrize(
    ("route", "target"),
    [("peak", ""), ("peak", "sm_90"), ("peak", "cuda:gfx942"), ("peak", "hip:90"), ("fast", ""),
     ("portable", "cuda:90"), ("both", ""), ("peak", "cuda:90,cuda:90")],
)  # fmt: skip
def test_wrong_routes_and_targets(route: str, target: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        export_module("x", nn.ReLU().eval(), (torch.zeros(3),), route=route, target=target)
    assert caught.value.where in ("route", "target")


@inductor
def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = tmp_path / "models.py"
    source.write_text("import torch\nmodel = torch.nn.Sequential(torch.nn.Softmax(-1)).eval()\n"
                      "bad = torch.nn.Module\n"
                      "class Bad(torch.nn.Module):\n"
                      "    def forward(self, x):\n"
                      "        return torch.linalg.inv(x)\n"
                      "bad = Bad().eval()\n")  # fmt: skip
    out = tmp_path / "made"
    common = ["--inputs", "float32[4, 4]", "--route", "peak", "--target", "cuda:90", "--no-check"]
    assert main(["export", f"{source}:model", *common, "-o", str(out)]) == 0
    assert " launches, 0 of them library operations" in capsys.readouterr().out
    assert any(one.suffix == ".cubin" for one in (out / "sources").iterdir())
    failed = tmp_path / "failed"
    assert main(["export", f"{source}:bad", *common, "-o", str(failed)]) != 0
    assert f"{source}:6" in capsys.readouterr().err
    assert not failed.exists()


def test_unused_variables_of_a_module() -> None:
    unused = ".global .align 1 .b8 _$_str[11] = {95, 95, 67};\n"
    used = ".global .align 4 .b32 table[2] = {1, 2};\n"
    body = ".visible .entry k()\n{\n\tmov.u64 %rd1, table;\n}\n"
    assert without_unused_variables(unused + used + body) == used + body
