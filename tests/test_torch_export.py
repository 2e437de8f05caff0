"""PyTorch modules as functions: whole models, element types, what is refused, the command."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

pytest.importorskip("torch", reason="the extra 'export' is not installed")
pytest.importorskip("tinygrad", reason="the extra 'export' is not installed")

import torch
from dandelion.backends.gpu.plan import plan
from torch import nn
from torch.nn import functional

from dandelion.blueprint import Access, Conv2d, Gemm, parse_blueprint
from dandelion.blueprint.operation_parts import operands
from dandelion.cli.main import main
from dandelion.documents import RegistrationDocument, content, set_spec
from dandelion.errors import InvalidFunction, InvalidInput
from dandelion.export import ExportedModule, export_module, torch_function
from dandelion.node import Node
from tests import torch_models
from tests.torch_calls import SETTINGS, call, compared

ERROR = 1e-4
X = torch.linspace(-1, 1, 24).reshape(4, 6)


@pytest.fixture(scope="module")
def node() -> Iterator[Node]:
    with Node(SETTINGS) as made:
        yield made


# --- models -------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", torch_models.MODELS)
def test_a_model_computes_what_torch_does(node: Node, name: str) -> None:
    module, examples = torch_models.model(name, torch_models.SMALL)
    device = "cpu" if name in ("resnet18", "lstm", "mobilenet_v3", "unet") else "gpu"
    _, report, _ = compared(node, module, examples, device)
    assert max(report.errors.values()) <= ERROR
    assert report.launches >= report.kernels > 0


class Typed(nn.Module):
    """A network of one element type with float32 at its ends."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.dtype = dtype
        self.body = nn.Sequential(nn.Linear(6, 16), nn.GELU(), nn.LayerNorm(16), nn.Linear(16, 6))
        self.body.to(dtype)

    def forward(self, x: Any) -> Any:
        return self.body(x.to(self.dtype)).softmax(-1)


@pytest.mark.parametrize("value", [1.0, -0.3, 1e38, float("-inf"), float("nan")])
def test_constants_of_bfloat16(node: Node, value: float) -> None:
    class Chosen(nn.Module):
        def forward(self, x: Any) -> Any:
            given = torch.scalar_tensor(value, dtype=torch.bfloat16)
            return torch.where(x > 0, given, torch.zeros((), dtype=torch.bfloat16)).float()

    _, _, found = compared(node, Chosen().eval(), (X,))
    wanted = float(torch.tensor(value, dtype=torch.bfloat16))
    assert np.array_equal(found["output"], np.where(X.numpy() > 0, wanted, 0), equal_nan=True)


@pytest.mark.parametrize(
    ("dtype", "error"), [(torch.float16, 2e-3), (torch.bfloat16, 2e-2), (torch.float64, 1e-6)]
)
def test_element_types(node: Node, dtype: torch.dtype, error: float) -> None:
    outside = str(dtype).removeprefix("torch.")
    made, report, found = compared(node, Typed(dtype).eval(), (X.to(dtype),))
    assert report.errors["output"] <= error
    assert found["output"].dtype.name == outside
    assert made.function.inputs[0] == f"x: {outside}[4, 6]"
    weights = [set_spec(text).name for text in made.function.inputs[1:]]
    assert weights == [f"weights_{outside}"]


class Masked(nn.Module):
    def forward(self, x: Any, mask: Any, ids: Any) -> Any:
        return {"kept": x.masked_fill(mask, 0.0), "any": mask & (ids > 2), "next": ids + 1}


def test_booleans_and_integers(node: Node) -> None:
    examples = (X, X > 0, torch.arange(24, dtype=torch.int32).reshape(4, 6))
    made, report, found = compared(node, Masked().eval(), examples)
    assert made.outputs == ("kept", "any", "next")
    assert not any(report.errors.values())
    assert [found[n].dtype.name for n in made.outputs] == ["float32", "bool", "int32"]
    sevens = np.full((4, 6), 7, np.uint8).view(np.bool_)
    odd = {"x": X.numpy(), "mask": sevens, "ids": examples[2].numpy()}
    strange = call(node, made.function, odd)  # every byte but 0 is true
    assert not strange["kept"].any()
    assert strange["any"].view(np.uint8).max() == 1


# --- the document -------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def network() -> ExportedModule:
    module, examples = torch_models.model("resnet50", torch_models.SMALL)
    return export_module("network", module, examples)


def test_temporary_buffers_share_memory() -> None:
    net = nn.Sequential(*(nn.Linear(256, 256) for _ in range(12))).eval()
    made = export_module("chain", net, (torch.ones(64, 256),))
    (code,) = made.function.code
    config = parse_blueprint(content(code.main).bytes())
    weights = made.report.static_bytes
    sizes = {"input": 64 * 256 * 4, "weights_float32": weights}
    pool = plan(config, sizes, lambda buffer, index: 0).used_bytes
    assert made.report.buffer_bytes == 13 * 64 * 256 * 4
    assert pool - weights <= 4 * 64 * 256 * 4


def test_buffers_are_written_before_they_are_read(network: ExportedModule) -> None:
    (code,) = network.function.code
    config = parse_blueprint(content(code.main).bytes())
    kernels = {kernel.name: kernel for kernel in config.kernels}
    filled = {*config.blueprint.inputs, *config.blueprint.weights}
    for action in config.blueprint.control_flow:
        if isinstance(action, Gemm | Conv2d):
            *reads, (_, out) = operands(action)
            assert all(operand.buffer in filled for _, operand in reads)
            filled.add(out.buffer)
            continue
        pointers = [
            (argument.buffer, way)
            for argument, way in zip(action.args, kernels[action.kernel].access, strict=True)
            if way is not Access.VALUE
        ]
        assert all(buffer in filled for buffer, way in pointers if way is not Access.WRITE)
        filled |= {buffer for buffer, way in pointers if way is Access.WRITE}
    assert set(config.blueprint.outputs) <= filled


def test_no_torch_in_the_document(network: ExportedModule) -> None:
    (code,) = network.function.code
    assert code.format == "blueprint"
    assert list(code.files) == ["network.c"]
    text = content(code.files["network.c"]).bytes().decode()
    assert text.count('#include "dandelion.h"') == 1
    for word in ("float4", "__kernel", "get_global_id", "threadIdx", "half", "double"):
        assert word not in text


def test_the_same_module_gives_the_same_document(network: ExportedModule) -> None:
    module, examples = torch_models.model("resnet50", torch_models.SMALL)
    assert torch_function("network", module, examples) == network.function


def test_batch_normalisation_goes_into_weights(network: ExportedModule) -> None:
    assert network.report.operators["_native_batch_norm_legit_no_training.default"] > 0
    assert network.report.launches <= network.report.operators["convolution.default"] + 4


def test_equal_weights_are_stored_once() -> None:
    linear = nn.Linear(64, 64, bias=False)
    made = export_module(
        "tied", nn.Sequential(linear, nn.ReLU(), linear).eval(), (torch.ones(1, 64),)
    )
    assert made.report.static_bytes == 64 * 64 * 4


def test_constants_need_no_kernel(node: Node) -> None:
    class Masked(nn.Module):
        def forward(self, x: Any) -> Any:
            return torch.where(x > 0, x, -torch.inf) + torch.ones(6), torch.zeros(2, 3)

    made = export_module("masked", Masked().eval(), (X,), outputs=["y", "zeros"])
    assert made.report.kernels == 2, "one for each result"
    found = call(node, made.function, {"x": X.numpy()})
    x = X.numpy()
    assert np.array_equal(found["y"], np.where(x > 0, x, -np.inf).astype(np.float32) + 1)
    assert np.array_equal(found["zeros"], np.zeros((2, 3), np.float32))


@pytest.mark.parametrize(
    "constant",
    [
        lambda x: torch.zeros(1),
        lambda x: torch.ones(1, 1, dtype=torch.bool),
        lambda x: torch.full((), 2.5),
        lambda x: torch.ones(5)[1:2] * 2 + 1,
        lambda x: torch.ones(3).sum(),
        lambda x: torch.arange(1),
        lambda x: torch.full_like(x[:1, :1], 3),
    ],
)
def test_constants_as_results(node: Node, constant: Any) -> None:
    class Two(nn.Module):
        def forward(self, x: Any) -> Any:
            return x + 1, constant(x)

    made = torch_function("two", Two().eval(), (X,), outputs=["y", "one"])
    found = call(node, made, {"x": X.numpy()})
    wanted = constant(X).numpy()
    assert np.array_equal(found["one"].reshape(wanted.shape), wanted)


@pytest.mark.parametrize("bias", [0.25, 3.0, -30.0])
def test_a_constant_as_operand_of_a_library_operation(node: Node, bias: float) -> None:
    class Convolved(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.linspace(-1, 1, 32 * 9).reshape(1, 32, 3, 3))

        def forward(self, x: Any) -> Any:
            return functional.conv2d(x, self.weight, torch.full((1,), bias))

    x = torch.linspace(-1, 1, 2 * 32 * 16 * 16).reshape(2, 32, 16, 16)
    module = Convolved().eval()
    made = export_module("convolved", module, (x,), outputs=["y"])
    assert made.report.library_operations == 1
    found = call(node, made.function, {"x": x.numpy()})["y"]
    wanted = module(x).detach().numpy()
    assert np.abs(found - wanted).max() <= ERROR * np.abs(wanted).max()


GROUPED = nn.Conv2d(24, 24, 5, padding=2, groups=24)
GROWN = nn.ConvTranspose2d(8, 16, 2, stride=2)
SPREAD = nn.ConvTranspose2d(8, 16, 3, stride=2, padding=1, output_padding=1)


@pytest.mark.parametrize(
    ("module", "channels", "device", "operations"),
    [
        (GROUPED, 24, "cpu", 1),
        (GROUPED, 24, "gpu", 0),
        (GROWN, 8, "cpu", 1),
        (GROWN, 8, "gpu", 1),
        (SPREAD, 8, "cpu", 1),
    ],
)
def test_convolutions_that_are_library_operations(
    node: Node, module: nn.Module, channels: int, device: str, operations: int
) -> None:
    torch.manual_seed(5)
    _, report, _ = compared(node, module.eval(), (torch.randn(2, channels, 28, 26),), device)
    assert report.library_operations == operations
    assert max(report.errors.values()) <= ERROR


def test_kernels_for_processors_have_blocks() -> None:
    def blocks(device: str, side: int) -> set[int]:
        made = export_module("gelu", nn.GELU().eval(), (torch.randn(8, side),), device=device)
        flow = json.loads(bytes(made.function.code[0].main.text.encode()))["blueprint"]
        return {action["ExecKernel"][2].get("block_dim_x", 1) for action in flow["control_flow"]}

    assert min(blocks("cpu", 2048)) >= 16
    assert blocks("cpu", 2) == {1}, "so little that there is a block for each core"


def test_names_of_outputs(node: Node) -> None:
    class Pair(nn.Module):
        def forward(self, x: Any) -> Any:
            return x + 1, x * 2

    made = export_module("pair", Pair().eval(), (X,))
    assert made.outputs == ("output_0", "output_1")
    made = export_module("pair", Pair().eval(), (X,), outputs=["more", "twice"])
    found = call(node, made.function, {"x": X.numpy()})
    assert np.array_equal(found["twice"], 2 * X.numpy())
    with pytest.raises(InvalidInput, match="outputs"):
        export_module("pair", Pair().eval(), (X,), outputs=["one"])
    with pytest.raises(InvalidInput, match="an input has this name"):
        export_module("pair", Pair().eval(), (X,), outputs=["x", "y"])


# --- what is refused ----------------------------------------------------------------------------


def refused(forward: Any, *examples: Any) -> str:
    module = type("Refused", (nn.Module,), {"forward": forward})().eval()
    with pytest.raises(InvalidFunction) as caught:
        export_module("no", module, examples or (X,))
    return str(caught.value)


def test_what_functions_cannot_do_is_refused() -> None:
    assert "result" in refused(
        lambda self, x: functional.max_pool2d(x[None, None], 2, return_indices=True)
    )


def test_training_mode_is_refused() -> None:
    with pytest.raises(InvalidInput, match="eval"):
        export_module("no", nn.Dropout(), (X,))
    with pytest.raises(InvalidInput, match="not a torch"):
        export_module("no", "module", (X,))
    with pytest.raises(InvalidInput, match="gpu or cpu"):
        export_module("no", nn.ReLU().eval(), (X,), device="tpu")


# --- the binding --------------------------------------------------------------------------------

PROGRAM = """
import os, sys, torch
{first}
before = dict(os.environ)
from dandelion.export import torch_function
made = torch_function("relu", torch.nn.ReLU().eval(), (torch.ones(3, 5),))
assert dict(os.environ) == before
sys.stdout.write(made.code[0].files["relu.c"].text)
"""


@pytest.mark.parametrize("first", ["", "import tinygrad"])
def test_the_environment_stays_as_it_was(first: str) -> None:
    variables = {**os.environ, "DEBUG": "0", "BEAM": "2"}
    text = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(first=first)],
        env=variables, check=True, capture_output=True, text=True,
    ).stdout  # fmt: skip
    assert text.count("KERNEL void") == 1


# --- the command --------------------------------------------------------------------------------


def test_command(tmp_path: Path, capfd: pytest.CaptureFixture[str], node: Node) -> None:
    file = tmp_path / "tiny.py"
    file.write_text(
        "import torch\n"
        "net = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.Tanh()).eval()\n"
        "def made():\n    return net, (torch.ones(2, 4),)\n"
    )
    folder = tmp_path / "out"
    assert main(["export", f"{file}:made", "--name", "tiny", "-o", str(folder), "--json"]) == 0
    report = json.loads(capfd.readouterr().out)
    assert report["report"]["errors"]["output"] < ERROR
    data = (folder / "tiny.msgpack").read_bytes()
    document = msgspec.msgpack.decode(data, type=RegistrationDocument)
    assert document.functions[0].name == "tiny"
    assert main(["check", str(folder)]) == 0
    again = tmp_path / "tiny.json"
    arguments = ["--inputs", "float32[2, 4]", "--no-check", "-o", str(again), "--outputs", "y"]
    assert main(["export", f"{file}:net", *arguments]) == 0
    (function,) = msgspec.json.decode(again.read_bytes(), type=RegistrationDocument).functions
    assert function.outputs == ("y: float32[2, 3]",)


def test_the_command_compares_modules_that_make_tensors(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "ones.py"
    file.write_text(
        "import torch\nclass Ones(torch.nn.Module):\n    def forward(self, x):\n"
        "        return x @ torch.ones(4, 5)\nones = Ones().eval()\n"
    )
    command = ["export", f"{file}:ones", "--inputs", "float32[3, 4]", "--json"]
    assert main([*command, "-o", str(tmp_path / "out")]) == 0
    assert json.loads(capfd.readouterr().out)["report"]["errors"]["output"] < ERROR
    assert torch.get_default_dtype() is torch.float32


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["{file}"], 2, "FILE:NAME"),
        (["{file}:nte"], 1, "did you mean 'net'"),
        (["{file}:net"], 1, "--inputs"),
        (["{file}:net", "--inputs", "float32[?, 4]"], 1, "no fixed shape"),
        (["{file}:net", "--inputs", "float31[2, 4]"], 1, "did you mean 'float32'"),
        (["{file}:net", "--inputs", ">f4[2, 4]"], 1, "element types are bool,"),
        (["{file}:net", "--inputs", "float32[2000000, 2000000, 2000000]"], 1, "--inputs: "),
        (["{file}:raising"], 1, "line 5, in raising"),
        (["{file}:net", "--inputs", "float32[2, 4]", "--no-check", "-o", "a.txt"], 1, "suffix"),
    ],
)
def test_wrong_commands(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], arguments: list[str], code: int, message: str
) -> None:
    file = tmp_path / "tiny.py"
    file.write_text(
        "import torch\nnet = torch.nn.Linear(4, 3).eval()\n\n"
        "def raising():\n    return {}['weights']\n"
    )
    assert main(["export", *(a.format(file=file) for a in arguments)]) == code
    assert message in capfd.readouterr().err
    assert sorted(p.name for p in tmp_path.iterdir() if p.is_file()) == ["tiny.py"]
