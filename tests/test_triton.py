"""Triton kernels as functions: compiled and checked without a device."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from dandelion.backends.gpu.code_info import info_of
from dandelion.backends.gpu.launch_sizes import misfits
from dandelion.backends.gpu.plan import Launch, Plan, plan
from dandelion.backends.gpu.source import CodeFormat, choose

import dandelion
import dandelion.blueprint as bp
from dandelion.documents import FunctionDocument, content
from dandelion.errors import InvalidFunction, InvalidInput
from dandelion.export import Pointer
from dandelion.node import Node, Settings

pytest.importorskip("triton", reason="the extra 'export' is not installed")

import triton
import triton.language as tl

from tests import triton_kernels as kernels

FUNCTIONS = {
    "add": kernels.add_function,
    "softmax": kernels.softmax_function,
    "matmul": lambda: kernels.matmul_function(512, 384, 256),
    "matmul_f32": lambda: kernels.matmul_function(256, 256, 256, "float32"),
    "histogram": kernels.histogram_function,
    "tiles": kernels.tiles_function,
    "scalars": kernels.scalars_function,
}
POINTER_BYTES = 8
PARAMETERS = {
    "add": (8, 8, 8, 4),
    "softmax": (8, 8, 4, 4),
    "matmul": (8, 8, 8, 4, 4, 4, 4, 4, 4),
    "matmul_f32": (8, 8, 8, 4, 4, 4, 4, 4, 4),
    "histogram": (8, 8, 4),
    "tiles": (8, 8, 4, 4),
    "scalars": (8, 2, 4, 8, 8, 1, 1),
}


@pytest.fixture(scope="module", autouse=True)
def compiler_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Triton's cache, so that nothing of an earlier run is used."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRITON_CACHE_DIR", str(tmp_path_factory.mktemp("triton")))
        yield


@pytest.fixture(scope="module")
def documents(compiler_cache: None) -> dict[str, FunctionDocument]:
    return {name: make() for name, make in FUNCTIONS.items()}


def parts(document: FunctionDocument) -> tuple[bp.GpuConfig, dict[str, bytes]]:
    """The blueprint, checked, and the files of a document."""
    (code,) = document.code
    files = {name: content(data).bytes() for name, data in code.files.items()}
    return bp.parse_blueprint(content(code.main).bytes(), files), files


def planned(document: FunctionDocument, inputs: Mapping[str, np.ndarray[Any, Any]]) -> Plan:
    config, _ = parts(document)
    sizes = {name: value.nbytes for name, value in inputs.items()}
    return plan(config, sizes, lambda name, index: int(inputs[name][index]))


def launch(document: FunctionDocument, **inputs: np.ndarray[Any, Any]) -> Launch:
    """The only launch, with the arguments that the call gives."""
    made = planned(document, inputs)
    (step,) = made.steps
    assert isinstance(step, Launch)
    args = list(step.args)
    for position, index in step.open_args:
        open_argument = made.open_arguments[index]
        args[position] = open_argument.packed(lambda name, at: int(inputs[name][at]))
    return dataclasses.replace(step, args=tuple(args))


def accesses(document: FunctionDocument) -> tuple[str, ...]:
    config, _ = parts(document)
    return tuple(way.value for way in config.kernels[0].access)


# --- binaries -------------------------------------------------------------------------------


@pytest.mark.parametrize("name", FUNCTIONS)
def test_binaries_for_each_target(documents: dict[str, FunctionDocument], name: str) -> None:
    config, files = parts(documents[name])
    assert len(files) == len(kernels.TARGETS)
    for code, arch in zip(config.modules[0].code, kernels.TARGETS, strict=True):
        info = info_of(files[code.path])
        assert (code.arch, info.arch) == (arch, arch)
        assert not info.variables
        scratch = (POINTER_BYTES, POINTER_BYTES)
        symbol = config.kernels[0].symbol or config.kernels[0].name
        assert info.kernels == {symbol: (*PARAMETERS[name], *scratch)}
        assert info.complete


@pytest.mark.parametrize("name", FUNCTIONS)
def test_launches_fit_the_binaries(documents: dict[str, FunctionDocument], name: str) -> None:
    config, files = parts(documents[name])
    assert misfits(config, files) == []
    text = bp.print_blueprint(config)
    assert '{"Constant": 0}' in bp.print_argument(bp.Scalar(bp.ScalarType.I64, 0))
    broken = text.replace('"Constant": 0', '"i32": 0', 1)
    assert misfits(bp.parse_blueprint(broken), files) != []


def test_binaries_depend_on_the_kernel_alone(
    documents: dict[str, FunctionDocument], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    again = FUNCTIONS["matmul"]()
    assert again == documents["matmul"]
    _, files = parts(again)
    folder = str(Path(kernels.__file__).parent).encode()
    assert all(folder not in data for data in files.values())


@pytest.mark.parametrize("arch", kernels.TARGETS)
def test_a_device_chooses_the_binary_of_its_architecture(
    documents: dict[str, FunctionDocument], arch: str
) -> None:
    config, files = parts(documents["matmul"])
    backend = "cuda" if arch.startswith("sm") else "hip"
    formats = (CodeFormat.CUBIN, CodeFormat.HSACO)
    chosen = choose(config.modules[0], files, backend, formats, (arch,))
    assert info_of(chosen.data).arch == arch
    assert chosen.shared_mem_bytes == {"sm_90": 98304, "gfx942": 32768}[arch]


def test_a_node_registers_them(documents: dict[str, FunctionDocument]) -> None:
    with Node(Settings(backends=("null",), arena_bytes=1 << 20)) as node:
        for name, document in documents.items():
            renamed = FunctionDocument(
                name, document.inputs, document.outputs, document.static, code=document.code
            )
            (registered,) = node.register(renamed)
            assert registered.name == name


# --- launches -------------------------------------------------------------------------------


def test_vectors(documents: dict[str, FunctionDocument]) -> None:
    x = np.zeros(5000, np.float32)
    step = launch(documents["add"], x=x, y=x)
    assert (step.grid, step.block, step.shared_bytes) == ((5, 1, 1), (128, 1, 1), 0)
    assert step.args[3:] == ((5000).to_bytes(4, "little"), bytes(8), bytes(8))


def test_integers_of_inputs(documents: dict[str, FunctionDocument]) -> None:
    shape = np.array([7, 1000])
    step = launch(documents["softmax"], cfg=shape, x=np.zeros((7, 1000), np.float32))
    assert step.grid == (7, 1, 1)
    assert step.args[2] == step.args[3] == (1000).to_bytes(4, "little")


def test_an_integer_that_does_not_fit_its_parameter(
    documents: dict[str, FunctionDocument],
) -> None:
    shape = np.array([7, 2**31])
    with pytest.raises(InvalidInput, match="i32"):
        launch(documents["softmax"], cfg=shape, x=np.zeros(1, np.float32))


def test_unit_strides_are_compiled_in(documents: dict[str, FunctionDocument]) -> None:
    a, b = np.zeros((512, 256), np.float16), np.zeros((256, 384), np.float16)
    step = launch(documents["matmul"], a=a, b=b)
    assert (step.grid, step.block) == ((4, 3, 1), (256, 1, 1))
    assert [int.from_bytes(x, "little") for x in step.args[3:9]] == [512, 384, 256, 256, 384, 384]  # type: ignore[arg-type]


def test_pipelines_have_their_stages(documents: dict[str, FunctionDocument]) -> None:
    """Three stages of both tiles on NVIDIA; without known divisors there is no pipeline."""
    config, _ = parts(documents["matmul"])
    tiles_bytes = (128 * 64 + 64 * 128) * 2
    assert config.modules[0].code[0].shared_mem_bytes == 3 * tiles_bytes
    odd, _ = parts(kernels.matmul_function(512, 384, 255, targets=["sm_90"]))
    flow = odd.blueprint.control_flow[0]
    assert isinstance(flow, bp.ExecKernel)
    shared = flow.launch.shared_mem_bytes
    assert isinstance(shared, bp.Absolute)
    assert shared.value < 3 * tiles_bytes


def test_access_is_derived(documents: dict[str, FunctionDocument]) -> None:
    assert accesses(documents["add"])[:4] == ("read", "read", "both", "value")
    assert accesses(documents["matmul"])[:3] == ("read", "read", "both")
    assert accesses(documents["histogram"])[:2] == ("read", "both")
    assert accesses(documents["tiles"]) == ("read", "both", "value", "value", "both", "value")
    assert accesses(documents["scalars"])[0] == "both"


def test_an_index_that_was_loaded() -> None:
    made = dandelion.triton_function(
        "gather",
        kernels.gather,
        inputs=["table: float32", "places: int32"],
        outputs=["out: float32"],
        arguments={"n": bp.Buffer("places").elements("i32")},
        constants={"block": 128},
        sizes={"out": "places"},
        grid=1,
        targets=["sm_90"],
    )
    assert accesses(made)[:3] == ("read", "read", "both")


def test_scratch_memory_is_a_temporary_buffer(documents: dict[str, FunctionDocument]) -> None:
    inputs = {"cfg": np.array([256, 8]), "x": np.zeros((256, 128), np.float16)}
    made = planned(documents["tiles"], inputs)
    (step,) = made.steps
    assert isinstance(step, Launch)
    assert step.grid == (4, 2, 1)
    assert made.slots["global_scratch"].size_bytes >= 8 * 256
    assert list(made.outputs) == ["y"]


def test_static_sets_are_weights() -> None:
    table = np.arange(512, dtype=np.float32)
    made = kernels.add_function(["sm_90"], static={"y": {"y": table}})
    config, _ = parts(made)
    assert (config.blueprint.inputs, config.blueprint.weights) == (("x",), ("y",))


def test_an_input_that_is_changed_in_place() -> None:
    made = dandelion.triton_function(
        "accumulate", kernels.add, inputs=["x: float32", "y: float32"], outputs=["y: float32"],
        arguments={"z": "y", "n": bp.Buffer("x").elements("f32")}, constants={"block": 128},
        grid=bp.ceil_div(bp.Buffer("x").elements("f32"), 128), targets=["sm_90"],
    )  # fmt: skip
    config, _ = parts(made)
    assert config.blueprint.outputs == ("y",)
    assert not config.blueprint.buffers


def test_types_that_sets_do_not_have() -> None:
    made = dandelion.triton_function(
        "add", kernels.add, inputs=["x", "y"], outputs=["z"],
        arguments={
            **{name: Pointer(name, "bf16") for name in "xyz"},
            "n": bp.Buffer("x").elements("f16"),
        },
        constants={"block": 128}, sizes={"z": "x"}, grid=1, targets=["sm_90", "gfx942"],
    )  # fmt: skip
    config, files = parts(made)
    assert misfits(config, files) == []


def test_one_target_has_its_local_memory_in_the_launch() -> None:
    document = json.loads(content(kernels.softmax_function(["sm_90"]).code[0].main).bytes())
    (code,) = [document["modules"]["softmax"]]
    assert code == {"path": "softmax.sm_90.cubin", "backend": "cuda", "arch": "sm_90"}
    assert document["blueprint"]["control_flow"][0]["ExecKernel"][2]["shared_mem_bytes"] == 16


# --- decorators -----------------------------------------------------------------------------

CONFIGS = [triton.Config({"block": 256}, num_warps=2), triton.Config({"block": 512}, num_warps=8)]
TUNED = triton.autotune(configs=CONFIGS, key=["n"])(kernels.add)


def tuned(kernel: object, **more: Any) -> FunctionDocument:
    elements = bp.Buffer("x").elements("f32")
    return dandelion.triton_function(
        "add", kernel, inputs=["x: float32", "y: float32"], outputs=["z: float32"],
        arguments={"n": elements}, sizes={"z": "x"},
        grid=lambda meta: bp.ceil_div(elements, meta["block"]),
        targets=["sm_90"], **more,
    )  # fmt: skip


def test_a_configuration_is_chosen() -> None:
    x = np.zeros(5000, np.float32)
    step = launch(tuned(TUNED, config=CONFIGS[1]), x=x, y=x)
    assert (step.grid, step.block) == ((10, 1, 1), (256, 1, 1))


def test_autotuned_kernels_need_a_configuration() -> None:
    with pytest.raises(InvalidInput, match=r"config=kernel.configs\[0\]"):
        tuned(TUNED)


def test_decorators_that_are_host_code() -> None:
    heuristic = triton.heuristics({"block": lambda values: 128})(kernels.add)
    with pytest.raises(InvalidInput, match=r"kernel\.fn"):
        tuned(heuristic)
    hooked = triton.Config({"block": 256}, pre_hook=lambda values: None)
    with pytest.raises(InvalidInput, match="pre_hook"):
        tuned(TUNED, config=hooked)
    with pytest.raises(InvalidInput, match="is not a Triton kernel"):
        tuned(lambda x, y, z, n: None)


# --- refusals -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("option", "value"),
    [("num_ctas", 2), ("launch_cooperative_grid", True), ("launch_pdl", True)],
)
def test_options_that_need_another_launcher(option: str, value: object) -> None:
    with pytest.raises(InvalidInput, match=option):
        kernels.add_function(options={option: value})
    kernels.add_function(["sm_90"], options={option: 1 if option == "num_ctas" else False})


def test_targets_ignore_options_of_others() -> None:
    made = kernels.add_function(options={"maxnreg": 128, "waves_per_eu": 2})
    config, files = parts(made)
    assert misfits(config, files) == []


@pytest.mark.parametrize(
    ("more", "where"),
    [
        ({"num_warps": 1}, "num_warps"),
        ({"num_warps": 3}, "num_warps"),
        ({"num_stages": {"sm90": 3}}, "num_stages.sm90"),
        ({"options": {"num_stages": 2}}, "options.num_stages"),
        ({"sizes": {}}, "outputs.z"),
        ({"sizes": {"z": "x", "y": 4}}, "sizes.y"),
        ({"targets": []}, "targets"),
        ({"targets": ["compute_90"]}, "targets"),
        ({"outputs": ["z: float32", "w: float32[1]"]}, "outputs.w"),
        ({"arguments": {}}, "arguments.n"),
        ({"arguments": {"n": 4, "m": 4}}, "arguments.m"),
        ({"constants": {}}, "constants.block"),
    ],
)
def test_what_is_wrong_is_named(more: dict[str, Any], where: str) -> None:
    given: dict[str, Any] = {
        "inputs": ["x: float32", "y: float32"],
        "outputs": ["z: float32"],
        "arguments": {"n": 4},
        "constants": {"block": 128},
        "sizes": {"z": "x"},
        "grid": 1,
    }
    with pytest.raises(InvalidInput) as caught:
        dandelion.triton_function("add", kernels.add, **{**given, **more})
    assert caught.value.where == where


def test_more_shared_memory_than_there_is() -> None:
    with pytest.raises(InvalidFunction, match=r"gfx942.*at most 65536"):
        kernels.matmul_function(512, 512, 512, stages={"sm_90": 3, "gfx942": 6})


@triton.jit
def wrong(x):
    tl.store(x, tl.arange(0, 3))


def test_a_kernel_that_does_not_compile() -> None:
    with pytest.raises(InvalidFunction, match="power of 2"):
        dandelion.triton_function(
            "wrong", wrong, inputs=["x: int32"], outputs=["x: int32"], grid=1, targets=["sm_90"]
        )
