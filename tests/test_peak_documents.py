"""The documents of the route `peak`."""

from __future__ import annotations

import math
from collections.abc import Iterator
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
from dandelion.documents import FunctionDocument, content, set_spec
from dandelion.errors import InvalidFunction, InvalidInput
from dandelion.export import ExportedModule, export_module
from dandelion.node import Node
from tests.peak_modules import HAS_INDUCTOR, Calls, heads, inductor
from tests.torch_calls import SETTINGS


@pytest.fixture(scope="module", autouse=True)
def compiler_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRITON_CACHE_DIR", str(tmp_path_factory.mktemp("triton")))
        patch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path_factory.mktemp("inductor")))
        yield


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
            most = 1e-3  # a GPU rounds factors to tf32
            assert np.abs(found - wanted).max() <= most * np.abs(wanted).max()


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


def test_ends_of_bfloat16() -> None:
    if not HAS_INDUCTOR:
        pytest.skip("this torch is not the supported one")
    module = nn.Sequential(nn.Linear(16, 8), nn.LayerNorm(8)).eval().to(torch.bfloat16)
    examples = (torch.zeros(4, 16, dtype=torch.bfloat16),)
    made = export_module("narrow", module, examples, route="peak", target="cuda:90")
    assert made.function.inputs == ("input: bfloat16[4, 16]", "weights_bfloat16: bfloat16[224]")
    assert made.function.outputs == ("output: bfloat16[4, 8]",)
