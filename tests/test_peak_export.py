"""The route ``peak``: Inductor's kernels and library operations, without a device."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from dandelion.backends.gpu.code_info import info_of
from dandelion.backends.gpu.launch_sizes import misfits
from dandelion.backends.gpu.plan import Launch, Pointer, plan

pytest.importorskip("torch", reason="the extra 'export' is not installed")
pytest.importorskip("triton", reason="the extra 'export' is not installed")

import torch
from torch import nn
from torch.nn import functional

import dandelion.blueprint as bp
from dandelion.blueprint.uses import written_buffers
from dandelion.cli.main import main
from dandelion.documents import FunctionDocument, content, set_spec
from dandelion.errors import InvalidFunction, InvalidInput
from dandelion.export import ExportedModule, export_module, inductor_binding, torch_binding
from dandelion.export.fx_graph import circular
from dandelion.export.peak_graph import for_peak
from dandelion.export.peak_records import AttentionProduct
from dandelion.export.product_records import ConvolutionProduct, GemmProduct
from dandelion.export.triton_binding import without_unused_variables
from dandelion.node import Node
from tests import torch_models
from tests.peak_calls import computed
from tests.torch_calls import SETTINGS

ERROR = 1e-5
HAS_INDUCTOR = str(torch.__version__).startswith(f"{inductor_binding.VERSION}.")
inductor = pytest.mark.skipif(not HAS_INDUCTOR, reason="this torch is not the supported one")


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


class Calls(nn.Module):
    """A module that calls a function, with layers of its own."""

    def __init__(self, call: Any, *layers: nn.Module) -> None:
        super().__init__()
        self.call, self.layers = call, nn.ModuleList(layers)

    def forward(self, *given: Any) -> Any:
        return self.call(*self.layers, *given)


# --- the graph ----------------------------------------------------------------------------------


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


def heads(x: Any, count: int) -> Any:
    return x.unflatten(-1, (count, -1)).transpose(1, 2)


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


# --- the document -------------------------------------------------------------------------------


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.norm = nn.Embedding(50, 32), nn.LayerNorm(32)
        self.mix, self.out = nn.Linear(32, 96), nn.Linear(32, 32)
        self.image = nn.Conv2d(32, 4, 3, padding=1)

    def forward(self, ids: Any) -> Any:
        x = self.words(ids)
        q, k, v = (heads(part, 2) for part in self.mix(self.norm(x)).chunk(3, -1))
        made = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + functional.gelu(self.out(made.transpose(1, 2).flatten(2)))
        return self.image(x.transpose(1, 2).unflatten(2, (4, 4))).sin()


@pytest.fixture(scope="module", params=["cuda:90", "hip:gfx942"])
def block(request: pytest.FixtureRequest) -> tuple[str, FunctionDocument]:
    if not HAS_INDUCTOR:
        pytest.skip("this torch is not the supported one")
    torch.manual_seed(1)
    examples = (torch.randint(0, 50, (2, 16)),)
    made = export_module(
        "block", Block().eval(), examples, precision="tf32", route="peak", target=request.param
    )
    assert made.report.launches == made.report.library_operations + 4
    assert made.outputs == ("output",)
    return request.param, made.function


def config_of(function: FunctionDocument) -> tuple[bp.GpuConfig, dict[str, bytes]]:
    (code,) = function.code
    files = {name: content(data).bytes() for name, data in code.files.items()}
    return bp.parse_blueprint(content(code.main).bytes().decode()), files


def test_launches_fit_their_kernels(block: tuple[str, FunctionDocument]) -> None:
    device, function = block
    config, files = config_of(function)
    assert misfits(config, files) == []
    arch = {"cuda:90": "sm_90", "hip:gfx942": "gfx942"}[device]
    for data in files.values():
        info = info_of(data)
        assert info.arch == arch
        assert not info.variables  # or each call would load the module afresh
    assert not any(name.startswith("weights") for name in written_buffers(config))


def test_launches_stay_inside_of_their_buffers(block: tuple[str, FunctionDocument]) -> None:
    config, _ = config_of(block[1])
    sizes = {}
    for text in block[1].inputs:
        spec = set_spec(text)
        assert spec.shape is not None
        sizes[spec.name] = math.prod(spec.shape) * np.dtype(spec.dtype).itemsize
    made = plan(config, sizes, lambda *_: 0)
    launches = [step for step in made.steps if isinstance(step, Launch)]
    assert all(
        pointer.offset_bytes + pointer.size_bytes <= made.used_bytes
        for launch in launches
        for pointer in launch.args
        if not isinstance(pointer, bytes)
    )
    assert not any(isinstance(one, bp.CopyBuffer) for one in config.blueprint.control_flow)


def test_temporary_buffers_share_memory(block: tuple[str, FunctionDocument]) -> None:
    config, _ = config_of(block[1])
    access = {kernel.name: kernel.access for kernel in config.kernels}
    calls = [one for one in config.blueprint.control_flow if isinstance(one, bp.ExecKernel)]
    for call in calls:
        ways = [way for way in access[call.kernel] if way is not bp.Access.VALUE]
        assert ways.count(bp.Access.WRITE) >= 1  # so that memory need not be zeroed
        assert bp.Access.BOTH not in ways


@pytest.fixture(scope="module")
def batched() -> ExportedModule:
    torch.manual_seed(1)
    examples = (torch.randint(0, 50, (2, 16)),)  # then the weights are those of `block`
    return export_module(
        "block", Block().eval(), examples, precision="tf32", route="peak", target="cuda:90",
        batch=(2, 1), batch_wait_s=0.01,
    )  # fmt: skip


def set_bytes(function: FunctionDocument, rows: int) -> dict[str, int]:
    """Sizes of the input sets of a call with so many rows."""
    found = {}
    for spec in map(set_spec, function.inputs):
        assert spec.shape is not None
        shape = [rows if size < 0 else size for size in spec.shape]
        found[spec.name] = math.prod(shape) * np.dtype(spec.dtype).itemsize
    return found


def launched(
    function: FunctionDocument, rows: int, choices: dict[str, int] | None = None
) -> list[tuple[Any, ...]]:
    """What a call with so many rows launches, without names and places in memory: of constants
    their first bytes, of other buffers their sizes."""
    config, files = config_of(function)
    made = plan(config, set_bytes(function, rows), lambda *_: 0, choices=choices)
    modules = {module.name: files[module.code[0].path] for module in config.modules}
    codes = {kernel.name: modules[kernel.module] for kernel in config.kernels}
    constants = {
        made.slots[name]: content(value).bytes()
        for name, items in function.static.items()
        for value in items.values()
    }

    def seen(pointer: Pointer) -> object:
        for slot, data in constants.items():
            start = pointer.offset_bytes - slot.offset_bytes
            if 0 <= start < slot.size_bytes:
                return data[start : start + 64]
        return pointer.size_bytes

    def operation(step: Launch) -> list[object]:
        if step.kernel not in codes:  # of an operation: places are among its numbers
            return []
        return [one if isinstance(one, bytes) else seen(one) for one in step.args]

    return [
        (codes.get(step.kernel, step.kernel), step.grid, step.block, step.shared_bytes,
         operation(step))
        for step in made.steps if isinstance(step, Launch)
    ]  # fmt: skip


@inductor
def test_each_size_of_a_batch_has_the_launches_of_its_own_export(
    batched: ExportedModule, block: tuple[str, FunctionDocument]
) -> None:
    """So padding and joined constants are all that differs."""
    device, fixed = block
    if device != "cuda:90":
        pytest.skip("one architecture is enough")
    alone, joined = launched(fixed, 2), launched(batched.function, 2)
    assert len(alone) > 5
    assert joined == alone
    assert launched(batched.function, 1) != alone
    with pytest.raises(InvalidInput, match="at most 2"):
        launched(batched.function, 3)
    stored = [sum(content(v).bytes().__len__() for i in f.static.values() for v in i.values())
              for f in (fixed, batched.function)]  # fmt: skip
    assert stored[1] < 1.1 * stored[0], "both sizes use the same constants"


@inductor
def test_a_function_for_any_number_of_rows(batched: ExportedModule) -> None:
    document = batched.function
    shapes = {s.name: s.shape for s in map(set_spec, (*document.inputs, *document.outputs))}
    assert (shapes["ids"], shapes["output"]) == ((-1, 16), (-1, 4, 4, 4))
    assert document.batching is not None
    assert (document.batching.rows, document.batching.wait_s) == (2, 0.01)
    assert batched.report.rows == (1, 2)
    config, files = config_of(document)
    assert misfits(config, files) == []
    (choice,) = config.blueprint.control_flow
    assert isinstance(choice, bp.Choose)
    assert [case.up_to for case in choice.cases] == [1, 2]


@inductor
def test_both_routes_in_one_function(block: tuple[str, FunctionDocument]) -> None:
    """It runs where the binaries do not; where they do, they are those of the route alone."""
    pytest.importorskip("tinygrad", reason="the extra 'export' is not installed")
    device, fixed = block
    if device != "cuda:90":
        pytest.skip("both are in it")
    torch.manual_seed(1)
    examples = (torch.randint(0, 50, (2, 16)),)
    module = Block().eval()
    made = export_module(
        "block", module, examples, precision="tf32", route="both", target="cuda:90,hip:gfx942"
    )
    document = made.function
    config, files = config_of(document)
    assert misfits(config, files) == []
    (choice,) = config.blueprint.control_flow
    assert isinstance(choice, bp.Candidates)
    assert len(choice.alternatives) == 3
    chosen = {"blueprint.control_flow[0]": 1}
    assert launched(document, 2, chosen) == launched(fixed, 2)
    stored = [sum(len(content(v).bytes()) for i in f.static.values() for v in i.values())
              for f in (fixed, document)]  # fmt: skip
    assert stored[1] < 1.2 * stored[0], "what is stored alike is there once"
    with Node(SETTINGS) as node:
        node.register(functions=[document])
        for _ in range(3):
            found = node.invoke("block", ids=examples[0].numpy())["output"].numpy()
            wanted = module(*examples).detach().numpy()
            assert np.abs(found - wanted).max() <= 1e-4 * np.abs(wanted).max()


@inductor
def test_both_routes_for_any_number_of_rows() -> None:
    pytest.importorskip("tinygrad", reason="the extra 'export' is not installed")
    torch.manual_seed(1)
    module = nn.Sequential(nn.Linear(8, 16), nn.LayerNorm(16), nn.Linear(16, 4)).eval()
    made = export_module(
        "rows", module, (torch.zeros(1, 8),), route="both", target="cuda:90", batch=(1, 3)
    )
    with Node(SETTINGS) as node:
        node.register(functions=[made.function])
        for rows in (2, 1, 3, 2):
            x = torch.randn(rows, 8)
            found = node.invoke("rows", input=x.numpy())["output"].numpy()
            assert np.allclose(found, module(x).detach().numpy(), atol=1e-5)


@inductor
def test_rows_must_be_independent_and_first() -> None:
    for call, example in ((lambda x: x - x.mean(0), (2, 3)), (lambda x: x.T + 1, (2, 3))):
        with pytest.raises(InvalidFunction):
            export_module("x", Calls(call).eval(), (torch.zeros(example),), batch=(1, 2),
                          route="peak", target="cuda:90")  # fmt: skip


@inductor
def test_an_element_that_is_changed_in_place_keeps_the_others() -> None:
    def call(x: Any, at: Any) -> Any:
        return torch.zeros(8, 4).index_put((at,), x)

    examples = (torch.randn(2, 4), torch.tensor([1, 5]))
    made = export_module("put", Calls(call).eval(), examples, route="peak", target="cuda:90")
    config, _ = config_of(made.function)
    ways = [way for kernel in config.kernels for way in kernel.access]
    assert ways.count(bp.Access.BOTH) == 1


def test_it_is_the_same_each_time(block: tuple[str, FunctionDocument]) -> None:
    torch.manual_seed(1)
    examples = (torch.randint(0, 50, (2, 16)),)
    again = export_module(
        "block", Block().eval(), examples, precision="tf32", route="peak", target=block[0]
    )
    assert config_of(again.function) == config_of(block[1])


def test_ends_of_bfloat16_are_float32() -> None:
    if not HAS_INDUCTOR:
        pytest.skip("this torch is not the supported one")
    module = nn.Sequential(nn.Linear(16, 8), nn.LayerNorm(8)).eval().to(torch.bfloat16)
    examples = (torch.zeros(4, 16, dtype=torch.bfloat16),)
    made = export_module("narrow", module, examples, route="peak", target="cuda:90")
    assert made.function.inputs == ("input: float32[4, 16]", "weights_bfloat16: uint16[224]")
    assert made.function.outputs == ("output: float32[4, 8]",)


# --- what is refused ----------------------------------------------------------------------------


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
    assert __file__ in text


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
